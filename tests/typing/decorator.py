"""Checked by pyright, never run: a decorated function keeps its types."""

from typing import assert_type

import jax

import jaxfn


@jaxfn.custom_function
def scale(x: jax.Array, k: float = 2.0, *, name: str = "scale") -> jax.Array:
    return k * x


def bwd(residuals: float, g: jax.Array) -> tuple[jax.Array, None]:
    return residuals * g, None


@scale.backward
def backward(ctx: jaxfn.FunctionCtx, g: jax.Array) -> tuple[jax.Array, None, None]:
    return g, None, None


class Model:
    @jaxfn.custom_function
    def method(self, x: jax.Array) -> jax.Array:
        return x


def use(x: jax.Array) -> None:
    assert_type(scale(x), jax.Array)
    assert_type(scale(x, k=3.0, name="three"), jax.Array)
    scale(x, "three")  # pyright: ignore[reportArgumentType]
    scale(x, size=3)  # pyright: ignore[reportCallIssue]
    assert_type(Model().method(x), jax.Array)
