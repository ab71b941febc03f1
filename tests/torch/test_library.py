"""Operations of `torch.library` in a rule: refused as a graph, right on the host."""

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


@torch.library.custom_op("jaxfn_tests::rounded", mutates_args=())
def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.round()


@torch.library.custom_op("jaxfn_tests::scale_into", mutates_args={"out"})
def scale_into(x: torch.Tensor, by: float, out: torch.Tensor) -> None:
    out[1:] = x[1:] * by


rounded.register_fake(torch.empty_like)
rounded.register_autograd(lambda ctx, g: 11 * g)
LIBRARY = torch.library.Library("jaxfn_tests_too", "DEF")
LIBRARY.define("on_cpu(Tensor x) -> Tensor")
LIBRARY.impl("on_cpu", lambda x: x * 7, "CPU")


def into(x):
    out = torch.zeros_like(x)
    scale_into(x, 5, out)
    return out


def on_cpu(x):
    return torch.ops.jaxfn_tests_too.on_cpu(x)


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


@pytest.mark.parametrize("f", [tripled, rounded, into, on_cpu])
def test_it_is_refused_as_a_graph_and_runs_on_the_host(f):
    see = r"jaxfn can't see which operations.*without torch\.library.*host"
    with pytest.raises(TorchRefusal, match=rf"test_library\.py:\d+.*{see}"):
        from_torch(made(f)).apply(X)
    apply = from_torch(made(f), fallback="host").apply
    want = f(torch.tensor(X.tolist())).numpy()
    np.testing.assert_allclose(apply(X), want, rtol=1e-6)
    pulled = jax.jit(jax.grad(lambda x: apply(x).sum()))(X)
    np.testing.assert_allclose(pulled, 2 * f(torch.ones(3)).numpy(), rtol=1e-6)
