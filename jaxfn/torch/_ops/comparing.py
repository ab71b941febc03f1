"""Comparisons, choices and bounds."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxfn.torch._ops.row import row, rows

rows(
    {
        "aten.eq": jnp.equal,
        "aten.ne": jnp.not_equal,
        "aten.lt": jnp.less,
        "aten.le": jnp.less_equal,
        "aten.gt": jnp.greater,
        "aten.ge": jnp.greater_equal,
    },
    promote="common",
    elementwise=True,
)
rows(
    {
        "aten.logical_and": jnp.logical_and,
        "aten.logical_or": jnp.logical_or,
        "aten.logical_xor": jnp.logical_xor,
    },
    elementwise=True,
)


@row("aten.where", elementwise=True, typed=True)
def where(out: Any, condition: Any, x: Any, y: Any) -> Any:
    """X where the condition holds, y elsewhere."""
    x, y = (jnp.asarray(v).astype(out.dtype) for v in (x, y))
    return jnp.where(condition, x, y)


@row("aten.clamp", elementwise=True, typed=True)
def clamp(out: Any, x: Any, min: Any = None, max: Any = None) -> Any:
    """Between two bounds; above all the upper one; nan stays."""
    low, high = (
        None if bound is None else jnp.asarray(bound).astype(out.dtype)
        for bound in (min, max)
    )
    return jnp.clip(x.astype(out.dtype), low, high)


row("aten.hardtanh", elementwise=True, typed=True)(
    lambda out, x, low=-1.0, high=1.0: clamp(out, x, low, high)
)
