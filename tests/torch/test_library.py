"""Operations that a user registers by `torch.library`, called in a rule."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import Function

from jaxfn.torch import TorchRefusal, from_torch

X = jnp.asarray([0.5, -1.5, 2.0])


@torch.library.custom_op("jaxfn_tests::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@torch.library.custom_op("jaxfn_tests::scale_into", mutates_args={"out"})
def scale_into(x: torch.Tensor, by: float, out: torch.Tensor) -> None:
    assert type(by) is float  # an int becomes one, as torch.library says
    out[1:] = x[1:] * by


@torch.library.custom_op("jaxfn_tests::pair", mutates_args=())
def pair(x: torch.Tensor, by: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return tripled(x).sum(), x**by


@torch.library.custom_op("jaxfn_tests::on_cpu", mutates_args=(), device_types="cpu")
def on_cpu(x: torch.Tensor) -> torch.Tensor:
    return x * 7


@on_cpu.register_kernel("cuda")
def _(x):
    return x * 100


@torch.library.custom_op("jaxfn_tests::through", mutates_args=())
def through(x: torch.Tensor) -> torch.Tensor:
    return x.round()


@torch.library.custom_op("jaxfn_tests::exp_detached", mutates_args=())
def exp_detached(x: torch.Tensor) -> torch.Tensor:
    return x.detach().exp()


through.register_fake(torch.empty_like)
through.register_autograd(lambda ctx, g: 11 * g)


@torch.library.custom_op("jaxfn_tests::in_half", mutates_args=())
def in_half(x: torch.Tensor) -> torch.Tensor:
    return x.round()


in_half.register_fake(torch.empty_like)
in_half.register_autocast("cpu", torch.bfloat16)


def into(x):
    out = torch.zeros_like(x)
    assert scale_into(x, 5, out) is None
    return out


def packet(x):
    total, squares = torch.ops.jaxfn_tests.pair(x)
    return total + squares + torch.ops.jaxfn_tests.pair.default(x, 3)[1]


def made(f):
    """f, with a gradient that is wrong on purpose, by the same operation."""

    class Made(Function):
        @staticmethod
        def forward(ctx, x):
            return f(x)

        @staticmethod
        def backward(ctx, g):
            return 2 * f(g)

    return Made


@pytest.mark.parametrize("fallback", [None, "host"])
@pytest.mark.parametrize("f", [tripled, into, packet, on_cpu])
def test_its_function_runs_in_place(f, fallback):
    apply = from_torch(made(f), fallback=fallback).apply
    want = f(torch.tensor(X.tolist())).numpy()
    np.testing.assert_allclose(apply(X), want, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(apply)(X), want, rtol=1e-6)
    pulled = 2 * f(torch.ones(3)).numpy()
    np.testing.assert_allclose(
        jax.jit(jax.grad(lambda x: apply(x).sum()))(X), pulled, rtol=1e-6
    )


def test_a_saved_result_keeps_its_derivative():
    """As that of any forward, in which torch runs without autograd."""

    class Exp(Function):
        @staticmethod
        def forward(ctx, x):
            y = exp_detached(x)
            ctx.save_for_backward(y)
            return y.clone()

        @staticmethod
        def backward(ctx, g):
            return 3 * g * ctx.saved_tensors[0]

    f = jax.grad(lambda x: from_torch(Exp).apply(x).sum())
    np.testing.assert_allclose(f(X), 3 * jnp.exp(X), rtol=1e-6)
    second = jax.grad(lambda x: f(x).sum())(X)
    np.testing.assert_allclose(second, 3 * jnp.exp(X), rtol=1e-6)


@pytest.mark.parametrize("op", [through, in_half])
def test_with_a_gradient_or_autocast_of_its_own_it_is_refused(op):
    """Its function does not show them, and a second derivative needs the gradient."""
    with pytest.raises(TorchRefusal, match="gradient of its own, with autocast.*host"):
        from_torch(made(op)).apply(X)
    found = from_torch(made(op), fallback="host").apply(X)
    np.testing.assert_array_equal(found, jnp.round(X))
