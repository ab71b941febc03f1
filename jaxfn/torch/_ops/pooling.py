"""Pooling, windows of images, and what samples images at positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfn.torch._ops.distances import by_vjp
from jaxfn.torch._ops.row import row


def _spread(value: Any, n: int) -> list[int]:
    value = [value] if isinstance(value, int) else list(value)
    return value * n if len(value) == 1 else value


def _batched(x: Any, n: int) -> tuple[Any, bool]:
    return (x, True) if x.ndim == n + 2 else (x[None], False)


def _positions(
    size: int, out: int, k: int, stride: int, pad: int, dilation: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each window the positions in it, and which of them exist."""
    at = np.arange(out)[:, None] * stride - pad + np.arange(k) * dilation
    return np.clip(at, 0, size - 1), (at >= 0) & (at < size)


def _max_pool(n: int) -> Any:
    def pool(
        out: Any, x: Any, kernel: Any, stride: Any = (), padding: Any = 0,
        dilation: Any = 1, ceil_mode: bool = False,
    ) -> Any:  # fmt: skip
        del ceil_mode
        sizes = out[0].shape[-n:]
        x, batched = _batched(x, n)
        kernel = _spread(kernel, n)
        stride = _spread(stride, n) if stride else kernel
        padding, dilation = _spread(padding, n), _spread(dilation, n)
        places = [
            _positions(
                x.shape[2 + d], sizes[d], kernel[d], stride[d], padding[d], dilation[d]
            )
            for d in range(n)
        ]
        values, where = _greatest(x, places)
        return (values, where) if batched else (values[0], where[0])

    return pool


def _greatest(x: Any, places: Sequence[tuple[np.ndarray, np.ndarray]]) -> Any:
    """The greatest of each window, and where it is; the last dimensions are pooled."""
    n = len(places)
    flat, valid = np.zeros((1,), np.int64), np.ones((1,), bool)
    shape: list[int] = []
    for d, (at, ok) in enumerate(places):
        shape += at.shape
        flat = (flat[..., None] * x.shape[2 + d]) + at.reshape(-1)
        valid = valid[..., None] & ok.reshape(-1)
    sizes = shape[::2]
    order = [*range(0, 2 * n, 2), *range(1, 2 * n, 2)]
    flat = flat.reshape(shape).transpose(order).reshape(*sizes, -1)
    valid = valid.reshape(shape).transpose(order).reshape(*sizes, -1)
    windows = x.reshape(*x.shape[:2], -1)[..., flat]
    least = -jnp.inf if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo(x.dtype).min
    windows = jnp.where(valid, windows, jnp.asarray(least, x.dtype))
    best = jnp.argmax(windows, -1)
    values = jnp.take_along_axis(windows, best[..., None], -1)[..., 0]
    where = jnp.take_along_axis(
        jnp.broadcast_to(jnp.asarray(flat), windows.shape), best[..., None], -1
    )[..., 0]
    return values, where


