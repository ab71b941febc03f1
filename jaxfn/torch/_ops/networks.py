"""Layers of networks: convolutions, norms, attention, sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxfn.torch._ops.distances import by_vjp
from jaxfn.torch._ops.row import row


def _spread(value: Sequence[int], n: int) -> list[int]:
    value = list(value)
    return value * n if len(value) == 1 else value


@row("aten.convolution", "aten._convolution")
def convolution(
    x: Any,
    w: Any,
    b: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Any:
    """A convolution, or its transpose."""
    n = w.ndim - 2
    batched = x.ndim == n + 2
    x = x if batched else x[None]
    stride, padding, dilation, extra = (
        _spread(v, n) for v in (stride, padding, dilation, output_padding)
    )
    if transposed:
        # The gradient of a convolution: spread input, flipped and regrouped weights.
        c, per, *size = w.shape
        w = w.reshape(groups, c // groups, per, *size)
        w = jnp.flip(jnp.swapaxes(w, 1, 2), tuple(range(3, 3 + n)))
        w = w.reshape(groups * per, c // groups, *size)
        reach = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
        pads = [
            (r - p, r - p + e) for r, p, e in zip(reach, padding, extra, strict=True)
        ]
        found = _conv(x, w, [1] * n, pads, stride, dilation, groups)
    else:
        pads = [(p, p) for p in padding]
        found = _conv(x, w, stride, pads, [1] * n, dilation, groups)
    if b is not None:
        found = found + b.reshape(-1, *(1,) * n)
    return found if batched else found[0]


def _conv(
    x: Any, w: Any, stride: Any, pads: Any, spread: Any, dilation: Any, groups: int
) -> Any:
    return lax.conv_general_dilated(
        x,
        w,
        stride,
        pads,
        lhs_dilation=spread,
        rhs_dilation=dilation,
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
    )


@row("aten.convolution_backward")
def convolution_backward(g: Any, x: Any, w: Any, bias_sizes: Any, *how: Any) -> Any:
    """The gradients of a convolution."""
    *options, mask = how

    def forward(x: Any, w: Any) -> Any:
        return convolution(x, w, None, *options)

    gx, gw = by_vjp(forward, (x, w), g)
    gb = None
    if mask[2]:
        gb = jnp.sum(g, [d for d in range(g.ndim) if d != g.ndim - w.ndim + 1])
    del bias_sizes
    return gx if mask[0] else None, gw if mask[1] else None, gb


# ---- norms


@row("aten.native_layer_norm")
def layer_norm(x: Any, shape: Any, w: Any, b: Any, eps: float) -> Any:
    """The normed array, the mean and the inverse deviation."""
    at = tuple(range(x.ndim - len(shape), x.ndim))
    return _normed(x, at, w, b, eps)


def _normed(x: Any, at: Any, w: Any, b: Any, eps: float) -> Any:
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    middle = jnp.mean(wide, at, keepdims=True)
    inverse = lax.rsqrt(jnp.mean((wide - middle) ** 2, at, keepdims=True) + eps)
    y = (wide - middle) * inverse
    y = y if w is None else y * w
    return (y if b is None else y + b).astype(x.dtype), middle, inverse


@row("aten.native_layer_norm_backward")
def layer_norm_backward(
    g: Any, x: Any, shape: Any, mean: Any, rstd: Any, w: Any, b: Any, mask: Any
) -> Any:
    """The gradients of layer_norm."""
    del mean
    at = tuple(range(x.ndim - len(shape), x.ndim))
    lead = tuple(range(x.ndim - len(shape)))
    middle = jnp.mean(x, at, keepdims=True)
    y = (x - middle) * rstd
    gy = g if w is None else g * w
    inner = (
        gy - jnp.mean(gy, at, keepdims=True) - y * jnp.mean(gy * y, at, keepdims=True)
    )
    gw = None if w is None or not mask[1] else jnp.sum(g * y, lead)
    gb = None if b is None or not mask[2] else jnp.sum(g, lead)
    return (inner * rstd if mask[0] else None), gw, gb


@row("aten.native_group_norm")
def group_norm(
    x: Any, w: Any, b: Any, n: int, c: int, hw: int, groups: int, eps: float
) -> Any:
    """The array, normed in groups of channels, with means and deviations."""
    shape = n, groups, c // groups * hw
    y, middle, inverse = _normed(x.reshape(shape), (2,), None, None, eps)
    channels = (1, c, *(1,) * (x.ndim - 2))
    y = y.reshape(x.shape)
    y = y if w is None else y * w.reshape(channels)
    y = y if b is None else y + b.reshape(channels)
    return y, middle[..., 0], inverse[..., 0]


@row("aten.native_group_norm_backward")
def group_norm_backward(
    g: Any, x: Any, mean: Any, rstd: Any, w: Any, n: int, c: int, hw: int,
    groups: int, mask: Any,
) -> Any:  # fmt: skip
    """The gradients of group_norm."""
    shape = n, groups, c // groups * hw
    middle, inverse = mean[..., None], rstd[..., None]
    y = (x.reshape(shape) - middle) * inverse
    channels = (1, c, *(1,) * (x.ndim - 2))
    gy = (g if w is None else g * w.reshape(channels)).reshape(shape)
    inner = gy - jnp.mean(gy, 2, keepdims=True) - y * jnp.mean(gy * y, 2, keepdims=True)
    at = tuple(d for d in range(x.ndim) if d != 1)
    gw = jnp.sum(g * y.reshape(x.shape), at) if mask[1] else None
    gb = jnp.sum(g, at) if mask[2] else None
    return ((inner * inverse).reshape(x.shape) if mask[0] else None), gw, gb


def _batch_norm(x: Any, w: Any, b: Any, mean: Any, var: Any, eps: float) -> Any:
    channels = (1, -1, *(1,) * (x.ndim - 2))
    inverse = lax.rsqrt(var + eps)
    y = (x - mean.reshape(channels)) * inverse.reshape(channels)
    y = y if w is None else y * w.reshape(channels)
    return (y if b is None else y + b.reshape(channels)), inverse


@row(
    "aten._native_batch_norm_legit.no_stats",
    "aten._native_batch_norm_legit_functional_no_stats",
)
def batch_norm_no_stats(
    x: Any, w: Any, b: Any, training: bool, momentum: float, eps: float
) -> Any:
    """Normed by the batch's own mean and variance."""
    del training, momentum
    at = tuple(d for d in range(x.ndim) if d != 1)
    mean = jnp.mean(x, at)
    y, inverse = _batch_norm(x, w, b, mean, jnp.var(x, at), eps)
    return y, mean, inverse


