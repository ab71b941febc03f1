"""Reads and writes at computed positions."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfn.torch._ops import masked
from jaxfn.torch._ops.row import highest, lowest, row


def _mask_at(indices: Sequence[Any], operation: str) -> int | None:
    """Return which index is a mask; None if none is."""
    given = [i for i, x in enumerate(indices) if x is not None]
    if not any(indices[i].dtype in (jnp.bool_, jnp.uint8) for i in given):
        return None
    if len(given) > 1:
        raise masked.refusal(operation, "a mask beside other indices")
    return given[0]


def _all_of_none(indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if i is None else i for i in indices)


@row("aten.index")
def index(x: Any, indices: Sequence[Any]) -> Any:
    """Return the elements at these positions; None is all of a dimension.

    The result of a mask has no shape in a trace. The array and the mask stand for it.
    """
    mask_at = _mask_at(indices, "index")
    if mask_at is None:
        return x[_all_of_none(indices)]
    if mask_at > 0:
        raise masked.refusal("index", "a mask beside other indices")
    return masked.pick(x, indices[0])


@row("aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl")
def index_put(
    x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False, *_: Any
) -> Any:
    """Write (or add) `values` at these positions."""
    mask_at = _mask_at(indices, "index_put")
    if mask_at is not None:
        return _put_where(x, mask_at, indices[mask_at], values, accumulate)
    x, values = _number(x), _number(values.astype(x.dtype))
    places = _all_of_none(indices)
    n = jax.eval_shape(lambda x: x[places], x).ndim
    values = values.reshape(values.shape[max(values.ndim - n, 0) :])  # without ones
    at = x.at[places]
    return at.add(values) if accumulate else at.set(values)


def _put_where(x: Any, axis: int, mask: Any, values: Any, accumulate: bool) -> Any:
    """Write `values` under a mask whose dimensions begin at `axis`."""
    mask = mask.astype(bool)
    tail = x.ndim - axis - mask.ndim
    # The first dimension of values is for all selected positions. The tail follows it.
    if values.ndim > tail:
        if values.shape[: values.ndim - tail] != (1,):
            raise masked.refusal("index_put", "an array of values, one for each")
        values = values.reshape(values.shape[values.ndim - tail :])
    mask = mask.reshape((1,) * axis + mask.shape + (1,) * tail)
    values = values.astype(x.dtype)
    return jnp.where(mask, x + values if accumulate else values, x)


@row("aten.index_select")
def index_select(x: Any, dim: int, at: Any) -> Any:
    """Return some positions of a dimension."""
    if x.ndim == 0:
        return x
    return jnp.take(x, jnp.atleast_1d(at), axis=dim)


def _number(x: Any) -> Any:
    """Return integers for bools, as sums need; a sum that is not 0 is true."""
    return x.astype(jnp.int32) if x.dtype == bool else x


@row("aten.put")
def put(x: Any, at: Any, values: Any, accumulate: bool = False) -> Any:
    """Write values at positions of the flat array."""
    x, values = _number(x), _number(values).reshape(-1)
    flat = x.reshape(-1).at[at.reshape(-1)]
    return (flat.add(values) if accumulate else flat.set(values)).reshape(x.shape)


def _grid(dim: int, at: Any) -> tuple[Any, ...]:
    """Return indices of each element of `at`, with `at` itself in one dimension."""
    return tuple(
        at if d == dim else lax.broadcasted_iota(jnp.int32, at.shape, d)
        for d in range(at.ndim)
    )


@row("aten.gather")
def gather(x: Any, dim: int, at: Any, **_: Any) -> Any:
    """Return for each element of `at` the element at that position of a dimension."""
    if x.ndim == 0:
        return jnp.broadcast_to(x, at.shape)
    if at.ndim == 0:
        return x[jnp.atleast_1d(at)].reshape(())
    if at.size == 0:  # then torch accepts any number of dimensions
        return jnp.zeros(at.shape, x.dtype)
    dim %= x.ndim
    others = [(*t.shape[:dim], *t.shape[dim + 1 :]) for t in (x, at)]
    if others[0] == others[1]:
        return jnp.take_along_axis(x, at, dim)
    return x[_grid(dim, at)]


def _scatter(x: Any, dim: int, at: Any, source: Any, how: str) -> Any:
    shape = x.shape
    if at.size == 0:  # then torch accepts any number of dimensions
        return x
    if x.ndim == 0 or at.ndim == 0:
        x, at = jnp.atleast_1d(x), jnp.atleast_1d(at)
        dim = 0
    source = jnp.atleast_1d(jnp.asarray(source).astype(x.dtype))
    if source.size != 1 or source.ndim == at.ndim:
        source = source[tuple(slice(0, n) for n in at.shape)]
    place = x.at[_grid(dim % x.ndim, at)]
    source = jnp.broadcast_to(source, at.shape)
    return getattr(place, how)(source).reshape(shape)


_REDUCTIONS = {
    None: "set", "add": "add", "sum": "add", "multiply": "multiply",
    "prod": "multiply", "amax": "max", "amin": "min",
}  # fmt: skip


@row("aten.scatter")
def scatter(
    x: Any, dim: int, at: Any, source: Any, *, reduce: str | None = None
) -> Any:
    """Combine `source` with the elements at positions `at` of a dimension."""
    return _scatter(_number(x), dim, at, source, _REDUCTIONS[reduce])


@row("aten.scatter_add")
def scatter_add(x: Any, dim: int, at: Any, source: Any) -> Any:
    """Add `source` to the elements at positions `at` of a dimension."""
    return _scatter(_number(x), dim, at, source, "add")


@row("aten.scatter_reduce")
def scatter_reduce(
    x: Any, dim: int, at: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Combine `source` with those elements, or without them (not `include_self`)."""
    if x.dtype == jnp.bool_:
        x, source = x.astype(jnp.int32), source.astype(jnp.int32)
        reduce = {"sum": "amax", "prod": "amin"}.get(reduce, reduce)
        found = scatter_reduce(x, dim, at, source, reduce, include_self=include_self)
        return found != 0
    if not include_self:
        zero = {"prod": 1, "amax": lowest(x.dtype), "amin": highest(x.dtype)}
        start = jnp.asarray(zero.get(reduce, 0), x.dtype)
        x = _scatter(x, dim, at, jnp.broadcast_to(start, at.shape), "set")
    if reduce != "mean":
        return _scatter(x, dim, at, source, _REDUCTIONS[reduce])
    total = _scatter(x, dim, at, source, "add")
    first = jnp.ones(x.shape, jnp.int32)
    if not include_self:
        first = _scatter(first, dim, at, jnp.zeros(at.shape, jnp.int32), "set")
    count = _scatter(first, dim, at, jnp.ones(at.shape, jnp.int32), "add")
    count = jnp.maximum(count, 1).astype(x.dtype)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.floor_divide(total, count)
    return total / count