@row("aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d")
def adaptive_max_pool(x: Any, sizes: Sequence[int]) -> Any:
    """The greatest of so many windows, which differ in size."""
    x, batched = _batched(x, len(sizes))
    places = []
    for d, n in enumerate(sizes):
        size = x.shape[2 + d]
        low = np.arange(n) * size // n
        high = -(-(np.arange(n) + 1) * size // n)
        at = low[:, None] + np.arange(np.max(high - low, initial=1))
        places.append((np.minimum(at, size - 1), at < high[:, None]))
    values, where = _greatest(x, places)
    return (values, where) if batched else (values[0], where[0])


@row("aten.adaptive_max_pool2d_backward")
def adaptive_max_pool2d_backward(g: Any, x: Any, at: Any) -> Any:
    """The gradient goes to where the greatest was."""
    return max_pool_backward(g, x, (0, 0), at)


@row("aten.adaptive_max_pool3d_backward")
def adaptive_max_pool3d_backward(g: Any, x: Any, at: Any) -> Any:
    """The gradient goes to where the greatest was."""
    return max_pool_backward(g, x, (0, 0, 0), at)


row("aten.max_pool2d_with_indices", typed=True)(_max_pool(2))
row("aten.max_pool3d_with_indices", typed=True)(_max_pool(3))


@row("aten.max_pool2d_with_indices_backward", "aten.max_pool3d_with_indices_backward")
def max_pool_backward(g: Any, x: Any, kernel: Any, *rest: Any) -> Any:
    """The gradient goes to where the greatest was."""
    n, at = len(kernel), rest[-1]
    lead = x.shape[: x.ndim - n]
    rows_ = int(np.prod(lead))
    flat = jnp.zeros((rows_, int(np.prod(x.shape[x.ndim - n :]))), g.dtype)
    i = jnp.arange(rows_)[:, None]
    return flat.at[i, at.reshape(rows_, -1)].add(g.reshape(rows_, -1)).reshape(x.shape)


def _avg_pool(n: int) -> Any:
    def pool(
        out: Any, x: Any, kernel: Any, stride: Any = (), padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:  # fmt: skip
        del ceil_mode
        return _average(
            out.shape[-n:], n, x, kernel, stride, padding, count_include_pad,
            divisor_override,
        )  # fmt: skip

    return pool


def _average(
    sizes: Any, n: int, x: Any, kernel: Any, stride: Any, padding: Any,
    include_pad: bool, divisor: int | None,
) -> Any:  # fmt: skip
    x, batched = _batched(x, n)
    kernel = _spread(kernel, n)
    stride = _spread(stride, n) if stride else kernel
    padding = _spread(padding, n)
    count = np.ones(sizes)
    for d in range(n):
        size, k, s, p = x.shape[2 + d], kernel[d], stride[d], padding[d]
        start = np.arange(sizes[d]) * s - p
        stop = np.minimum(start + k, size + p)
        # With the padding, or without; never what lies behind both.
        many = (
            stop - start
            if include_pad
            else np.minimum(stop, size) - np.maximum(start, 0)
        )
        count = count * many.reshape(-1, *(1,) * (n - d - 1))
        far = max((sizes[d] - 1) * s + k - p - size, 0)
        x = lax.pad(
            x,
            jnp.zeros((), x.dtype),
            [(p, far, 0) if i == 2 + d else (0, 0, 0) for i in range(x.ndim)],
        )
        windows = np.arange(sizes[d])[:, None] * s + np.arange(k)
        x = jnp.sum(jnp.take(x, windows, 2 + d), 3 + d)
    y = x / jnp.asarray(divisor or count, x.dtype)
    return y if batched else y[0]


for _n, _name in ((1, "avg_pool1d"), (2, "avg_pool2d"), (3, "avg_pool3d")):
    row(f"aten.{_name}", typed=True)(_avg_pool(_n))


@row("aten.avg_pool2d_backward", "aten.avg_pool3d_backward")
def avg_pool_backward(
    g: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool,
    include_pad: bool, divisor: int | None,
) -> Any:  # fmt: skip
    """The gradient is spread over the window."""
    del ceil_mode
    n = len(kernel)

    def forward(x: Any) -> Any:
        return _average(
            g.shape[-n:], n, x, kernel, stride, padding, include_pad, divisor
        )

    return by_vjp(forward, (x,), g)[0]


def _adaptive(x: Any, sizes: Sequence[int]) -> Any:
    first = x.ndim - len(sizes)
    for d, n in enumerate(sizes, first):
        size = x.shape[d]
        weights = np.zeros((n, size))
        for i in range(n):
            low, high = i * size // n, -((-(i + 1) * size) // n)
            weights[i, low:high] = 1 / (high - low)
        moved = jnp.moveaxis(x, d, -1) @ jnp.asarray(weights.T, x.dtype)
        x = jnp.moveaxis(moved, -1, d)
    return x


@row(
    "aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d", "aten.adaptive_avg_pool1d"
)
def adaptive_avg_pool(x: Any, sizes: Sequence[int]) -> Any:
    """The mean over so many windows."""
    return _adaptive(x, sizes)


def _adaptive_avg_pool_backward(n: int) -> Any:
    """The gradient is spread over the window; the axes before the last n are not."""

    def backward(g: Any, x: Any) -> Any:
        return by_vjp(lambda x: _adaptive(x, g.shape[-n:]), (x,), g)[0]

    return backward


row("aten._adaptive_avg_pool2d_backward")(_adaptive_avg_pool_backward(2))
row("aten._adaptive_avg_pool3d_backward")(_adaptive_avg_pool_backward(3))


@row("aten.im2col")
def im2col(x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Windows of an image as columns."""
    x, batched = _batched(x, 2)
    x = jnp.pad(x, [(0, 0), (0, 0), *[(p, p) for p in padding]])
    at = []
    for size, k, d, s in zip(x.shape[2:], kernel, dilation, stride, strict=True):
        n = (size - d * (k - 1) - 1) // s + 1
        at.append(np.arange(k)[:, None] * d + np.arange(n) * s)
    columns = jnp.take(jnp.take(x, at[0], 2), at[1], 4)
    columns = jnp.transpose(columns, (0, 1, 2, 4, 3, 5))
    b, c, *_ = x.shape
    columns = columns.reshape(b, c * kernel[0] * kernel[1], -1)
    return columns if batched else columns[0]


@row("aten.col2im")
def col2im(
    x: Any, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> Any:
    """The sum of columns where their windows were."""
    batched = x.ndim == 3
    x = x if batched else x[None]
    shape = (x.shape[0], x.shape[1] // (kernel[0] * kernel[1]), *size)
    like = jax.ShapeDtypeStruct(shape, x.dtype)
    run = jax.linear_transpose(
        lambda y: im2col(y, kernel, dilation, padding, stride), like
    )
    found = run(x)[0]
    return found if batched else found[0]


# ---- at positions between those of an image


def _unnormalised(at: Any, size: int, align: bool) -> Any:
    return (at + 1) / 2 * (size - 1) if align else ((at + 1) * size - 1) / 2


def _inside(at: Any, size: int, padding: int, align: bool) -> Any:
    """Positions outside, brought inside by the chosen rule."""
    if padding == 0:
        return at
    if padding == 1:
        return jnp.clip(at, 0, size - 1)
    low, high = (0, 2 * (size - 1)) if align else (-1, 2 * size - 1)
    if low == high:
        return jnp.zeros_like(at)
    low, span = low / 2, (high - low) / 2
    away = jnp.abs(at - low)
    rest = away - jnp.floor(away / span) * span
    even = jnp.floor(away / span) % 2 == 0
    return jnp.clip(jnp.where(even, rest + low, span - rest + low), 0, size - 1)


@row("aten.grid_sampler_2d")
def grid_sampler(x: Any, grid: Any, mode: int, padding: int, align: bool) -> Any:
    """An image at these positions: bilinear (0) or nearest (1)."""
    if mode == 2:
        raise NotImplementedError("bicubic sampling")
    _, _, h, w = x.shape
    u = _inside(_unnormalised(grid[..., 0], w, align), w, padding, align)
    v = _inside(_unnormalised(grid[..., 1], h, align), h, padding, align)

    def at(i: Any, j: Any) -> Any:
        ok = (i >= 0) & (i < h) & (j >= 0) & (j < w)
        i, j = (
            jnp.clip(i, 0, h - 1).astype(jnp.int32),
            jnp.clip(j, 0, w - 1).astype(jnp.int32),
        )
        picked = jax.vmap(lambda image, i, j: image[:, i, j])(x, i, j)
        return jnp.where(ok[:, None], picked, 0)

    if mode == 1:
        return at(jnp.round(v), jnp.round(u))
    j, i = jnp.floor(u), jnp.floor(v)
    a, b = (u - j)[:, None], (v - i)[:, None]
    return (
        at(i, j) * (1 - a) * (1 - b)
        + at(i, j + 1) * a * (1 - b)
        + at(i + 1, j) * (1 - a) * b
        + at(i + 1, j + 1) * a * b
    )


@row("aten.grid_sampler_2d_backward")
def grid_sampler_backward(
    g: Any, x: Any, grid: Any, mode: int, padding: int, align: bool, mask: Any
) -> Any:
    """The gradients of sampling."""

    def forward(x: Any, grid: Any) -> Any:
        return grid_sampler(x, grid, mode, padding, align)

    gx, gg = by_vjp(forward, (x, grid), g)
    return gx if mask[0] else None, gg if mask[1] else None
