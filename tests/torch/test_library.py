"""Operations of `torch.library` in a rule: refused as a graph, right on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxfn.torch import TorchRefusal, from_torch

from .classes import torch_class

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
    return torch_class(lambda ctx, x: f(x), lambda ctx, g: 2 * f(g))


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


# ---- the operation itself


@torch.library.custom_op("jaxfn_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    """Scale, with a gradient that is wrong on purpose."""
    return x * by


def _save(ctx, inputs, output):
    x, ctx.by = inputs
    ctx.save_for_backward(x)


scaled.register_autograd(
    lambda ctx, g: (7 * g * ctx.by * ctx.saved_tensors[0], None), setup_context=_save
)


@scaled.register_vmap
def _(info, in_dims, x, by):
    return 100 * x * by, in_dims[0]


def test_an_operation_has_its_own_rules():
    op = from_torch(scaled)
    assert op.__name__ == "scaled"
    np.testing.assert_allclose(op.apply(X, 3.0), 3 * X)
    pulled = jax.jit(jax.grad(lambda x: op.apply(x, 3.0).sum()))(X)
    np.testing.assert_allclose(pulled, 21 * X)
    batch = jax.vmap(lambda x: op.apply(x, 3.0))(jnp.stack([X, X]))
    np.testing.assert_allclose(batch, 300 * jnp.stack([X, X]))


def test_an_operation_without_a_gradient_has_none():
    op = from_torch(tripled)
    np.testing.assert_allclose(op.apply(X), 3 * X)
    with pytest.raises(NotImplementedError, match="tripled"):
        jax.grad(lambda x: op.apply(x).sum())(X)


def test_an_operation_that_writes_is_refused():
    with pytest.raises(TorchRefusal, match=r"scale_into.*writes to its arguments"):
        from_torch(scale_into)
