"""Functions of published packages, with arguments to try them with.

A row: the module, the class, what makes its arguments, and the positions to
differentiate (None: all float tensors). What the packages import and these Functions
don't use is stubbed.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from . import stubs

Args = Callable[[], list[Any]]


@dataclasses.dataclass(frozen=True)
class Row:
    module: str
    name: str
    args: Args
    diff: tuple[int, ...] | None = None

    @property
    def package(self) -> str:
        return self.module.split(".")[0]

    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    def load(self) -> Any:
        with stubs.stubbed() as finder:
            found: Any = stubs.load(finder, self.module)
        for part in self.name.split("."):
            found = getattr(found, part)
        return found


ROWS: list[Row] = []


def rows(module: str, names: str, args: Args, diff: Any = None) -> None:
    ROWS.extend(Row(module, name, args, diff) for name in names.split())


@functools.cache
def _generator() -> torch.Generator:
    return torch.Generator()


def fresh() -> None:
    """Begin the random arguments anew."""
    _generator().manual_seed(0)


def t(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_generator())


def p(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=_generator()) + 0.3


def spd(n: int) -> torch.Tensor:
    a = t(n, n)
    return a @ a.mT + n * torch.eye(n)


def ints(n: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, n, shape, generator=_generator())


def x() -> list[Any]:
    return [t(4, 5)]


BREVITAS = "brevitas.ops.autograd_ste_ops"
rows(
    BREVITAS,
    "AbsBinarySignGradFn BinarySignSteFn DPURoundSteFn RoundSteFn TernarySignSteFn",
    x,
)
rows(BREVITAS, "ScalarClampMinSteFn", lambda: [t(4, 5), 0.1])
rows(BREVITAS, "ScalarClampSteFn", lambda: [t(4, 5), -0.5, 0.5])
rows(
    BREVITAS,
    "TensorClampSteFn InplaceTensorClampSteFn",
    lambda: [t(4, 5), torch.full((), -0.5), torch.full((), 0.5)],
)

ENTMAX = "entmax."
rows(
    f"{ENTMAX}activations",
    "SparsemaxFunction Entmax15Function",
    lambda: [t(4, 5), -1, None],
)
rows(
    f"{ENTMAX}root_finding",
    "EntmaxBisectFunction",
    lambda: [t(4, 5), torch.full((4, 1), 1.5), -1, 20, True],
)
rows(f"{ENTMAX}root_finding", "BudgetBisectFunction", lambda: [t(4, 5), 2, -1, 20])
rows(
    f"{ENTMAX}losses",
    "SparsemaxLossFunction Entmax15LossFunction",
    lambda: [t(4, 5), ints(5, 4), None],
)

rows("fairscale.nn.pipe.dependency", "Fork", x)
rows("fairscale.nn.pipe.dependency", "Join", lambda: [t(4, 5), t(0)])
rows("fastai.layers", "MishJitAutoFn _SwishJitAutoFn", x)

GPYTORCH = "gpytorch.functions."


def distance(a: Any, b: Any) -> Any:
    return (a.unsqueeze(-2) - b.unsqueeze(-3)).pow(2).sum(-1).add(1e-6).sqrt()


def square_distance(a: Any, b: Any) -> Any:
    return (a.unsqueeze(-2) - b.unsqueeze(-3)).pow(2).sum(-1)


def _matern(nu: float) -> Args:
    return lambda: [t(4, 3), t(5, 3), p(1, 1), nu, distance]


for _nu in (0.5, 1.5, 2.5):
    rows(
        f"{GPYTORCH}matern_covariance",
        "MaternCovariance",
        _matern(_nu),
        (2,),
    )
rows(
    f"{GPYTORCH}rbf_covariance",
    "RBFCovariance",
    lambda: [t(4, 3), t(5, 3), p(1, 1), square_distance],
    (2,),
)

LINEAR = "linear_operator.functions."


def _tree() -> Any:
    operators = importlib.import_module("linear_operator.operators")
    return operators.DenseLinearOperator(torch.eye(4)).representation_tree()


rows(f"{LINEAR}_solve", "Solve", lambda: [_tree(), False, t(4, 2), spd(4)])
rows(f"{LINEAR}_inv_quad", "InvQuad", lambda: [_tree(), t(4, 2), spd(4)])

NORSE = "norse.torch.functional.threshold"
rows(NORSE, "HeaviErfc HeaviTanh", lambda: [t(4, 5), 1.3])

PYRO = "pyro.distributions.relaxed_straight_through"
rows(PYRO, "QuantizeBernoulli", lambda: [p(4, 5)])
rows(PYRO, "QuantizeCategorical", x)

SNN = "snntorch.surrogate"
rows(SNN, "Sigmoid", lambda: [t(4, 5), 2.0])
rows(SNN, "Triangular", lambda: [t(4, 5), 1.0])
rows(SNN, "Heaviside", x)

SPIKE = "spikingjelly.activation_based."
rows(
    f"{SPIKE}surrogate",
    "atan erf log_tailed_relu nonzero_sign_log_abs piecewise_exp q_pseudo_spike rect "
    "sigmoid super_spike",
    lambda: [t(4, 5), 2.0],
)
rows(f"{SPIKE}surrogate", "leaky_k_relu", lambda: [t(4, 5), 0.1, 1.2])
rows(f"{SPIKE}surrogate", "squarewave_fourier_series", lambda: [t(4, 5), 2, 8.0])
rows(f"{SPIKE}quantize", "CeilATGF FloorATGF RoundATGF", x)
rows(f"{SPIKE}quantize", "StepQuantizeATGF", lambda: [t(4, 5), 0.3])

rows("timm.layers.activations_me", "SwishAutoFn HardSigmoidAutoFn HardMishAutoFn", x)
rows("torchdiffeq._impl.misc", "_StitchGradient", lambda: [t(3), t(3)])
rows(
    "torchdiffeq._impl.rk_common",
    "_UncheckedAssign",
    lambda: [torch.zeros(3, 4), t(3), (Ellipsis, 1)],
)
