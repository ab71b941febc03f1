"""Operations that move elements and compute no values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfn.torch._ops.row import row, rows


@row("aten.view", "aten.view_copy", "aten.reshape", typed=True)
def view(out: Any, x: Any, size: Any, *_: Any) -> Any:
    """Return another shape, or the same bits as another dtype."""
    if not isinstance(size, (list, tuple)):
        return view_dtype(x, out)
    return jnp.reshape(x, out.shape)


def view_dtype(x: Any, out: Any) -> Any:
    """Return the bits of x as another dtype: the last dimension grows or shrinks."""
    if x.dtype == bool:
        x = x.astype(jnp.uint8)
    old, new = x.dtype.itemsize, np.dtype(out.dtype).itemsize
    if new > old:
        x = x.reshape((*x.shape[:-1], x.shape[-1] * old // new, new // old))
    return lax.bitcast_convert_type(x, out.dtype).reshape(out.shape)


@row("aten.resize", typed=True)
def resize(out: Any, x: Any, *_: Any, **__: Any) -> Any:
    """Return the same elements in another shape."""
    if x.size != np.prod(out.shape, dtype=int):
        raise NotImplementedError("resize to another number of elements")
    return jnp.reshape(x, out.shape)


rows(
    {
        "aten.expand aten.broadcast_to": (
            lambda out, x, *_, **__: jnp.broadcast_to(x, out.shape)
        ),
        "aten.squeeze aten.unsqueeze aten.flatten aten.unflatten": (
            lambda out, x, *_: jnp.reshape(x, out.shape)
        ),
    },
    typed=True,
)
rows(
    {
        "aten.permute aten.permute_copy": lambda x, dims: jnp.transpose(
            x, [d % x.ndim for d in dims]
        ),
        "aten.transpose": lambda x, a, b: jnp.swapaxes(x, a, b) if x.ndim else x,
        "aten.flip": lambda x, dims: jnp.flip(x, tuple(dims)) if dims else x,
        "aten.repeat": lambda x, repeats: jnp.tile(
            x.reshape((1,) * (len(repeats) - x.ndim) + x.shape), repeats
        ),
        "aten.view_as_real aten.view_as_real_copy": lambda x: jnp.stack(
            [x.real, x.imag], -1
        ),
        "aten.view_as_complex aten.view_as_complex_copy": lambda x: lax.complex(
            x[..., 0], x[..., 1]
        ),
    }
)


@row("aten.cat", typed=True)
def cat(out: Any, xs: Sequence[Any], dim: int = 0) -> Any:
    """Concatenate along a dimension; empty vectors don't count."""
    rank = len(out.shape)
    kept = [x for x in xs if x.ndim == rank and not (x.shape == (0,) and rank != 1)]
    if not kept:
        return jnp.zeros(out.shape, out.dtype)
    return jnp.concatenate([x.astype(out.dtype) for x in kept], dim)


def bounds(size: int, start: Any, end: Any) -> tuple[int, int]:
    """Return the start and the end of a slice, not negative."""
    begin, stop, _ = slice(start, end).indices(size)
    return begin, max(begin, stop)


