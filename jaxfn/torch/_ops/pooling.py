"""Pooling: maxima and means of windows of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfn.torch._ops.row import by_vjp, lowest, repeated, row, rows


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
