"""What Functions of published packages do around a launch, each in small."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch.autograd import Function

import jaxfn.torch as jt
from jaxfn.torch._triton import operation
from tests.torch.kernels.functions import StraightThrough, scale_kernel, scaled
from tests.torch.ports import original


@torch.compile(backend="eager")
def gelu_grad(g, x):
    return g * (torch.sigmoid(x) + x)


# 2x, whose backward calls a function that the module has under torch.compile.
Compiled = original("Compiled", lambda x: scaled(x, 2.0), gelu_grad)
CompiledAlone = original("CompiledAlone", lambda x: 2 * x, gelu_grad)


@pytest.mark.parametrize("cls", [Compiled, CompiledAlone])
def test_a_function_under_torch_compile(cls):
    x = jnp.linspace(-1, 1, 11)
    got = jax.grad(lambda x: jt.from_torch(cls).apply(x).sum())(x)
    np.testing.assert_allclose(got, jax.nn.sigmoid(x) + x, rtol=1e-6)


class Rows(Function):
    """2x, with a grid that is a product which torch computes of sizes."""

    @staticmethod
    def forward(ctx, x):
        *batch, n = x.shape
        rows = int(torch.prod(torch.tensor(batch)))
        out = torch.empty_like(x)
        scale_kernel[(rows * n // 8,)](x, out, x.numel(), 2.0, BLOCK=8)
        return out

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def test_sizes_that_torch_multiplies_are_known():
    x = jnp.arange(48.0).reshape(2, 3, 8)
    np.testing.assert_array_equal(jt.from_torch(Rows).apply(x), 2 * x)


class Inner(NamedTuple):
    total: torch.Tensor
    number: int


class Both(NamedTuple):
    double: torch.Tensor
    triple: torch.Tensor
    rest: Inner


class Named(Function):
    """2x and 3y in a named tuple, beside one without gradients."""

    @staticmethod
    def forward(x, y):
        return Both(scaled(x, 2.0), scaled(y, 3.0), Inner(x.sum(), 5))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.number = output.rest.number

    @staticmethod
    def backward(ctx, g, h, _):
        assert ctx.number == 5
        return scaled(g, 2.0), scaled(h, 3.0)


def test_outputs_in_a_named_tuple_have_gradients():
    named = jt.from_torch(Named)

    def loss(x, y):
        double, triple, rest = named.apply(x, y)
        return double.sum() + 10 * triple.sum() + rest.total

    x = jnp.arange(4.0)
    for f in (jax.grad(loss, (0, 1)), jax.jit(jax.grad(loss, (0, 1)))):
        assert [g.tolist() for g in f(x, x)] == [[2.0] * 4, [30.0] * 4]


class Mean(Function):
    """x over its number of entries that are not zero; 7 everywhere if there is none."""

    @staticmethod
    def forward(ctx, x):
        n = (x != 0).sum().item()
        ctx.n = n
        if n == 0:
            return torch.full_like(x, 7.0)
        return scaled(x, 1.0) / n

    @staticmethod
    def backward(ctx, g):
        return scaled(g, 1.0) / ctx.n if ctx.n else g


@pytest.mark.parametrize("jit", [False, True])
def test_a_condition_on_a_number_that_is_a_value(jit):
    mean = jt.from_torch(Mean)
    value_and_grad = jax.value_and_grad(lambda x: (w * mean.apply(x)).sum())
    w = jnp.array([1.0, 2.0, 3.0])
    f = jax.jit(value_and_grad) if jit else value_and_grad
    value, grad = f(jnp.array([4.0, 0.0, 2.0]))
    assert (value, grad.tolist()) == (5.0, [0.5, 1.0, 1.5])
    value, grad = f(jnp.zeros(3))
    assert (value, grad.tolist()) == (42.0, [1.0, 2.0, 3.0])


CONFIGS = [triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 8})]


@triton.autotune(CONFIGS, key=["n"])
@triton.jit
def partial_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + tl.program_id(0), tl.sum(tl.load(x + i, mask=i < n, other=0.0)))


def partial(x):
    out = torch.empty(triton.cdiv(len(x), 4), device=x.device)
    grid = lambda meta: (triton.cdiv(len(x), meta["BLOCK"]),)  # noqa: E731
    partial_kernel[grid](x, out, len(x))
    return out


class Asks(Function):
    """The sum of x: of as many parts as there are with the chosen configuration."""

    @staticmethod
    def forward(ctx, x):
        out = partial(x)
        block = partial_kernel.best_config.kwargs["BLOCK"]
        return out[: triton.cdiv(len(x), block)].sum()

    @staticmethod
    def backward(ctx, g):
        return g.expand(20)


class DoesNotAsk(Function):
    """The parts; which ones is left open."""

    @staticmethod
    def forward(ctx, x):
        return partial(x)


@pytest.mark.parametrize(("cls", "count"), [(Asks, 1), (DoesNotAsk, 2)])
def test_a_configuration_that_is_asked_for_is_the_one_that_runs(
    cls, count, monkeypatch
):
    seen = []

    def run(launch, buffers, original=operation.run_launch):
        seen.append(len(launch.usable))
        return original(launch, buffers)

    monkeypatch.setattr(operation, "run_launch", run)
    got = jt.from_torch(cls).apply(jnp.arange(20.0))
    assert got.sum() == 190.0
    assert seen == [count]
    assert "best_config" not in vars(type(partial_kernel))


class NeedsGpu(StraightThrough):
    """x over the number of its entries that are not zero, on a GPU alone."""

    @staticmethod
    def forward(ctx, x):
        n = (x != 0).sum().item()
        if n == 0:
            return torch.zeros_like(x)
        if not x.is_cuda:
            raise RuntimeError("needs a GPU")
        return scaled(x, 1.0) / n


class BackwardNeedsGpu(Function):
    """2x, whose backward runs on a GPU alone."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        assert g.is_cuda
        return scaled(g, 2.0)


def test_a_rule_that_raises_without_a_gpu_sees_one():
    f = jax.jit(jt.from_torch(NeedsGpu).apply)
    assert f(jnp.array([4.0, 0.0, 2.0])).tolist() == [2.0, 0.0, 1.0]
    assert f(jnp.zeros(3)).tolist() == [0.0] * 3
    backward = jt.from_torch(BackwardNeedsGpu)
    grad = jax.grad(lambda x: backward.apply(x).sum())(jnp.ones(2))
    assert grad.tolist() == [2.0, 2.0]


def cleared(names):
    return lambda arguments: [arguments[name].zero_() for name in names]


@triton.autotune(
    [triton.Config({"BLOCK": n}, pre_hook=cleared(["y"])) for n in (4, 8)], key=["n"]
)
@triton.jit
def sum_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y, tl.sum(tl.load(x + i, mask=i < n, other=0.0)))


class Sum(Function):
    """The sum of x; a hook, made anew for each configuration, clears the output."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty(1, device=x.device)
        sum_kernel[lambda meta: (triton.cdiv(len(x), meta["BLOCK"]),)](x, out, len(x))
        return out


def test_hooks_made_of_the_same_list_are_the_same():
    assert jt.from_torch(Sum).apply(jnp.arange(20.0)).tolist() == [190.0]
