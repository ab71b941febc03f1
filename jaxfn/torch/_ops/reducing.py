"""Reductions and scans."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfn.torch._ops.row import reduce_axes, row, rows


def _wide(out: Any, x: Any) -> Any:
    """`x` in the dtype in which a sum of it is computed."""
    return x.astype(out.dtype) if x.dtype != out.dtype else x


@row("aten.sum", typed=True)
def sum_(out: Any, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """The sum over some dimensions."""
    x = _wide(out, x)
    return jnp.sum(x, axis=reduce_axes(x, dim), keepdims=keepdim and x.ndim > 0)


@row("aten.nansum", typed=True)
def nansum(out: Any, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """The sum without nan."""
    return sum_(out, jnp.where(jnp.isnan(x), 0, x), dim, keepdim)


@row("aten.mean", typed=True)
def mean(out: Any, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """The mean over some dimensions."""
    x = _wide(out, x)
    return jnp.mean(x, axis=reduce_axes(x, dim), keepdims=keepdim and x.ndim > 0)


@row("aten.prod", typed=True)
def prod(out: Any, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """The product over some dimensions."""
    x = _wide(out, x)
    return jnp.prod(x, axis=reduce_axes(x, dim), keepdims=keepdim and x.ndim > 0)


@row("aten.amax")
def amax(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """The greatest over some dimensions."""
    return jnp.max(x, axis=reduce_axes(x, dim), keepdims=keepdim and x.ndim > 0)


@row("aten.amin")
def amin(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """The least over some dimensions."""
    return jnp.min(x, axis=reduce_axes(x, dim), keepdims=keepdim and x.ndim > 0)


@row("aten.aminmax")
def aminmax(x: Any, *, dim: Any = None, keepdim: bool = False) -> Any:
    """The least and the greatest."""
    dims = () if dim is None else dim
    return amin(x, dims, keepdim), amax(x, dims, keepdim)


rows(
    {
        "aten.max.default": amax,
        "aten.min.default": amin,
        "aten.any": lambda x, dim=None, keepdim=False: jnp.any(
            x, axis=reduce_axes(x, dim), keepdims=keepdim and x.ndim > 0
        ),
        "aten.all": lambda x, dim=None, keepdim=False: jnp.all(
            x, axis=reduce_axes(x, dim), keepdims=keepdim and x.ndim > 0
        ),
        "aten._is_all_true": jnp.all,
        "aten._is_any_true": jnp.any,
        "aten.count_nonzero": lambda x, dim=None: jnp.sum(
            x != 0, axis=reduce_axes(x, dim)
        ),
        "aten.logsumexp": lambda x, dim, keepdim=False: jax.nn.logsumexp(
            x, axis=reduce_axes(x, dim), keepdims=keepdim and x.ndim > 0
        ),
    }
)


@row("aten.argmax")
def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Where the greatest is; the first of equal ones, or of nan."""
    return _arg(jnp.argmax, x, dim, keepdim)


