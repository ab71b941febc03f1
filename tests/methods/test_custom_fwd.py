"""A forward that `custom_fwd` decorates, and a backward that `custom_bwd` does."""

from __future__ import annotations

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn


class Scale(jaxfn.Function):
    @staticmethod
    @jaxfn.amp.custom_fwd(device_type="cuda", cast_inputs=jnp.bfloat16)
    def forward(ctx, x, options):
        return x * len(options)


@pytest.mark.parametrize("options", [{1: 0, "a": 0}, "ab", [None, 1.0]])
def test_arguments_that_are_no_arrays_pass_as_they_are(options):
    x = np.float32(3)
    with jaxfn.amp.autocast("cuda"):
        y = Scale.apply(x, options)
    assert y.dtype == jnp.bfloat16
    assert y == 6


# ---- above and below @staticmethod and @classmethod

TO_HALF = jaxfn.amp.custom_fwd(device_type="cuda", cast_inputs=jnp.bfloat16)
AS_IT_IS = jaxfn.amp.custom_fwd(device_type="cuda")
BACKWARD = jaxfn.amp.custom_bwd(device_type="cuda")
ONCE = jaxfn.once_differentiable
PRODUCT = {
    "combined": lambda ctx, x, y: (ctx.save_for_backward(x, y), x * y)[1],
    "separate": lambda x, y: x * y,
}
KINDS = {"static": staticmethod, "class": classmethod, "none": lambda rule: rule}


def decorated(rule, kind, decorators, order):
    """Decorate a rule; `order` says where KINDS[kind] stands among the decorators."""

    def with_class(cls, *args):
        assert issubclass(cls, jaxfn.Function)
        return rule(*args)

    made = with_class if kind == "class" else lambda *args: rule(*args)
    above = list(decorators)
    above.insert(order, KINDS[kind])
    return functools.reduce(lambda f, decorator: decorator(f), reversed(above), made)


def product(style, kinds, forward, backward, order):
    """A product whose backward gives, on `seen`, what it sees of autocast."""
    seen = []

    def rule(ctx, g):
        x, y = ctx.saved_tensors
        seen.append((x.dtype, jaxfn.amp.is_autocast_enabled()))
        return g * y, g * x

    members = {
        "forward": decorated(PRODUCT[style], kinds[0], forward, order),
        "backward": decorated(rule, kinds[1], backward, order),
    }
    if style == "separate":
        members["setup_context"] = lambda ctx, xs, out: ctx.save_for_backward(*xs)
    base = type("Base", (jaxfn.Function,), members)
    return type("Product", (base,), {}), seen


@pytest.mark.parametrize("style", PRODUCT)
@pytest.mark.parametrize("kinds", [(a, b) for a in KINDS for b in KINDS], ids="-".join)
@pytest.mark.parametrize("forward", [TO_HALF, AS_IT_IS], ids=["cast", "plain"])
@pytest.mark.parametrize("backward", [[BACKWARD], [ONCE, BACKWARD], [BACKWARD, ONCE]])
def test_any_order_of_decorators(style, kinds, forward, backward):
    x, y = jnp.float32(3), jnp.float32(2)
    for order, on in itertools.product(range(len(backward) + 1), (False, True)):
        f, seen = product(style, kinds, [forward], backward, order)
        with jaxfn.amp.autocast("cuda") if on else contextlib.nullcontext():
            out, pull = jax.vjp(f.apply, x, y)
        dtype = jnp.bfloat16 if on and forward is TO_HALF else jnp.float32
        assert (out, out.dtype) == (6, dtype)
        assert pull(jnp.ones_like(out)) == (2, 3)
        assert seen == [(dtype, on and forward is AS_IT_IS)]
        if ONCE in backward:
            with pytest.raises(RuntimeError, match="once_differentiable"):
                jax.grad(jax.grad(f.apply))(x, y)


@pytest.mark.parametrize("order", [0, 1])
def test_a_class_method_without_custom_fwd_is_named(order):
    f, _ = product("combined", ("class", "class"), [], [BACKWARD], order)
    with pytest.raises(AttributeError, match="policy of `Product.forward`: decorate"):
        jax.grad(f.apply)(jnp.float32(3), jnp.float32(2))
