"""`ctx.set_output_grad_dtype` (torch 2.14), `ctx.input_grad_buffers` (2.15)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd.function import FunctionCtx

from jaxfn.torch import explain, from_torch
from tests.build import in_style

from .classes import torch_class

has_dtypes = pytest.mark.skipif(
    not hasattr(FunctionCtx, "set_output_grad_dtype"), reason="since torch 2.14"
)
has_buffers = pytest.mark.skipif(
    not hasattr(FunctionCtx, "input_grad_buffers"), reason="since torch 2.15"
)


def two_outputs(*dtypes, separate=False, materialize=True):
    """A half and a float output; backward adds what only float32 can tell apart."""

    def note(ctx, inputs, output):
        ctx.set_output_grad_dtype(*dtypes)
        ctx.set_materialize_grads(materialize)

    def backward(ctx, a, b):
        small = 0 if a is None else (a + 1e-4).float() * (a.dtype.itemsize / 4)
        return small + (0 if b is None else 2 * b)

    style = "separate" if separate else "combined"
    rules = in_style(style, lambda x: (x.half(), x * 2), note)
    return torch_class(backward=backward, **rules)


def theirs(cls, x, used):
    x = torch.tensor(x, requires_grad=True)
    total = sum(cls.apply(x)[i].float().sum() for i in used)
    return torch.autograd.grad(total, x)[0].numpy()


@has_dtypes
@pytest.mark.parametrize("separate", [False, True], ids=["combined", "separate"])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("materialize", [True, False])
@pytest.mark.parametrize(
    "dtypes", [(torch.float32, None), (torch.float16, torch.float32), (None, None)]
)
def test_backward_gets_the_dtype(dtypes, materialize, used, separate):
    cls = two_outputs(*dtypes, separate=separate, materialize=materialize)
    apply, x = from_torch(cls).apply, np.array([0.5, -1.5], np.float32)

    def total(x):
        return sum(apply(x)[i].astype(jnp.float32).sum() for i in used)

    wanted = theirs(cls, x, used)
    assert np.array_equal(jax.grad(total)(x), wanted)
    assert np.array_equal(jax.jit(jax.grad(total))(x), wanted)
    assert np.array_equal(jax.vmap(jax.grad(total))(x), wanted)
    assert np.array_equal(jax.grad(lambda x: jax.grad(total)(x).sum())(x), 0 * wanted)


@has_dtypes
@pytest.mark.parametrize(
    ("dtypes", "match"),
    [
        ((torch.float32,), "returned 2 values but 1 declarations were provided"),
        ((torch.float32, 3), "expects each declaration to be a torch.dtype or None"),
    ],
)
def test_what_torch_refuses(dtypes, match):
    cls = two_outputs(*dtypes)
    for call in (lambda: cls.apply(torch.ones(2, requires_grad=True)),
                 lambda: from_torch(cls).apply(jnp.ones(2))):  # fmt: skip
        with pytest.raises((RuntimeError, TypeError), match=match):
            call()


@has_dtypes
def test_twice_and_without_a_derivative():
    def twice(ctx, x):
        ctx.set_output_grad_dtype(None)
        ctx.set_output_grad_dtype(None)
        return x * 1

    def marked(ctx, x):
        y = x * 1
        ctx.mark_non_differentiable(y)
        ctx.set_output_grad_dtype(torch.float32)
        return y

    for rule, match in ((twice, "can only be called once"), (marked, "for output 0")):
        cls = torch_class(rule)
        with pytest.raises(RuntimeError, match=match):
            cls.apply(torch.ones(2, requires_grad=True))
        with pytest.raises(RuntimeError, match=match):
            from_torch(cls).apply(jnp.ones(2))


@has_dtypes
def test_explain_knows_the_dtype():
    report = explain(two_outputs(torch.float32, None), jnp.ones(2))
    assert report.ok, report


@has_buffers
@pytest.mark.parametrize("fallback", [None, "host"])
def test_there_are_no_buffers(fallback):
    def backward(ctx, g):
        assert ctx.input_grad_buffers == (None, None)
        return 3 * g, None

    asks = torch_class(lambda ctx, x, k: x * k, backward)
    apply = from_torch(asks, fallback=fallback).apply
    assert jax.grad(lambda x: apply(x, 2.0).sum())(jnp.ones(2)).tolist() == [3, 3]


@has_buffers
def test_forward_has_none():
    asks = torch_class(lambda ctx, x: x * len(ctx.input_grad_buffers))
    with pytest.raises(RuntimeError, match="input_grad_buffers can only be accessed"):
        asks.apply(torch.ones(2, requires_grad=True))
    with pytest.raises(RuntimeError, match="input_grad_buffers can only be accessed"):
        from_torch(asks).apply(jnp.ones(2))
