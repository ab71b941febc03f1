"""Values between and around elements of images: sampling, upsampling, pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.ndimage import map_coordinates

from jaxfn.torch._ops.row import by_vjp, convert, lowest, repeated, row, rows, wide


def _steps(x: Any, n: int) -> Any:
    """Return 0 to n - 1, in the precision in which torch computes positions."""
    return jnp.arange(n, dtype=jnp.promote_types(x.dtype, jnp.float32))


def _wide(x: Any) -> Any:
    """Return the array in the precision in which torch computes positions."""
    return convert(x, jnp.promote_types(x.dtype, jnp.float32))


def _corners(x: Any, d: int, out: int, align: bool, scale: Any) -> tuple[Any, Any, Any]:
    """Return the two neighbours of each new position, and its distance to the first."""
    size, i = x.shape[d], _steps(x, out)
    if align:
        at = i * ((size - 1) / (out - 1) if out > 1 else 0.0)
    else:
        ratio = 1 / scale if scale else size / out
        at = jnp.maximum((i + 0.5) * ratio - 0.5, 0)
    low = jnp.minimum(jnp.floor(at).astype(jnp.int32), size - 1)
    return low, jnp.minimum(low + 1, size - 1), at - low


def _rounded(x: Any, out: Any) -> Any:
    """Round to integers if the result has an integer dtype."""
    if not jnp.issubdtype(out.dtype, jnp.integer):
        return x
    limits = jnp.iinfo(out.dtype)
    return jnp.clip(jnp.round(x), limits.min, limits.max)


def _scales(n: int, scales: Any, more: Any) -> list[Any]:
    """Return a scale for each dimension. Torch passes a list, numbers or none."""
    if scales is None:
        return [None] * n
    return list(scales) if isinstance(scales, (list, tuple)) else [scales, *more]


@row("aten.upsample_bilinear2d", "aten.upsample_trilinear3d", typed=True)
def upsample_linear(
    out: Any, x: Any, size: Any, align: bool, scales: Any = None, *more: Any
) -> Any:
    """Resize by linear interpolation between neighbours."""
    del size
    n, x = x.ndim - 2, _wide(x)
    sizes = zip(out.shape[2:], _scales(n, scales, more), strict=True)
    for d, (new, scale) in enumerate(sizes, 2):
        low, high, part = _corners(x, d, new, align, scale)
        part = part.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - d - 1))
        x = jnp.take(x, low, d) * (1 - part) + jnp.take(x, high, d) * part
    return _rounded(x, out)


@row("aten.upsample_nearest2d", typed=True)
def upsample_nearest(
    out: Any, x: Any, size: Any, scales: Any = None, *more: Any, shift: float = 0.0
) -> Any:
    """Resize by the nearest element below; with a shift of 0.5, by the nearest one."""
    del size
    sizes = zip(out.shape[2:], _scales(x.ndim - 2, scales, more), strict=True)
    for d, (n, scale) in enumerate(sizes, 2):
        ratio = jnp.float32(1 / scale if scale else x.shape[d] / n)
        at = (jnp.arange(n, dtype=jnp.float32) + shift) * ratio
        at = jnp.floor(at).astype(jnp.int32)
        x = jnp.take(x, jnp.minimum(at, x.shape[d] - 1), d)
    return x


def _upsample_backward(forward: Any) -> Any:
    def backward(g: Any, size: Any, shape: Any, *how: Any) -> Any:
        del size
        g = convert(g, wide(g.dtype))
        like = jax.ShapeDtypeStruct(tuple(shape), g.dtype)
        run = partial(forward, jax.ShapeDtypeStruct(g.shape, g.dtype))
        return jax.linear_transpose(lambda x: run(x, None, *how), like)(g)[0]

    return backward


def _cubic(part: Any) -> list[Any]:
    """Return the weights of four neighbours."""
    a = -0.75

    def near(t: Any) -> Any:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: Any) -> Any:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]


@row("aten.upsample_bicubic2d", typed=True)
def upsample_bicubic(
    out: Any, x: Any, size: Any, align: bool, scales: Any = None, *more: Any
) -> Any:
    """Resize by cubic interpolation between four neighbours."""
    del size
    x = _wide(x)
    sizes = zip(out.shape[2:], _scales(2, scales, more), strict=True)
    for d, (n, scale) in enumerate(sizes):
        axis, old, i = d + 2, x.shape[d + 2], _steps(x, n)
        if align:
            at = i * ((old - 1) / (n - 1) if n > 1 else 0.0)
        else:
            at = (i + 0.5) * (1 / scale if scale else old / n) - 0.5
        low = jnp.floor(at)
        weights = _cubic((at - low).astype(x.dtype).reshape(-1, *(1,) * (1 - d)))
        taps = [jnp.clip(low.astype(jnp.int32) + k, 0, old - 1) for k in range(-1, 3)]
        x = sum(
            (jnp.take(x, at, axis) * w for at, w in zip(taps, weights, strict=True)),
            jnp.zeros((), x.dtype),
        )
    return _rounded(x, out)


rows(
    {
        "aten.upsample_linear1d_backward aten.upsample_bilinear2d_backward "
        "aten.upsample_trilinear3d_backward": _upsample_backward(upsample_linear),
        "aten.upsample_nearest1d_backward aten.upsample_nearest2d_backward "
        "aten.upsample_nearest3d_backward": _upsample_backward(upsample_nearest),
        "aten._upsample_nearest_exact1d_backward "
        "aten._upsample_nearest_exact2d_backward "
        "aten._upsample_nearest_exact3d_backward": _upsample_backward(
            partial(upsample_nearest, shift=0.5)
        ),
        "aten.upsample_bicubic2d_backward": _upsample_backward(upsample_bicubic),
    }
)


# ---- at given positions of an image


def _unnormalised(at: Any, size: int, align: bool) -> Any:
    return (at + 1) / 2 * (size - 1) if align else ((at + 1) * size - 1) / 2


def _inside(at: Any, size: int, padding: int, align: bool) -> Any:
    """Move positions outside of the image inside, by the chosen rule."""
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
    """Return an image at these positions: bilinear (0) or nearest (1)."""
    if mode == 2:
        raise NotImplementedError("bicubic sampling")
    u, v = (
        _inside(_unnormalised(grid[..., d], size, align), size, padding, align)
        for d, size in ((0, x.shape[3]), (1, x.shape[2]))
    )
    if mode == 1:  # torch rounds halves to even; map_coordinates, away from 0
        u, v = jnp.round(u), jnp.round(v)
    # All channels of an image are sampled at the same positions.
    plane = jax.vmap(partial(map_coordinates, order=1 - mode), (0, None))
    return jax.vmap(plane)(x, [v, u])


@row("aten.grid_sampler_2d_backward")
def grid_sampler_backward(g: Any, x: Any, grid: Any, *how: Any) -> Any:
    """Return the gradients of sampling."""
    *options, mask = how
    found = by_vjp(lambda x, grid: grid_sampler(x, grid, *options), (x, grid), g)
    return tuple(v if need else None for v, need in zip(found, mask, strict=True))


# ---- pooling


def _batched(x: Any, n: int) -> tuple[Any, bool]:
    return (x, True) if x.ndim == n + 2 else (x[None], False)


def _positions(
    size: int, out: int, k: int, stride: int, pad: int, dilation: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions in each window, and which of them exist."""
    at = np.arange(out)[:, None] * stride - pad + np.arange(k) * dilation
    return np.clip(at, 0, size - 1), (at >= 0) & (at < size)


