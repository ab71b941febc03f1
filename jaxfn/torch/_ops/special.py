"""Special functions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy import special as jsp

from jaxfn.torch._ops.row import row, rows


def _digamma(x: Any) -> Any:
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), lax.digamma(x))


def _zeta(x: Any, q: Any) -> Any:
    pole = (x == 1) | ((x > 1) & (q <= 0) & (q == jnp.floor(q)))
    return jnp.where(pole, jnp.inf, jnp.where(x < 1, jnp.nan, jsp.zeta(x, q)))


rows(
    {
        "aten.erf": lax.erf,
        "aten.erfc": lax.erfc,
        "aten.erfinv": lax.erf_inv,
        "aten.lgamma": lax.lgamma,
        "aten.digamma": _digamma,
        "aten.special_ndtri": jsp.ndtri,
        "aten.i0 aten.special_modified_bessel_i0": jsp.i0,
        "aten.special_i1 aten.special_modified_bessel_i1": jsp.i1,
        "aten.special_i0e": jsp.i0e,
        "aten.special_i1e": jsp.i1e,
        "aten.special_zeta": _zeta,
        "aten.igamma": jsp.gammainc,
        "aten.igammac": jsp.gammaincc,
    },
    promote="out",
    elementwise=True,
)


@row("aten.polygamma", elementwise=True)
def polygamma(n: int, x: Any) -> Any:
    """Return the derivative of digamma of order n."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = x.astype(jnp.float32)
    if n == 0:
        return _digamma(x)
    if n > 1:
        return jsp.polygamma(n, x)
    # JAX's result is wrong below 0. There the reflection formula helps, with y = 1 - x:
    #     polygamma(1, x) + polygamma(1, y) = (pi / sin(pi x))^2
    low = x < 0.5
    upper = jsp.polygamma(1, jnp.where(low, 1 - x, x))
    # The distance to the nearest integer has all digits, unlike pi x.
    sine = jnp.sin(jnp.pi * (x - jnp.round(x)))
    return jnp.where(low, (jnp.pi / sine) ** 2 - upper, upper)


@row("aten.special_erfcx", promote="out", elementwise=True)
def erfcx(x: Any) -> Any:
    """Return exp(x²) erfc(x), by a continued fraction if a factor leaves the range.

    For x > 2, it begins at the far end (Abramowitz and Stegun 7.1.14).
    """
    near = jnp.minimum(x, 2.0)
    far = jnp.maximum(x, 2.0)
    tail = far
    for k in range(60, 0, -1):
        tail = far + (k / 2) / tail
    asymptotic = 1 / (jnp.sqrt(jnp.pi).astype(x.dtype) * tail)
    return jnp.where(x < 2, jnp.exp(near * near) * lax.erfc(near), asymptotic)
