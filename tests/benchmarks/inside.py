"""Functions whose rules call another Function, one inside the other.

Each level multiplies the one below by y. With `sin(x)` at the bottom, level n is
`sin(x) * y**n`. The derivative with respect to y is n times the level below, so forward
and each rule call the level below once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxfn

Fun = Callable[..., Any]
Level = Callable[[Fun, int], Fun]


def bare(below: Fun, n: int) -> Fun:
    def level(x, y):
        return below(x, y) * y

    return level


def _pull(below: Fun, n: int, x: Any, y: Any, g: Any) -> tuple[Any, Any]:
    return g * jnp.cos(x) * y**n, g * n * below(x, y)


def _push(below: Fun, n: int, x: Any, y: Any, x_t: Any, y_t: Any) -> Any:
    return x_t * jnp.cos(x) * y**n + y_t * n * below(x, y)


def function(below: Fun, n: int) -> Fun:
    class Level(jaxfn.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return below(x, y) * y

        @staticmethod
        def backward(ctx, g):
            return _pull(below, n, *ctx.saved_tensors, g)

    return Level.apply


def both(below: Fun, n: int) -> Fun:
    class Level(jaxfn.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            ctx.save_for_forward(x, y)
            return below(x, y) * y

        @staticmethod
        def backward(ctx, g):
            return _pull(below, n, *ctx.saved_tensors, g)

        @staticmethod
        def jvp(ctx, x_t, y_t):
            return _push(below, n, *ctx.saved_tensors, x_t, y_t)

    return Level.apply


def custom_vjp(below: Fun, n: int) -> Fun:
    """With symbolic zeros, which tell as much as `ctx.needs_input_grad` does."""
    f = jax.custom_vjp(bare(below, n))

    def fwd(x, y):
        return f(x.value, y.value), (x.value, y.value)

    def bwd(res, g):
        if isinstance(g, jax.custom_derivatives.SymbolicZero):
            g = jnp.zeros(g.shape, g.dtype)
        return _pull(below, n, *res, g)

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return f


def custom_jvp(below: Fun, n: int) -> Fun:
    f = jax.custom_jvp(bare(below, n))

    @f.defjvp
    def push(primals, tangents):
        return f(*primals), _push(below, n, *primals, *tangents)

    return f


LEVELS: dict[str, Level] = {
    "bare": bare,
    "Function": function,
    "Function, both": both,
    "custom_vjp": custom_vjp,
    "custom_jvp": custom_jvp,
}


def levels(name: str, depth: int) -> Fun:
    """New functions of one kind, so many inside each other; the outermost."""

    def below(x, y):
        return jnp.sin(x)

    for n in range(1, depth + 1):
        below = LEVELS[name](below, n)
    return below
