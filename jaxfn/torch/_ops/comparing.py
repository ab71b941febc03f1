"""Comparisons, choices, bounds and order statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

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


def _sorted(x: Any, dim: int, descending: bool = False) -> tuple[Any, Any]:
    """Sort, and return the old positions too. It is stable, and nan is greatest."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    at = jnp.argsort(x, axis=dim, stable=True, descending=descending)
    return jnp.take_along_axis(x, at, dim), at


@row("aten.sort.default", typed=True, lazy=True)
def sort(out: Any, x: Any, dim: int = -1, descending: bool = False) -> Any:
    """Sort along a dimension, and return the old positions too."""
    if out[1] is not None or x.ndim == 0:
        return _sorted(x, dim, descending)
    return jnp.sort(x, axis=dim, descending=descending), None


row("aten.sort.stable", typed=True, lazy=True)(
    lambda out, x, *, stable=None, dim=-1, descending=False: sort(
        out, x, dim, descending
    )
)


@row("aten.topk")
def topk(
    x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    """Return the k greatest (or least) along a dimension, and their positions."""
    del sorted
    found = _sorted(x, dim, largest)
    if x.ndim == 0:
        return found
    return tuple(lax.slice_in_dim(v, 0, k, axis=dim) for v in found)


def _nth(x: Any, dim: int, keepdim: bool, which: Callable[[Any, int], Any]) -> Any:
    """Return the element of this rank along a dimension, and its position.

    `which` computes the rank from the number of nan, which are last, and the size.
    """
    if x.ndim == 0:
        return _sorted(x, dim)
    nans = jnp.sum(x != x, axis=dim, keepdims=True)
    n = jnp.broadcast_to(which(nans, x.shape[dim]), nans.shape)
    found = [jnp.take_along_axis(v, n, dim) for v in _sorted(x, dim)]
    return tuple(found if keepdim else [jnp.squeeze(v, dim) for v in found])


@row("aten.kthvalue")
def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the k-th least along a dimension, and its position."""
    return _nth(x, dim, keepdim, lambda *_: jnp.asarray(k - 1))


@row("aten.median.dim")
def median(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the lower median along a dimension, or its first nan, and its position."""
    return _nth(
        x, dim, keepdim, lambda n, size: jnp.where(n > 0, size - n, (size - 1) // 2)
    )


@row("aten.nanmedian.dim")
def nanmedian(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the lower median of the numbers that are not nan, and its position."""
    return _nth(x, dim, keepdim, lambda n, size: jnp.maximum(size - n - 1, 0) // 2)


row("aten.median.default")(lambda x: median(x.reshape(-1), 0)[0])
row("aten.nanmedian.default")(lambda x: nanmedian(x.reshape(-1), 0)[0])
