"""Operations that move elements and compute nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfn.torch._ops.row import row, rows


@row("aten.view", "aten.view_copy", "aten.reshape", "aten._unsafe_view", typed=True)
def view(out: Any, x: Any, size: Any, *_: Any) -> Any:
    """Another shape; or the same bits as another dtype."""
    if not isinstance(size, (list, tuple)):
        return view_dtype(x, out)
    return jnp.reshape(x, out.shape)


def view_dtype(x: Any, out: Any) -> Any:
    """The bits of x as another dtype: the last dimension grows or shrinks."""
    if x.dtype == bool:
        x = x.astype(jnp.uint8)
    old, new = x.dtype.itemsize, np.dtype(out.dtype).itemsize
    if new > old:
        x = x.reshape((*x.shape[:-1], x.shape[-1] * old // new, new // old))
    return lax.bitcast_convert_type(x, out.dtype).reshape(out.shape)


@row("aten.resize", typed=True)
def resize(out: Any, x: Any, *_: Any, **__: Any) -> Any:
    """The same elements in another shape; more of them have no value in torch."""
    if x.size != np.prod(out.shape, dtype=int):
        raise NotImplementedError("resize to another number of elements")
    return jnp.reshape(x, out.shape)


rows(
    {
        "aten.expand aten.expand_copy aten.broadcast_to": (
            lambda out, x, *_, **__: jnp.broadcast_to(x, out.shape)
        ),
        "aten.squeeze aten.squeeze_copy aten.unsqueeze aten.unsqueeze_copy "
        "aten.flatten aten.unflatten": lambda out, x, *_: jnp.reshape(x, out.shape),
    },
    typed=True,
)
rows(
    {
        "aten.permute aten.permute_copy": lambda x, dims: jnp.transpose(
            x, [d % x.ndim for d in dims]
        ),
        "aten.t aten.t_copy": jnp.transpose,
        "aten.transpose aten.transpose_copy": lambda x, a, b: (
            jnp.swapaxes(x, a, b) if x.ndim else x
        ),
        "aten.flip": lambda x, dims: jnp.flip(x, tuple(dims)) if dims else x,
        "aten.roll": lambda x, shifts, dims=(): jnp.roll(
            x, shifts if dims else shifts[0], tuple(dims) or None
        ),
        "aten.rot90": lambda x, k=1, dims=(0, 1): jnp.rot90(x, k, tuple(dims)),
        "aten.repeat": lambda x, repeats: jnp.tile(
            x.reshape((1,) * (len(repeats) - x.ndim) + x.shape), repeats
        ),
        "aten.stack": lambda xs, dim=0: jnp.stack(xs, dim),
        "aten.view_as_real aten.view_as_real_copy": lambda x: jnp.stack(
            [x.real, x.imag], -1
        ),
        "aten.view_as_complex aten.view_as_complex_copy": lambda x: lax.complex(
            x[..., 0], x[..., 1]
        ),
    }
)


@row("aten.cat", "aten.concat", typed=True)
def cat(out: Any, xs: Sequence[Any], dim: int = 0) -> Any:
    """Side by side along a dimension; empty vectors don't count."""
    rank = len(out.shape)
    kept = [x for x in xs if x.ndim == rank and not (x.shape == (0,) and rank != 1)]
    if not kept:
        return jnp.zeros(out.shape, out.dtype)
    return jnp.concatenate([x.astype(out.dtype) for x in kept], dim)


def bounds(size: int, start: Any, end: Any) -> tuple[int, int]:
    """Where a slice starts and ends, from the front."""
    begin, stop, _ = slice(start, end).indices(size)
    return begin, max(begin, stop)


