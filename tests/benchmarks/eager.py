"""Eager calls of a two-array elementwise Function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxfn

X, Y = jnp.linspace(0, 1, 16), jnp.linspace(1, 2, 16)


def bare(x: Any, y: Any) -> Any:
    """The function without derivatives of its own."""
    return jnp.sin(x) * y


class Function(jaxfn.Function):
    """The same as a Function."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        return bare(x, y)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        return g * jnp.cos(x) * y, g * jnp.sin(x)


by_hand = jax.custom_vjp(bare)


def _fwd(x: Any, y: Any) -> Any:
    return by_hand(x.value, y.value), (x.value, y.value)


def _bwd(res: Any, g: Any) -> Any:
    x, y = res
    return g * jnp.cos(x) * y, g * jnp.sin(x)


by_hand.defvjp(_fwd, _bwd, symbolic_zeros=True)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "bare function": bare,
    "Function.apply": Function.apply,
    "jax.custom_vjp": by_hand,
}


def calls() -> dict[str, Callable[[], Any]]:
    """A plain eager call of each."""
    return {name: lambda f=f: f(X, Y) for name, f in FUNCTIONS.items()}


def gradients() -> dict[str, Callable[[], Any]]:
    """An eager gradient of each."""
    return {
        name: lambda f=f: jax.grad(lambda x, y: f(x, y).sum(), (0, 1))(X, Y)
        for name, f in FUNCTIONS.items()
    }