@row("aten.argmin")
def argmin(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Where the least is; the first of equal ones, or of nan."""
    return _arg(jnp.argmin, x, dim, keepdim)


def _arg(fn: Any, x: Any, dim: int | None, keepdim: bool) -> Any:
    if x.ndim == 0:
        return jnp.zeros((), jnp.int32)
    return fn(x, axis=dim, keepdims=keepdim)


@row("aten.max.dim")
def max_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The greatest along a dimension, and where it is."""
    return amax(x, dim, keepdim), argmax(x, dim, keepdim)


@row("aten.min.dim")
def min_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The least along a dimension, and where it is."""
    return amin(x, dim, keepdim), argmin(x, dim, keepdim)


def _moments(x: Any, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    at = reduce_axes(x, dim)
    count = 1
    for d in at:
        count *= x.shape[d]
    middle = jnp.mean(x, axis=at, keepdims=True)
    square = jnp.abs(x - middle) ** 2
    total = jnp.sum(square, axis=at, keepdims=keepdim and x.ndim > 0)
    free = max(count - (1 if correction is None else correction), 0)
    var = total / jnp.asarray(free, total.dtype)
    return var, middle if keepdim else jnp.squeeze(middle, at)


@row("aten.var.correction")
def var(
    x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    """The variance, divided by the number less `correction`."""
    return _moments(x, dim, correction, keepdim)[0]


@row("aten.var.dim")
def var_dim(x: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
    """The same, with a flag."""
    return _moments(x, dim, int(unbiased), keepdim)[0]


@row("aten.var.default")
def var_all(x: Any, unbiased: bool = True) -> Any:
    """The same, of all elements."""
    return _moments(x, None, int(unbiased), keepdim=False)[0]


@row("aten.var_mean.correction")
def var_mean(
    x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    """The variance and the mean."""
    return _moments(x, dim, correction, keepdim)


@row("aten.std.correction")
def std(
    x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    """The square root of the variance."""
    return jnp.sqrt(_moments(x, dim, correction, keepdim)[0])


# ---- along a dimension


def _scan(fn: Any) -> Any:
    def along(out: Any, x: Any, dim: int, **_: Any) -> Any:
        x = _wide(out, x)
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
)


@row("aten.cummax")
def cummax(x: Any, dim: int) -> Any:
    """The greatest so far, and where it was: the last of equal ones."""
    return _cum(x, dim, lax.cummax)


@row("aten.cummin")
def cummin(x: Any, dim: int) -> Any:
    """The least so far, and where it was: the last of equal ones."""
    return _cum(x, dim, lax.cummin)


def _cum(x: Any, dim: int, fn: Any) -> Any:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    dim %= x.ndim
    best = fn(x, axis=dim)
    index = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    hit = jnp.where((x == best) | (x != x), index, -1)
    return best, lax.cummax(hit, axis=dim)


def _in_float(out: Any, x: Any) -> Any:
    return x.astype(out.dtype)


@row("aten._softmax", "aten.softmax", typed=True)
def softmax(out: Any, x: Any, dim: int, *_: Any) -> Any:
    """Exponentials that sum to one along a dimension."""
    x = _in_float(out, x)
    return jax.nn.softmax(x, axis=dim) if x.ndim else jnp.ones_like(x)


@row("aten._log_softmax", "aten.log_softmax", typed=True)
def log_softmax(out: Any, x: Any, dim: int, *_: Any) -> Any:
    """The logarithm of softmax."""
    x = _in_float(out, x)
    return jax.nn.log_softmax(x, axis=dim) if x.ndim else jnp.zeros_like(x)


@row("aten._softmax_backward_data")
def softmax_backward(g: Any, y: Any, dim: int, *_: Any) -> Any:
    """The gradient of softmax, of its value."""
    gy = g * y
    return gy - y * jnp.sum(gy, axis=reduce_axes(y, dim), keepdims=y.ndim > 0)


@row("aten._log_softmax_backward_data")
def log_softmax_backward(g: Any, y: Any, dim: int, *_: Any) -> Any:
    """The gradient of log_softmax, of its value."""
    total = jnp.sum(g, axis=reduce_axes(y, dim), keepdims=y.ndim > 0)
    return g - jnp.exp(y) * total


@row("aten.linalg_vector_norm", typed=True)
def vector_norm(
    out: Any,
    x: Any,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    **_: Any,
) -> Any:
    """The norm of this order of vectors."""
    at, keep = reduce_axes(x, dim), keepdim and x.ndim > 0
    size = jnp.abs(x).astype(out.dtype)
    if ord in (float("inf"), float("-inf")):
        fn = jnp.max if ord > 0 else jnp.min
        return fn(size, axis=at, keepdims=keep)
    if ord == 0:
        return jnp.sum(size != 0, axis=at, keepdims=keep)
    if ord == 2:
        return jnp.sqrt(jnp.sum(size * size, axis=at, keepdims=keep))
    if ord == 1:
        return jnp.sum(size, axis=at, keepdims=keep)
    return jnp.sum(size**ord, axis=at, keepdims=keep) ** (1.0 / ord)


@row("aten.norm", typed=True)
def norm(out: Any, x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    """The same, under its old name."""
    return vector_norm(out, x, 2 if p is None else p, dim, keepdim)


@row("aten.dist")
def dist(x: Any, y: Any, p: Any = 2) -> Any:
    """The norm of the difference."""
    out = jax.eval_shape(lambda x, y: x - y, x, y)
    return vector_norm(out, x - y, p)


@row("aten.trace", typed=True)
def trace(out: Any, x: Any) -> Any:
    """The sum of the diagonal."""
    return jnp.trace(x.astype(out.dtype))
