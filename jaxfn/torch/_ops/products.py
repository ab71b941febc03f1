"""Products of matrices and vectors."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxfn.torch._ops.row import row, rows


def _product(fn: Any) -> Any:
    # In the precision that torch has on the CPU, wherever the program runs.
    def product(x: Any, y: Any, *_: Any) -> Any:
        if x.dtype == bool or jnp.issubdtype(x.dtype, jnp.integer):
            return fn(x, y)
        return fn(x, y, precision=lax.Precision.HIGHEST)

    return product


_matmul = _product(jnp.matmul)
rows(
    {
        "aten.mm aten.bmm aten.matmul aten.mv": _matmul,
        "aten.dot": _product(jnp.dot),
        "aten.vdot": _product(jnp.vdot),
        "aten.ger aten.outer": lambda x, y: x[:, None] * y[None, :],
    },
    promote="out",
)


def _scaled(value: Any, x: Any) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        value = int(value)  # as torch narrows it
    return x if value == 1 else value * x


@row("aten.addmm", "aten.baddbmm", "aten.addmv", promote="out")
def addmm(c: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Beta c + alpha x @ y; without c where beta is 0, even if it is nan."""
    product = _scaled(alpha, _matmul(x, y))
    return product if beta == 0 else _scaled(beta, c) + product


@row("aten.addbmm", promote="out")
def addbmm(c: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """The same with the sum of products."""
    product = _scaled(alpha, jnp.sum(_matmul(x, y), 0))
    return product if beta == 0 else _scaled(beta, c) + product


@row("aten.addr", promote="out")
def addr(c: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """The same with an outer product."""
    product = _scaled(alpha, x[:, None] * y[None, :])
    return product if beta == 0 else _scaled(beta, c) + product


@row("aten._trilinear", promote="out")
def trilinear(
    x: Any, y: Any, z: Any, x_new: Any, y_new: Any, z_new: Any, axes: Any, *_: Any
) -> Any:
    """The sum over `axes` of a product; each factor gets new axes first."""
    product = jnp.expand_dims(x, tuple(x_new)) * jnp.expand_dims(y, tuple(y_new))
    return jnp.sum(product * jnp.expand_dims(z, tuple(z_new)), tuple(axes))


@row("aten._int_mm")
def int_mm(x: Any, y: Any) -> Any:
    """The product of int8 matrices, in int32."""
    return jnp.matmul(x, y, preferred_element_type=jnp.int32)


@row("aten._scaled_mm", typed=True)
def scaled_mm(
    out: Any,
    x: Any,
    y: Any,
    scale_x: Any,
    scale_y: Any,
    bias: Any = None,
    scale_result: Any = None,
    *_: Any,
    **__: Any,
) -> Any:
    """The product of float8 matrices with their scales."""
    product = _matmul(x.astype(jnp.float32), y.astype(jnp.float32))
    product = product * scale_x * scale_y
    if bias is not None:
        product = product + bias.astype(jnp.float32)
    if scale_result is not None and "float8" in str(out.dtype):
        product = product * scale_result
    return product


@row("aten.linalg_cross")
def cross(x: Any, y: Any, *, dim: int = -1) -> Any:
    """The vector product."""
    x, y = jnp.broadcast_arrays(x, y)
    return jnp.cross(x, y, axis=dim)