@row("aten.masked_select")
def masked_select(x: Any, mask: Any) -> Any:
    """Return the elements for which the mask is true."""
    return masked.pick(*jnp.broadcast_arrays(x, mask))


@row("aten.nonzero_static")
def nonzero_static(x: Any, *, size: int, fill_value: int = -1) -> Any:
    """Return the positions of the first `size` elements that are not zero."""
    if x.ndim == 0 or size == 0:
        return jnp.zeros((size, x.ndim), int)
    return jnp.argwhere(x, size=size, fill_value=fill_value)


@row("aten.masked_scatter")
def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """Write the first elements of `source`, in order, where the mask is true."""
    x, mask = jnp.broadcast_arrays(x, mask)
    if source.size == 0:  # the mask is false everywhere, or torch refuses it
        return x
    which = jnp.cumsum(mask.reshape(-1).astype(jnp.int32)) - 1
    picked = source.reshape(-1)[jnp.maximum(which, 0)].reshape(x.shape)
    return jnp.where(mask, picked.astype(x.dtype), x)


@row("aten.masked_scatter_backward", typed=True)
def masked_scatter_backward(out: Any, g: Any, mask: Any, sizes: Any) -> Any:
    """Return the gradient of `source`: the elements under the mask, then zeros."""
    del sizes
    size, mask = math.prod(out.shape), jnp.broadcast_to(mask, g.shape).reshape(-1)
    at = jnp.where(mask, jnp.cumsum(mask.astype(jnp.int32)) - 1, size)
    flat = jnp.zeros(size, g.dtype).at[at].set(g.reshape(-1), mode="drop")
    return flat.reshape(out.shape)


row("aten.embedding")(lambda table, at, *_: table[at])


@row("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    ordered: Any,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """Return the positions of elements in ordered rows."""
    del out_int32
    if sorter is not None:
        ordered = jnp.take_along_axis(ordered, sorter, -1)
    side = "right" if right or side == "right" else "left"
    found = functools.partial(jnp.searchsorted, side=side)
    if ordered.ndim > 1:
        found = jnp.vectorize(found, signature="(n),(m)->(m)")
    return found(ordered, jnp.asarray(x))


@row("aten.bucketize")
def bucketize(x: Any, boundaries: Any, *, right: bool = False, **_: Any) -> Any:
    """Return the positions of elements among boundaries."""
    return searchsorted(boundaries, jnp.asarray(x), right=right)