@row("aten.slice", "aten.slice_copy")
def slice_(
    x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """Return a slice of a dimension."""
    begin, stop = bounds(x.shape[dim], start, end)
    return lax.slice_in_dim(x, begin, stop, step, dim % x.ndim)


@row("aten.slice_scatter")
def slice_scatter(
    x: Any, y: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """Write `y` into a slice of a dimension."""
    begin, stop = bounds(x.shape[dim], start, end)
    at = (slice(None),) * (dim % x.ndim)
    return x.at[(*at, slice(begin, stop, step))].set(y.astype(x.dtype))


@row("aten.select", "aten.select_copy")
def select(x: Any, dim: int, index: Any) -> Any:
    """Return one position of a dimension."""
    return (
        lax.index_in_dim(x, index, dim % x.ndim, keepdims=False)
        if isinstance(index, int)
        else jnp.take(x, index, dim)
    )


@row("aten.diagonal")
def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Return the diagonal of two dimensions as the last dimension."""
    return jnp.diagonal(x, offset, dim1, dim2)


def _at_diagonal(shape: Any, offset: int, dim1: int, dim2: int) -> Any:
    dim1, dim2 = dim1 % len(shape), dim2 % len(shape)
    n = max(min(shape[dim1] + min(offset, 0), shape[dim2] - max(offset, 0)), 0)
    i = np.arange(n)
    at: list[Any] = [slice(None)] * len(shape)
    at[dim1], at[dim2] = i - min(offset, 0), i + max(offset, 0)
    return tuple(at), dim1, dim2


@row("aten.diagonal_scatter")
def diagonal_scatter(
    x: Any, y: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    """Write `y` to the diagonal of two dimensions."""
    moved = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    at, _, _ = _at_diagonal(moved.shape, offset, -2, -1)
    return jnp.moveaxis(moved.at[at].set(y.astype(x.dtype)), (-2, -1), (dim1, dim2))


def _strided(x: Any, size: Any, stride: Any, offset: int | None) -> Any:
    """Return the elements of the flat array at these strides, to read or write."""
    at = np.full((), offset or 0)
    for n, s in zip(size, stride, strict=True):
        at = at[..., None] + np.arange(n) * s
    return x.reshape(-1).at[at]


@row("aten.as_strided", "aten.as_strided_copy")
def as_strided(x: Any, size: Any, stride: Any, offset: int | None = None) -> Any:
    """Return the elements of the flat array at these strides."""
    return _strided(x, size, stride, offset).get()


@row("aten.as_strided_scatter")
def as_strided_scatter(
    x: Any, y: Any, size: Any, stride: Any, offset: int | None = None
) -> Any:
    """Write `y` to the elements of the flat array at these strides."""
    written = _strided(x, size, stride, offset).set(y.astype(x.dtype))
    return written.reshape(x.shape)


@row("aten.split_with_sizes")
def split_with_sizes(x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    """Return pieces of these sizes."""
    at = np.cumsum([0, *sizes])
    return tuple(
        lax.slice_in_dim(x, int(a), int(b), axis=dim % x.ndim)
        for a, b in itertools.pairwise(at)
    )


@row("aten.split", "aten.split_copy")
def split(x: Any, size: int, dim: int = 0) -> Any:
    """Return pieces of one size; the last may be smaller."""
    n = x.shape[dim]
    return split_with_sizes(
        x, [min(size, n - i) for i in range(0, n, max(size, 1))] or [0], dim
    )


@row("aten.unbind_copy")
def unbind(x: Any, dim: int = 0) -> Any:
    """Return each position of a dimension."""
    return tuple(jnp.moveaxis(x, dim, 0))


@row("aten.unfold")
def unfold(x: Any, dim: int, size: int, step: int) -> Any:
    """Return windows along a dimension; the last dimension counts in a window."""
    if x.ndim == 0:
        return x.reshape((1,))[:size]
    dim %= x.ndim
    starts = np.arange(0, x.shape[dim] - size + 1, step)
    windows = jnp.take(x, starts[:, None] + np.arange(size), axis=dim)
    return jnp.moveaxis(windows, dim + 1, -1)


def _padding(pad: Sequence[int], rank: int) -> list[tuple[int, int]]:
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    return [(0, 0)] * (rank - len(pairs)) + pairs


@row("aten.constant_pad_nd")
def constant_pad(x: Any, pad: Sequence[int], value: Any = 0) -> Any:
    """Pad with a constant; negative widths cut."""
    widths = [(a, b, 0) for a, b in _padding(pad, x.ndim)]
    return lax.pad(x, jnp.asarray(value).astype(x.dtype), widths)


def _edges(x: Any, pad: Sequence[int]) -> Any:
    """Pad with the outermost elements; negative widths cut."""
    pairs = _padding(pad, x.ndim)
    x = jnp.pad(x, [(max(a, 0), max(b, 0)) for a, b in pairs], mode="edge")
    return x[tuple(slice(max(-a, 0), min(b, 0) or None) for a, b in pairs)]


@row(
    "aten.replication_pad1d_backward", "aten.replication_pad2d_backward",
    "aten.replication_pad3d_backward",
)  # fmt: skip
def replication_pad_backward(g: Any, x: Any, pad: Sequence[int]) -> Any:
    """Return the gradient of padding with the outermost elements."""
    like = jax.ShapeDtypeStruct(x.shape, g.dtype)
    return jax.linear_transpose(lambda x: _edges(x, pad), like)(g)[0]
