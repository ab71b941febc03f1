"""Comparisons, choices and bounds."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxfn.torch._base import torch
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
    """Select from x if the condition holds, else from y."""
    x, y = (jnp.asarray(v).astype(out.dtype) for v in (x, y))
    return jnp.where(condition, x, y)


# ---- bounds

# Before torch 2.15, -1 as a bound of uint8 is 255. Since then torch ignores it.
_WRAPS_BOUNDS = bool(torch.zeros(1, dtype=torch.uint8).clamp(min=-1))


@row("aten.clamp", elementwise=True, typed=True)
def clamp(out: Any, x: Any, min: Any = None, max: Any = None) -> Any:
    """Clip to two bounds. The upper bound wins, and nan stays nan."""
    x = x.astype(out.dtype)
    if min is not None and not _is_ignored(min, out.dtype, below=True):
        low = jnp.asarray(min).astype(out.dtype)
        x = jnp.maximum(x, low)
    if max is not None and not _is_ignored(max, out.dtype, below=False):
        high = jnp.asarray(max).astype(out.dtype)
        x = jnp.minimum(x, high)
    return x


def _is_ignored(bound: Any, dtype: Any, *, below: bool) -> bool:
    """Return whether torch ignores this bound, which is outside the dtype's range."""
    if type(bound) is not int or dtype.kind not in "iu":
        return False
    info = jnp.iinfo(dtype)
    if info.min <= bound <= info.max:
        return False
    if _WRAPS_BOUNDS and dtype.kind == "u" and -info.max <= bound < 0:
        return False
    if not _WRAPS_BOUNDS and (bound < info.min) == below:
        return True
    raise NotImplementedError(f"the bound {bound} for {dtype}")


row("aten.hardtanh", elementwise=True, typed=True)(
    lambda out, x, low=-1.0, high=1.0: clamp(out, x, low, high)
)
