"""Reductions, scans and distances between points."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfn.torch._ops.row import reduce_axes, row, rows, wide


def _over(fn: Any) -> Any:
    """Return the row of a function that reduces dimensions."""

    def reduced(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return fn(x, axis=reduce_axes(x, dim), keepdims=keepdim and x.ndim > 0)

    return reduced


def _wide_over(fn: Any) -> Any:
    """Return such a row that computes in the dtype of the result."""

    def reduced(out: Any, x: Any, *how: Any, **options: Any) -> Any:
        options.pop("dtype", None)
        return _over(fn)(x.astype(out.dtype), *how, **options)

    return reduced


rows(
    {
        "aten.sum": _wide_over(jnp.sum),
        "aten.mean": _wide_over(jnp.mean),
        "aten.prod": _wide_over(jnp.prod),
    },
    typed=True,
)
amax, amin = _over(jnp.max), _over(jnp.min)
rows(
    {
        "aten.amax aten.max.default": amax,
        "aten.amin aten.min.default": amin,
        "aten.any": _over(jnp.any),
        "aten.all": _over(jnp.all),
        "aten._is_all_true": jnp.all,
        "aten._is_any_true": jnp.any,
    }
)


@row("aten.histc")
def histc(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Count the elements in bins of one width; those beside them don't count."""
    x = x.reshape(-1)
    low, high = jnp.asarray(min, x.dtype), jnp.asarray(max, x.dtype)
    if min == max:
        low, high = (jnp.min(x), jnp.max(x)) if x.size else (low, high)
        is_point = low == high
        low, high = low - is_point, high + is_point
    place = ((x - low) * bins / (high - low)).astype(jnp.int32)
    inside = (low <= x) & (x <= high)
    place = jnp.where(inside, jnp.minimum(place, bins - 1), bins)
    return jnp.zeros(bins, x.dtype).at[place].add(1, mode="drop")


def _at(fn: Any) -> Any:
    """Return the row for the position of the first maximum (or minimum), or nan."""

    def where(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        if x.ndim == 0:
            return jnp.zeros((), jnp.int32)
        return fn(x, axis=dim, keepdims=keepdim)

    return where


argmax, argmin = _at(jnp.argmax), _at(jnp.argmin)
rows(
    {
        "aten.argmax": argmax,
        "aten.argmin": argmin,
        # The maximum (or minimum) along a dimension, and its position.
        "aten.max.dim": lambda *how, **k: (amax(*how, **k), argmax(*how, **k)),
        "aten.min.dim": lambda *how, **k: (amin(*how, **k), argmin(*how, **k)),
    }
)


@row("aten.var_mean.correction", accumulates=True)
def var_mean(
    x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    """Return the variance, with divisor n - `correction`, and the mean."""
    at, keep = reduce_axes(x, dim), keepdim and x.ndim > 0
    middle = jnp.mean(x, axis=at, keepdims=True)
    total = jnp.sum(jnp.abs(x - middle) ** 2, axis=at, keepdims=keep)
    count = x.size // middle.size if middle.size else 0
    free = max(count - (1 if correction is None else correction), 0)
    var = total / jnp.asarray(free, total.dtype)
    return var, middle if keepdim else jnp.squeeze(middle, at)


row("aten.var.correction", accumulates=True)(
    lambda x, dim=None, **how: var_mean(x, dim, **how)[0]
)


# ---- along a dimension


def _scan(fn: Any) -> Any:
    def along(out: Any, x: Any, dim: int, **_: Any) -> Any:
        x = x.astype(wide(out.dtype))
        return fn(x, axis=dim % x.ndim) if x.ndim else x

    return along


def _cumlogsumexp(x: Any, axis: int) -> Any:
    if jnp.iscomplexobj(x):
        raise NotImplementedError("of complex numbers")
    return lax.cumlogsumexp(x, axis=axis)


rows(
    {
        "aten.cumsum": _scan(jnp.cumsum),
        "aten.cumprod": _scan(jnp.cumprod),
        "aten.logcumsumexp": _scan(_cumlogsumexp),
    },
    typed=True,
    accumulates=True,
)


def _best_so_far(fn: Any, x: Any, dim: int) -> Any:
    """Return the running maximum (or minimum), and the last position of each."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    dim %= x.ndim
    best = fn(x, axis=dim)
    index = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    hit = jnp.where((x == best) | (x != x), index, -1)
    return best, lax.cummax(hit, axis=dim)


row("aten.cummax")(partial(_best_so_far, lax.cummax))
row("aten.cummin")(partial(_best_so_far, lax.cummin))


@row("aten._softmax", accumulates=True)
def softmax(x: Any, dim: int, *_: Any) -> Any:
    """Return exponentials that sum to one along a dimension."""
    return jax.nn.softmax(x, axis=dim) if x.ndim else jnp.ones_like(x)


@row("aten._log_softmax", accumulates=True)
def log_softmax(x: Any, dim: int, *_: Any) -> Any:
    """Return the logarithm of softmax."""
    return jax.nn.log_softmax(x, axis=dim) if x.ndim else jnp.zeros_like(x)


@row("aten.linalg_vector_norm", typed=True, accumulates=True)
def vector_norm(
    out: Any, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> Any:
    """Return the norm of this order."""
    size = jnp.abs(x).astype(wide(out.dtype))
    norm = partial(jnp.linalg.vector_norm, ord=ord)
    return norm(size) if x.ndim == 0 else _over(norm)(size, dim, keepdim)


@row("aten.dist")
def dist(x: Any, y: Any, p: Any = 2) -> Any:
    """Return the norm of the difference."""
    return jnp.linalg.vector_norm(jnp.abs(x - y), ord=p)


@row("aten._cdist_forward")
def cdist(x: Any, y: Any, p: Any, mode: Any = None) -> Any:
    """Return the distances of all pairs of rows."""
    del mode
    gap = x[..., :, None, :] - y[..., None, :, :]
    return jnp.linalg.vector_norm(gap, ord=p, axis=-1)


@row("aten._cdist_backward")
def cdist_backward(g: Any, x: Any, y: Any, p: float, found: Any) -> Any:
    """Return the gradient of distances by the first rows; 0 for a distance of 0."""
    gap = x[..., :, None, :] - y[..., None, :, :]
    g, far = g[..., None], found[..., None]
    if p == 0:
        slope = jnp.zeros_like(gap)
    elif p == 1:
        slope = jnp.sign(gap)
    elif p == float("inf"):
        slope = jnp.where(jnp.abs(gap) == far, jnp.sign(gap), 0)
    else:
        part = jnp.abs(gap) / jnp.where(far == 0, 1, far)
        slope = jnp.sign(gap) * part ** (p - 1)
        slope = jnp.where((far == 0) | ((gap == 0) & (p < 2)), 0, slope)
    return jnp.sum(slope * g, -2)


@row("aten._pdist_forward")
def pdist(x: Any, p: Any = 2) -> Any:
    """Return the distances of the pairs of rows, each pair once."""
    i, j = jnp.triu_indices(x.shape[0], 1)
    return jnp.linalg.vector_norm(x[i] - x[j], ord=p, axis=-1)


@row("aten._pdist_backward")
def pdist_backward(g: Any, x: Any, p: float, found: Any) -> Any:
    """Return the gradient of the distances of pairs, by both rows of each."""
    at = jnp.triu_indices(x.shape[0], 1)
    square = jnp.zeros((x.shape[0],) * 2, g.dtype)
    g, found = (square.at[at].set(v) + square.at[at].set(v).T for v in (g, found))
    return cdist_backward(g, x, x, p, found)
