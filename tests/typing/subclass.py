"""A user's subclass with narrower signatures passes a strict type checker.

Not run as a test: pyright reads it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import jaxfn


class Narrow(jaxfn.Function):
    @staticmethod
    def forward(x: jax.Array, k: int = 2) -> jax.Array:
        return k * x

    @staticmethod
    def setup_context(
        ctx: jaxfn.BackwardCFunction, inputs: tuple[jax.Array, int], output: jax.Array
    ) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(output)
        ctx.k = inputs[1]

    @staticmethod
    @jaxfn.once_differentiable
    def backward(
        ctx: jaxfn.BackwardCFunction, grad: jax.Array
    ) -> tuple[jax.Array, None]:
        return ctx.k * grad, None

    @staticmethod
    def jvp(ctx: jaxfn.BackwardCFunction, t: jax.Array, _: None) -> jax.Array:
        return ctx.k * t

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, None], x: jax.Array, k: int
    ) -> tuple[jax.Array, int | None]:
        return k * x, in_dims[0]


class Combined(jaxfn.Function):
    generate_jvp_rule = True

    @staticmethod
    def forward(
        ctx: jaxfn.BackwardCFunction, x: jax.Array, y: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        ctx.save_for_backward(x, y)
        ctx.set_materialize_grads(False)
        return x, y

    @staticmethod
    def backward(
        ctx: jaxfn.BackwardCFunction, g: jax.Array | None, h: jax.Array | None
    ) -> tuple[jax.Array | None, jax.Array | None]:
        needs: tuple[bool, ...] = ctx.needs_input_grad
        return (g if needs[0] else None), h


grad: jax.Array = jax.grad(Narrow.apply)(jnp.ones(()))
out = jax.vmap(Combined.apply)(jnp.ones(3), jnp.ones(3))
