"""Triton Functions of Liger-Kernel and flash-linear-attention, and some of our own."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tests.gpu import comparison, kernels
from tests.gpu.comparison import Case
from tests.gpu.parts import Check
from tests.torch.kernels import packages


def checks(small: bool) -> dict[str, Check]:
    return comparison.checks(CASES, small)


PUBLISHED = {case.name: case for case in packages.CASES}


def _published(
    title: str, name: str, make: Any, formula: Any = None, **options: Any
) -> Case:
    """A case of the tests of `from_torch`, with sizes for a GPU."""
    case = PUBLISHED[name]
    needs = FLA if name.startswith("fla") else LIGER
    formula = formula or case.formula
    return Case(title, case.load, make, formula, needs=needs, **options)


def _sized(*shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> Any:
    """A maker of normal numbers: for each tensor its small shape and its other one."""
    return lambda small: [torch.randn(pair[0] if small else pair[1]) for pair in shapes]


def _with(make: Any, *others: Any) -> Any:
    return lambda small: [*make(small), *others]


def _labels(small: bool) -> list[Any]:
    rows, classes = (4, 30) if small else (512, 5000)
    labels = torch.randint(0, classes, (rows,))
    labels[1] = -100  # is left out
    options = (None, -100, 0.0, 0.1, "mean", None, False)
    return [torch.randn(rows, classes), labels, *options]


def _half(make: Any) -> Any:
    """A maker whose tensors are bfloat16."""
    return lambda small: [
        x.bfloat16() if isinstance(x, torch.Tensor) else x for x in make(small)
    ]


def _indexed(small: bool) -> list[Any]:
    rows, columns, count = (5, 6, 7) if small else (1000, 96, 3000)
    return [torch.randn(rows, columns), torch.randint(0, rows, (count,))]


WIDE = ((3, 20), (500, 1000))
NORM = _with(_sized(WIDE, ((20,), (1000,))), 1e-6, 0.0, "llama", False)
LIGER, FLA = ("liger_kernel",), ("fla", "einops")

# Rounding to bfloat16; sums whose order a GPU, a tuner or XLA chooses.
ROUNDED, SUMMED = 2e-2, 3e-5


def _queries(small: bool) -> list[Any]:
    batch, steps, heads, width = (1, 6, 1, 16) if small else (2, 100, 4, 32)
    q, k, v = (0.5 * torch.randn(batch, steps, heads, width) for _ in range(3))
    decay = functional.logsigmoid(torch.randn(batch, steps, heads))
    state = 0.3 * torch.randn(batch, heads, width, width)
    return [q, k, v, decay, None, None, None, 0.25, state, True]


def _gates(small: bool) -> list[Any]:
    batch, steps, width = (1, 5, 16) if small else (2, 100, 64)
    x, gate = torch.randn(2, batch, steps, width)
    return [x, functional.logsigmoid(gate), torch.randn(batch, width), True]


CASES = [
    Case(
        "Gated",
        lambda: kernels.Gated,
        _sized(WIDE, WIDE),
        lambda a, b: functional.silu(a) * b,
        (0, 1),
        batch=True,
    ),
    Case(
        "Softmax",
        lambda: kernels.Softmax,
        _sized(WIDE),
        lambda x: x.softmax(-1),
        batch=True,
    ),
    Case(
        "Squares",
        lambda: kernels.Squares,
        _sized(((150,), (100_000,))),
        lambda x: x.square().sum(),
        most=SUMMED,
        most_torch=SUMMED,
        batch=True,
    ),
    Case(
        "Product",
        lambda: kernels.Product,
        _sized(((20, 24), (200, 300)), ((24, 33), (300, 130))),
        torch.matmul,
        (0, 1),
        batch=True,
    ),
    Case(
        "Rows",
        lambda: kernels.Rows,
        _indexed,
        lambda table, index: table[index],
        most=SUMMED,
        most_torch=SUMMED,
        batch=True,
    ),
    Case(
        "Sums",
        lambda: kernels.Sums,
        _sized(WIDE),
        lambda x: x.cumsum(-1),
        batch=True,
    ),
    _published(
        "Liger: RMSNorm",
        "LigerRMSNormFunction llama",
        NORM,
        differentiate=(0, 1),
        most_torch=SUMMED,
        batch=True,
    ),
    _published(
        "Liger: RMSNorm, bfloat16",
        "LigerRMSNormFunction llama",
        _half(NORM),
        differentiate=(0, 1),
        most=ROUNDED,
        most_torch=ROUNDED,
    ),
    _published(
        "Liger: LayerNorm",
        "LigerLayerNormFunction",
        _with(_sized(WIDE, ((20,), (1000,)), ((20,), (1000,))), 1e-5),
        differentiate=(0, 1, 2),
        most_torch=SUMMED,
    ),
    _published(
        "Liger: GELUMul",
        "LigerGELUMulFunction",
        _sized(WIDE, WIDE),
        differentiate=(0, 1),
        most=SUMMED,
    ),
    _published(
        "Liger: CrossEntropy",
        "LigerCrossEntropyFunction",
        _labels,
        lambda x, y, *_: functional.cross_entropy(x, y, label_smoothing=0.1),
        most=SUMMED,
        most_torch=SUMMED,
    ),
    _published(
        "fla: L2Norm",
        "fla l2norm:L2NormFunction",
        _with(_sized(((2, 2, 520), (4, 100, 1000))), 1e-6, None),
    ),
    _published(
        "fla: FusedRecurrent",
        "fla fused_recurrent:FusedRecurrentFunction",
        _queries,
        differentiate=(0, 1, 2, 3, 8),
        most=1e-4,
        most_torch=SUMMED,
    ),
    _published(
        "fla: FusedRecurrentHGRN",
        "fla fused_recurrent:FusedRecurrentHGRNFunction",
        _gates,
        differentiate=(0, 1, 2),
        most=SUMMED,
        most_torch=SUMMED,
    ),
]
