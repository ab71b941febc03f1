"""Products of matrices and vectors."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxfn.torch._ops.row import row


@row("aten.mm", "aten.bmm", promote="out")
def matmul(x: Any, y: Any, *_: Any) -> Any:
    """Multiply matrices, in the precision of torch on the CPU."""
    inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST if inexact else None)


def _scaled(value: Any, x: Any) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        value = int(value)  # torch does so too
    return x if value == 1 else value * x


@row("aten.addmm", "aten.addmv", promote="out")
def addmm(c: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return beta c + alpha x @ y; if beta is 0, a nan in c has no effect."""
    product = _scaled(alpha, matmul(x, y))
    return product if beta == 0 else _scaled(beta, c) + product


@row("aten.addbmm", promote="out")
def addbmm(c: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return beta c + alpha times the sum of all x @ y."""
    product = _scaled(alpha, jnp.sum(matmul(x, y), 0))
    return product if beta == 0 else _scaled(beta, c) + product


@row("aten._trilinear", promote="out")
def trilinear(
    x: Any, y: Any, z: Any, x_new: Any, y_new: Any, z_new: Any, axes: Any, *_: Any
) -> Any:
    """Return the sum over `axes` of a product, after adding new axes to each factor."""
    product = jnp.expand_dims(x, tuple(x_new)) * jnp.expand_dims(y, tuple(y_new))
    return jnp.sum(product * jnp.expand_dims(z, tuple(z_new)), tuple(axes))


@row("aten._int_mm")
def int_mm(x: Any, y: Any) -> Any:
    """Multiply int8 matrices in int32."""
    return jnp.matmul(x, y, preferred_element_type=jnp.int32)


@row("aten._scaled_mm", typed=True)
def scaled_mm(
    out: Any, x: Any, y: Any, scale_x: Any, scale_y: Any, bias: Any = None,
    scale_result: Any = None, *_: Any, **__: Any,
) -> Any:  # fmt: skip
    """Multiply float8 matrices and their scales."""
    product = matmul(x.astype(jnp.float32), y.astype(jnp.float32))
    product = product * scale_x * scale_y
    if bias is not None:
        product = product + bias.astype(jnp.float32)
    if scale_result is not None and "float8" in str(out.dtype):
        product = product * scale_result
    return product