def _greatest(x: Any, places: Sequence[tuple[np.ndarray, np.ndarray]]) -> Any:
    """Return the maximum of each window of the last dimensions, and its position."""
    n = len(places)
    flat, valid = np.zeros((), np.int64), np.ones((), bool)
    for d, (at, ok) in enumerate(places):
        # The first n dimensions count windows, the others the elements of a window.
        shape = [1] * (2 * n)
        shape[d], shape[n + d] = at.shape
        flat = flat * x.shape[2 + d] + at.reshape(shape)
        valid = valid & ok.reshape(shape)
    flat, valid = (v.reshape(1, 1, *v.shape[:n], -1) for v in (flat, valid))
    windows = x.reshape(*x.shape[:2], -1)[..., flat[0, 0]]
    windows = jnp.where(valid, windows, jnp.asarray(lowest(x.dtype), x.dtype))
    best = jnp.argmax(windows, -1, keepdims=True)
    found = (jnp.take_along_axis(v, best, -1) for v in (windows, jnp.asarray(flat)))
    return tuple(v[..., 0] for v in found)


def _unbatched(found: Any, batched: bool) -> Any:
    return found if batched else jax.tree.map(lambda y: y[0], found)


def max_pool(
    n: int, out: Any, x: Any, kernel: Any, stride: Any = (), padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """Return the maximum of each window, and its position."""
    del ceil_mode
    x, batched = _batched(x, n)
    how = [repeated(v, n) for v in (kernel, stride or kernel, padding, dilation)]
    sizes = zip(x.shape[2:], out[0].shape[-n:], *how, strict=True)
    return _unbatched(_greatest(x, [_positions(*size) for size in sizes]), batched)


def adaptive_max_pool(x: Any, sizes: Sequence[int]) -> Any:
    """Return the maximum of each window, for a given number of windows."""
    x, batched = _batched(x, len(sizes))
    places = []
    for size, n in zip(x.shape[2:], sizes, strict=True):
        low = np.arange(n) * size // n
        high = -(-(np.arange(n) + 1) * size // n)
        at = low[:, None] + np.arange(np.max(high - low, initial=1))
        places.append((np.minimum(at, size - 1), at < high[:, None]))
    return _unbatched(_greatest(x, places), batched)


def max_pool_backward(n: int, g: Any, x: Any, *how: Any) -> Any:
    """Return the gradient, which goes to the position of each maximum."""
    at = how[-1]
    lead = math.prod(x.shape[: x.ndim - n])
    flat = jnp.zeros((lead, math.prod(x.shape[x.ndim - n :])), g.dtype)
    place = flat.at[jnp.arange(lead)[:, None], at.reshape(lead, -1)]
    return place.add(g.reshape(lead, -1)).reshape(x.shape)


def avg_pool(
    n: int, out: Any, x: Any, kernel: Any, stride: Any = (), padding: Any = 0,
    ceil_mode: bool = False, include_pad: bool = True, divisor: int | None = None,
) -> Any:  # fmt: skip
    """Return the mean of each window."""
    del ceil_mode
    x, batched = _batched(x, n)
    kernel, stride, padding = (
        repeated(v, n) for v in (kernel, stride or kernel, padding)
    )
    count, pads = np.ones(()), []
    sizes = zip(x.shape[2:], out.shape[-n:], kernel, stride, padding, strict=True)
    for size, windows, k, s, p in sizes:
        start = np.arange(windows) * s - p
        stop = np.minimum(start + k, size + p)
        # Count the padding or not, but never elements beyond it.
        inside = np.minimum(stop, size) - np.maximum(start, 0)
        count = count[..., None] * (stop - start if include_pad else inside)
        pads.append((p, max((windows - 1) * s + k - p - size, 0)))
    zero = np.zeros((), x.dtype)
    total = lax.reduce_window(
        x, zero, lax.add, (1, 1, *kernel), (1, 1, *stride), ((0, 0), (0, 0), *pads)
    )
    return _unbatched(total / jnp.asarray(divisor or count, x.dtype), batched)


def avg_pool_backward(n: int, g: Any, x: Any, *how: Any) -> Any:
    """Return the gradient, which is spread over each window."""
    return by_vjp(lambda x: avg_pool(n, g, x, *how), (x,), g)[0]


def adaptive_avg_pool(x: Any, sizes: Sequence[int]) -> Any:
    """Return the mean of each window, for a given number of windows."""
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


def adaptive_avg_pool_backward(n: int, g: Any, x: Any) -> Any:
    """Return the gradient, spread over windows of the last n axes."""
    return by_vjp(lambda x: adaptive_avg_pool(x, g.shape[-n:]), (x,), g)[0]


row("aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d")(adaptive_avg_pool)
row("aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d")(adaptive_max_pool)
for _n in (2, 3):
    rows(
        {
            f"aten.max_pool{_n}d_with_indices": partial(max_pool, _n),
            f"aten.avg_pool{_n}d": partial(avg_pool, _n),
        },
        typed=True,
    )
    rows(
        {
            f"aten.max_pool{_n}d_with_indices_backward "
            f"aten.adaptive_max_pool{_n}d_backward": partial(max_pool_backward, _n),
            f"aten.avg_pool{_n}d_backward": partial(avg_pool_backward, _n),
            f"aten._adaptive_avg_pool{_n}d_backward": partial(
                adaptive_avg_pool_backward, _n
            ),
        }
    )
