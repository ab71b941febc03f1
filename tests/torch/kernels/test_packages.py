"""Functions of liger-kernel and fla run in JAX, unmodified: value and gradient."""

import importlib.metadata
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxfn.torch
from jaxfn._triton import call
from tests.torch.kernels.packages import CASES

# Some import torch.jit, which newest releases warn of.
pytestmark = [pytest.mark.filterwarnings("ignore")]
BATCHED = CASES[::3]
HERE = [pytest.param(c, id=c.name) for c in CASES if c.is_here]


def array(x):
    if not isinstance(x, torch.Tensor):
        return x
    if x.dtype == torch.bfloat16:
        return jnp.asarray(x.float().numpy(), jnp.bfloat16)
    return jnp.asarray(x.numpy())


def wide(x):
    if not isinstance(x, torch.Tensor):
        return x
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def together(x):
    return x if isinstance(x, tuple) else (x,)


class Run:
    """One case: its outputs and gradients, and those of the formula."""

    def __init__(self, case, seed=1):
        given = case.arguments(seed)
        self.by = case.positions(given)
        self.arrays = [array(x) for x in given]
        self.apply = jaxfn.torch.from_torch(case.load()).apply
        double = [wide(x) for x in given]
        leaves = [double[i].requires_grad_() for i in self.by]
        outs = together(case.formula(*double))
        self.inexact = [i for i, y in enumerate(outs) if y.requires_grad]
        random = np.random.default_rng(seed)
        self.cts = [random.standard_normal(y.shape) for y in outs]
        total = sum((outs[i] * torch.tensor(self.cts[i])).sum() for i in self.inexact)
        self.wanted = [y.detach().numpy() for y in outs]
        self.gradients = [g.numpy() for g in torch.autograd.grad(total, leaves)]

    @property
    def xs(self):
        return [self.arrays[i] for i in self.by]

    def outputs(self, *xs):
        full = list(self.arrays)
        for i, x in zip(self.by, xs, strict=True):
            full[i] = x
        return together(self.apply(*full))

    def loss(self, *xs):
        outs = self.outputs(*xs)
        return sum(
            (outs[i] * jnp.asarray(self.cts[i], outs[i].dtype)).sum()
            for i in self.inexact
        )

    def grad(self, *xs):
        return jax.grad(self.loss, tuple(range(len(xs))))(*xs)


def near(found, want, tolerance):
    for x, y in zip(found, want, strict=False):
        x = np.asarray(x, np.complex128 if np.iscomplexobj(x) else np.float64)
        assert x.shape == y.shape
        assert np.abs(x - y).max() <= tolerance * np.abs(y).max()


@pytest.mark.parametrize("case", HERE)
def test_value_and_gradient(case):
    run = Run(case)
    near(run.outputs(*run.xs), run.wanted, case.tolerance)
    near(run.grad(*run.xs), run.gradients, case.tolerance)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", HERE)
def test_value_and_gradient_under_jit(case):
    run = Run(case)
    near(jax.jit(run.outputs)(*run.xs), run.wanted, case.tolerance)
    near(jax.jit(run.grad)(*run.xs), run.gradients, case.tolerance)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name) for c in BATCHED if c.is_here]
)
def test_vmap_and_scan_of_the_gradient(case):
    first, second = Run(case), Run(case, seed=2)
    one = [i for i, x in enumerate(first.arrays) if i not in first.by]
    for i in one:  # what is not differentiated is shared
        second.arrays[i] = first.arrays[i]
    batch = [jnp.stack(pair) for pair in zip(first.xs, second.xs, strict=True)]
    each = [first.grad(*first.xs), first.grad(*second.xs)]
    want = [
        np.stack([np.asarray(g, np.float64) for g in p])
        for p in zip(*each, strict=True)
    ]
    near(jax.vmap(first.grad)(*batch), want, case.tolerance)

    def step(total, xs):
        return total + first.loss(*xs), first.grad(*xs)

    _, scanned = jax.jit(lambda xs: jax.lax.scan(step, 0.0, xs))(batch)
    near(scanned, want, case.tolerance)


def missing():
    for name in ("jax_triton", "jax_cuda12_plugin"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    return None


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", HERE)
def test_each_launch_lowers_for_cuda(case, monkeypatch):
    on_gpu = call._on_gpu

    def first_alone(launch, buffers):
        launch.pin()  # to compile all configurations takes minutes
        return on_gpu(launch, buffers)

    monkeypatch.setattr(call, "_on_gpu", first_alone)
    run = Run(case)
    f = jax.jit(run.grad).trace(*run.xs)
    text = f.lower(lowering_platforms=("cuda",)).as_text()
    assert "triton_kernel_call" in text
    assert "callback" not in text


@pytest.mark.parametrize("package", ["liger-kernel", "fla-core"])
def test_the_page_says_how_many_run(package):
    page = Path(__file__).parents[3] / "notebooks/guides/kernels.md"
    module = {"liger-kernel": "liger_kernel", "fla-core": "fla"}[package]
    cases = [c for c in CASES if c.path.startswith(module + ".")]
    version = importlib.metadata.version(package)
    text = page.read_text()
    names, _, counts = text[text.index("| package |") :].splitlines()[:3]
    said = dict(zip(names.split(" | "), counts.split(" | "), strict=True))
    n = len(cases)
    assert said[next(x for x in said if f"{package} {version}" in x)].startswith(
        f"{n} of {n}"
    )