@row("aten.native_batch_norm", "aten._native_batch_norm_legit.default", typed=True)
def batch_norm(
    out: Any, x: Any, w: Any, b: Any, mean: Any, var: Any, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    """Normed by the batch's mean and variance, or by given ones."""
    if training:
        return batch_norm_no_stats(x, w, b, training, momentum, eps)
    y, _ = _batch_norm(x, w, b, mean, var, eps)
    return y, *(jnp.zeros(t.shape, t.dtype) for t in out[1:])


@row("aten._native_batch_norm_legit_no_training", typed=True)
def batch_norm_given(
    out: Any, x: Any, w: Any, b: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    """Normed by given means and variances."""
    return batch_norm(out, x, w, b, mean, var, False, momentum, eps)


@row("aten._native_batch_norm_legit_functional")
def batch_norm_functional(
    x: Any, w: Any, b: Any, mean: Any, var: Any, training: bool, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    """The same, with new running means and variances."""
    if not training:
        y, _ = _batch_norm(x, w, b, mean, var, eps)
        none = jnp.zeros((0,), x.dtype)
        return y, none, none, mean, var
    y, middle, inverse = batch_norm_no_stats(x, w, b, training, momentum, eps)
    at = tuple(d for d in range(x.ndim) if d != 1)
    count = x.size // x.shape[1]
    spread = jnp.var(x, at) * count / max(count - 1, 1)
    mean = (1 - momentum) * mean + momentum * middle
    return y, middle, inverse, mean, (1 - momentum) * var + momentum * spread


@row("aten.native_batch_norm_backward")
def batch_norm_backward(
    g: Any, x: Any, w: Any, mean: Any, var: Any, save_mean: Any, save_inverse: Any,
    train: bool, eps: float, mask: Any,
) -> Any:  # fmt: skip
    """The gradients of batch_norm."""
    at = tuple(d for d in range(x.ndim) if d != 1)
    channels = (1, -1, *(1,) * (x.ndim - 2))
    middle, inverse = (
        (save_mean, save_inverse) if train else (mean, lax.rsqrt(var + eps))
    )
    inverse = inverse.reshape(channels)
    y = (x - middle.reshape(channels)) * inverse
    gy = g if w is None else g * w.reshape(channels)
    inner = gy
    if train:
        inner = gy - jnp.mean(gy, at, keepdims=True)
        inner = inner - y * jnp.mean(gy * y, at, keepdims=True)
    gw = jnp.sum(g * y, at) if mask[1] else None
    gb = jnp.sum(g, at) if mask[2] else None
    return (inner * inverse if mask[0] else None), gw, gb
