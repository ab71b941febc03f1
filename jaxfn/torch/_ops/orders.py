"""Order statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxfn.torch._ops.row import row


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
