"""Order statistics."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxfn.torch._ops.row import row


def _sorted(x: Any, dim: int, descending: bool = False) -> tuple[Any, Any]:
    """In order, and where each was: equal ones as they came, and nan is greatest."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    dim %= x.ndim
    at = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    if not descending:
        values, at = lax.sort((x, at), dimension=dim, is_stable=True, num_keys=1)
        return values, at
    # Reversed twice, so that equal ones stay as they came.
    flipped = lax.sort(
        (jnp.flip(x, dim), jnp.flip(at, dim)), dimension=dim, is_stable=True, num_keys=1
    )
    return jnp.flip(flipped[0], dim), jnp.flip(flipped[1], dim)


@row("aten.sort.default", typed=True, lazy=True)
def sort(out: Any, x: Any, dim: int = -1, descending: bool = False) -> Any:
    """In order along a dimension, and where each was."""
    if out[1] is not None or x.ndim == 0:
        return _sorted(x, dim, descending)
    values = jnp.sort(x, axis=dim)
    return (jnp.flip(values, dim) if descending else values), None


@row("aten.sort.stable", typed=True, lazy=True)
def sort_stable(
    out: Any,
    x: Any,
    *,
    stable: bool | None = None,
    dim: int = -1,
    descending: bool = False,
) -> Any:
    """The same; it is always stable here."""
    del stable
    return sort(out, x, dim, descending)


@row("aten.argsort.default")
def argsort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    """Where the elements are in order."""
    return _sorted(x, dim, descending)[1]


@row("aten.argsort.stable")
def argsort_stable(
    x: Any, *, stable: bool, dim: int = -1, descending: bool = False
) -> Any:
    """The same; it is always stable here."""
    del stable
    return _sorted(x, dim, descending)[1]


@row("aten.topk")
def topk(
    x: Any,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> Any:
    """The k greatest (or least) along a dimension, and where they are."""
    del sorted
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    dim %= x.ndim
    values, at = _sorted(x, dim, largest)
    return lax.slice_in_dim(values, 0, k, axis=dim), lax.slice_in_dim(
        at, 0, k, axis=dim
    )


def _nth(x: Any, n: Any, dim: int, keepdim: bool) -> Any:
    values, at = _sorted(x, dim)
    n = jnp.expand_dims(jnp.broadcast_to(n, _without(x.shape, dim)), dim)
    values = jnp.take_along_axis(values, n, dim)
    at = jnp.take_along_axis(at, n, dim)
    if keepdim:
        return values, at
    return jnp.squeeze(values, dim), jnp.squeeze(at, dim)


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return shape[:dim] + shape[dim + 1 :]


@row("aten.kthvalue")
def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th least along a dimension, and where it is."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    return _nth(x, jnp.asarray(k - 1), dim % x.ndim, keepdim)


@row("aten.median.dim")
def median_dim(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The lower middle along a dimension, nan if there is one, and where it is."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    dim %= x.ndim
    middle = jnp.full(_without(x.shape, dim), (x.shape[dim] - 1) // 2)
    count = jnp.sum(x != x, axis=dim)
    # nan is last in order, so the first of them stands at this place.
    middle = jnp.where(count > 0, x.shape[dim] - count, middle)
    return _nth(x, middle, dim, keepdim)


@row("aten.nanmedian.dim")
def nanmedian_dim(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The lower middle of what is not nan, and where it is."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    dim %= x.ndim
    count = jnp.sum(x == x, axis=dim)
    return _nth(x, jnp.maximum(count - 1, 0) // 2, dim, keepdim)


@row("aten.median.default")
def median(x: Any) -> Any:
    """The lower middle of all."""
    return median_dim(x.reshape(-1), 0)[0]


@row("aten.nanmedian.default")
def nanmedian(x: Any) -> Any:
    """The lower middle of all that is not nan."""
    return nanmedian_dim(x.reshape(-1), 0)[0]