@row("aten.slice", "aten.slice_copy")
def slice_(
    x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """Some positions along a dimension."""
    begin, stop = bounds(x.shape[dim], start, end)
    return lax.slice_in_dim(x, begin, stop, step, dim % x.ndim)


@row("aten.slice_scatter")
def slice_scatter(
    x: Any, y: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """`y` at some positions along a dimension."""
    begin, stop = bounds(x.shape[dim], start, end)
    at = (slice(None),) * (dim % x.ndim)
    return x.at[(*at, slice(begin, stop, step))].set(y.astype(x.dtype))


@row("aten.slice_backward")
def slice_backward(
    g: Any, sizes: Any, dim: int, start: int, end: int, step: int
) -> Any:
    """The gradient of a slice."""
    return slice_scatter(jnp.zeros(sizes, g.dtype), g, dim, start, end, step)


@row("aten.select", "aten.select_copy")
def select(x: Any, dim: int, index: Any) -> Any:
    """One position of a dimension."""
    return (
        lax.index_in_dim(x, index, dim % x.ndim, keepdims=False)
        if isinstance(index, int)
        else jnp.take(x, index, dim)
    )


@row("aten.select_scatter")
def select_scatter(x: Any, y: Any, dim: int, index: int) -> Any:
    """`y` at one position of a dimension."""
    return x.at[(*(slice(None),) * (dim % x.ndim), index)].set(y.astype(x.dtype))


@row("aten.select_backward")
def select_backward(g: Any, sizes: Any, dim: int, index: int) -> Any:
    """The gradient of a selection."""
    return select_scatter(jnp.zeros(sizes, g.dtype), g, dim, index)


@row("aten.diagonal", "aten.diagonal_copy")
def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The diagonal of two dimensions, last."""
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
    """`y` on the diagonal of two dimensions."""
    moved = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    at, _, _ = _at_diagonal(moved.shape, offset, -2, -1)
    return jnp.moveaxis(moved.at[at].set(y.astype(x.dtype)), (-2, -1), (dim1, dim2))


@row("aten.diagonal_backward")
def diagonal_backward(g: Any, sizes: Any, offset: int, dim1: int, dim2: int) -> Any:
    """The gradient of a diagonal."""
    return diagonal_scatter(jnp.zeros(sizes, g.dtype), g, offset, dim1, dim2)


@row("aten.diag_embed")
def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """A diagonal in two dimensions of its own."""
    n = x.shape[-1] + abs(offset)
    zeros = jnp.zeros((*x.shape[:-1], n, n), x.dtype)
    return jnp.moveaxis(
        diagonal_scatter(zeros, x, offset, -2, -1), (-2, -1), (dim1, dim2)
    )


rows(
    {
        "aten.tril": lambda x, k=0: jnp.tril(x, k),
        "aten.triu": lambda x, k=0: jnp.triu(x, k),
    }
)


@row("aten.as_strided", "aten.as_strided_copy")
def as_strided(x: Any, size: Any, stride: Any, offset: int | None = None) -> Any:
    """Elements of the flat array at these strides."""
    at = np.full((), offset or 0)
    for n, s in zip(size, stride, strict=True):
        at = at[..., None] + np.arange(n) * s
    return x.reshape(-1)[at]


@row("aten.as_strided_scatter")
def as_strided_scatter(
    x: Any, y: Any, size: Any, stride: Any, offset: int | None = None
) -> Any:
    """`y` at these strides of the flat array."""
    at = np.full((), offset or 0)
    for n, s in zip(size, stride, strict=True):
        at = at[..., None] + np.arange(n) * s
    return x.reshape(-1).at[at].set(y.astype(x.dtype)).reshape(x.shape)


@row("aten.split_with_sizes", "aten.split_with_sizes_copy")
def split_with_sizes(x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    """Pieces of these sizes."""
    at = np.cumsum([0, *sizes])
    return tuple(
        lax.slice_in_dim(x, int(a), int(b), axis=dim % x.ndim)
        for a, b in itertools.pairwise(at)
    )


@row("aten.split", "aten.split_copy")
def split(x: Any, size: int, dim: int = 0) -> Any:
    """Pieces of one size; the last may be smaller."""
    n = x.shape[dim]
    return split_with_sizes(
        x, [min(size, n - i) for i in range(0, n, max(size, 1))] or [0], dim
    )


@row("aten.unbind", "aten.unbind_copy")
def unbind(x: Any, dim: int = 0) -> Any:
    """The positions of a dimension, each on its own."""
    return tuple(
        lax.index_in_dim(x, i, dim % x.ndim, keepdims=False)
        for i in range(x.shape[dim])
    )


@row("aten.unfold", "aten.unfold_copy")
def unfold(x: Any, dim: int, size: int, step: int) -> Any:
    """Windows along a dimension, last."""
    if x.ndim == 0:
        return x.reshape((1,))[:size]
    dim %= x.ndim
    starts = np.arange(0, x.shape[dim] - size + 1, step)
    windows = jnp.take(x, starts[:, None] + np.arange(size), axis=dim)
    return jnp.moveaxis(windows, dim + 1, -1)


@row("aten.unfold_backward")
def unfold_backward(g: Any, sizes: Any, dim: int, size: int, step: int) -> Any:
    """The gradient of windows."""
    if not sizes:
        return jnp.sum(g).reshape(())
    dim %= len(sizes)
    starts = np.arange(0, sizes[dim] - size + 1, step)
    moved = jnp.moveaxis(g, -1, dim + 1)
    at = (*(slice(None),) * dim, starts[:, None] + np.arange(size))
    return jnp.zeros(sizes, g.dtype).at[at].add(moved)


def _padding(pad: Sequence[int], rank: int) -> list[tuple[int, int]]:
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    return [(0, 0)] * (rank - len(pairs)) + pairs


@row("aten.constant_pad_nd")
def constant_pad(x: Any, pad: Sequence[int], value: Any = 0) -> Any:
    """A constant around; negative widths cut."""
    widths = [(a, b, 0) for a, b in _padding(pad, x.ndim)]
    return lax.pad(x, jnp.asarray(value).astype(x.dtype), widths)


def _pad(mode: str) -> Any:
    def padded(x: Any, pad: Sequence[int]) -> Any:
        pairs = _padding(pad, x.ndim)
        x = jnp.pad(x, [(max(a, 0), max(b, 0)) for a, b in pairs], mode=mode)
        return x[tuple(slice(max(-a, 0), min(b, 0) or None) for a, b in pairs)]

    return padded


rows(
    {
        "aten.reflection_pad1d aten.reflection_pad2d aten.reflection_pad3d": _pad(
            "reflect"
        ),
        "aten.replication_pad1d aten.replication_pad2d aten.replication_pad3d": _pad(
            "edge"
        ),
    }
)


row(
    "aten.replication_pad1d_backward", "aten.replication_pad2d_backward",
    "aten.replication_pad3d_backward",
)(
    lambda g, x, pad: jax.linear_transpose(
        lambda x: _pad("edge")(x, pad), jax.ShapeDtypeStruct(x.shape, g.dtype)
    )(g)[0]
)  # fmt: skip
