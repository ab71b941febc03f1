"""Functions whose rules use another Function, one inside the other.

Each level multiplies the one below by y. With `sin(x)` at the bottom, level n is
`sin(x) * y**n`. Its rules either call the level below or differentiate it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxfn

Fun = Callable[..., Any]


class Calls:
    """Rules that call the level below, which is the derivative by y divided by n."""

    @staticmethod
    def pull(below: Fun, n: int, x: Any, y: Any, g: Any) -> tuple[Any, Any]:
        return g * jnp.cos(x) * y**n, g * n * below(x, y)

    @staticmethod
    def push(below: Fun, n: int, x: Any, y: Any, x_t: Any, y_t: Any) -> Any:
        return x_t * jnp.cos(x) * y**n + y_t * n * below(x, y)


class Differentiates:
    """Rules that take the derivative of the level below."""

    @staticmethod
    def pull(below: Fun, n: int, x: Any, y: Any, g: Any) -> tuple[Any, Any]:
        z, pull_below = jax.vjp(below, x, y)
        x_g, y_g = pull_below(g * y)
        return x_g, y_g + g * z

    @staticmethod
    def push(below: Fun, n: int, x: Any, y: Any, x_t: Any, y_t: Any) -> Any:
        z, z_t = jax.jvp(below, (x, y), (x_t, y_t))
        return z_t * y + z * y_t


@dataclasses.dataclass(frozen=True)
class Below:
    """A level, as the one above uses it."""

    call: Fun
    rules: Any
    n: int

    def value(self, x: Any, y: Any) -> Any:
        return self.call(x, y) * y

    def pull(self, *args: Any) -> tuple[Any, Any]:
        return self.rules.pull(self.call, self.n, *args)

    def push(self, *args: Any) -> Any:
        return self.rules.push(self.call, self.n, *args)


def bare(below: Below) -> Fun:
    return lambda x, y: below.value(x, y)


def function(below: Below) -> Fun:
    class Level(jaxfn.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return below.value(x, y)

        @staticmethod
        def backward(ctx, g):
            return below.pull(*ctx.saved_tensors, g)

    return Level.apply


def both(below: Below) -> Fun:
    class Level(jaxfn.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            ctx.save_for_forward(x, y)
            return below.value(x, y)

        @staticmethod
        def backward(ctx, g):
            return below.pull(*ctx.saved_tensors, g)

        @staticmethod
        def jvp(ctx, x_t, y_t):
            return below.push(*ctx.saved_tensors, x_t, y_t)

    return Level.apply


def custom_vjp(below: Below) -> Fun:
    """With symbolic zeros, which tell as much as `ctx.needs_input_grad` does."""
    f = jax.custom_vjp(bare(below))

    def fwd(x, y):
        return f(x.value, y.value), (x.value, y.value)

    def bwd(res, g):
        if isinstance(g, jax.custom_derivatives.SymbolicZero):
            g = jnp.zeros(g.shape, g.dtype)
        return below.pull(*res, g)

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return f


def custom_jvp(below: Below) -> Fun:
    f = jax.custom_jvp(bare(below))

    @f.defjvp
    def push(primals, tangents):
        return f(*primals), below.push(*primals, *tangents)

    return f


LEVELS: dict[str, Callable[[Below], Fun]] = {
    "bare": bare,
    "Function": function,
    "Function, both": both,
    "custom_vjp": custom_vjp,
    "custom_jvp": custom_jvp,
}


def levels(name: str, depth: int, rules: Any) -> Fun:
    """Make new functions of one kind, one inside the other; return the outermost."""

    def call(x, y):
        return jnp.sin(x)

    for n in range(1, depth + 1):
        call = LEVELS[name](Below(call, rules, n))
    return call
