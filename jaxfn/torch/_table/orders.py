"""Order statistics."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxfn.torch._table._row import row


def _order(x: Any, dim: int, descending: bool) -> Any:
    """Positions of the elements in order, equal ones as they came; nan is greatest."""
    if not descending:
        return jnp.argsort(x, axis=dim, stable=True)
    # Reversed twice, so that equal ones stay as they came.
    back = jnp.argsort(jnp.flip(x, dim), axis=dim, stable=True)
    return x.shape[dim] - 1 - jnp.flip(back, dim)


@row("aten.sort.default")
def sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    """In order along a dimension, and where each was."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    at = _order(x, dim, descending)
    return jnp.take_along_axis(x, at, dim), at


@row("aten.sort.stable")
def sort_stable(
    x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    """The same; it is always stable here."""
    del stable
    return sort(x, dim, descending)


@row("aten.argsort.default")
def argsort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    """Where the elements are in order."""
    return sort(x, dim, descending)[1]


@row("aten.argsort.stable")
def argsort_stable(
    x: Any, *, stable: bool, dim: int = -1, descending: bool = False
) -> Any:
    """The same; it is always stable here."""
    del stable
    return sort(x, dim, descending)[1]


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
    values, at = sort(x, dim, largest)
    return lax.slice_in_dim(values, 0, k, axis=dim), lax.slice_in_dim(
        at, 0, k, axis=dim
    )


def _nth(x: Any, n: Any, dim: int, keepdim: bool) -> Any:
    values, at = sort(x, dim)
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
