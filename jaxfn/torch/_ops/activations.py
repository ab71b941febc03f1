"""Activations that the decompositions leave."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxfn.torch._ops.distances import by_vjp
from jaxfn.torch._ops.row import row


@row("aten.elu", promote="out", elementwise=True)
def elu(x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    """Scaled exponential on the negative side."""
    negative = jnp.expm1(jnp.minimum(x, 0) * input_scale) * alpha
    return jnp.where(x <= 0, negative, x) * scale


@row("aten.gelu", promote="out", elementwise=True)
def gelu(x: Any, *, approximate: str = "none") -> Any:
    """X times the normal distribution at x."""
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@row("aten.gelu_backward", promote="out", elementwise=True)
def gelu_backward(g: Any, x: Any, *, approximate: str = "none") -> Any:
    """The gradient of gelu."""
    forward = lambda x: jax.nn.gelu(x, approximate=approximate == "tanh")  # noqa: E731
    return by_vjp(forward, (x,), g)[0]


@row("aten.leaky_relu", promote="out", elementwise=True)
def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """x, times a slope on the negative side."""
    return jnp.where(x > 0, x, x * jnp.asarray(negative_slope, x.dtype))


@row("aten.threshold", elementwise=True)
def threshold(x: Any, at: Any, value: Any) -> Any:
    """`value` where x is not above `at`."""
    return jnp.where(x <= at, jnp.asarray(value, x.dtype), x)


@row("aten.softplus", promote="out", elementwise=True)
def softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    """A smooth relu, linear above the threshold."""
    return jnp.where(x * beta > threshold, x, jnp.log1p(jnp.exp(x * beta)) / beta)


@row("aten.silu", promote="out", elementwise=True)
def silu(x: Any) -> Any:
    """X times its sigmoid."""
    return x * jax.nn.sigmoid(x)


@row("aten.softshrink_backward")
def softshrink_backward(g: Any, x: Any, bound: float = 0.5) -> Any:
    """The gradient, outside of the bounds."""
    return jnp.where(jnp.abs(x) <= bound, 0, g)
