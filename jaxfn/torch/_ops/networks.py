"""Layers of networks: convolutions, norms and quantizers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfn.torch._ops.row import by_vjp, convert, repeated, row


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
    """Return a convolution, or its transpose."""
    n = w.ndim - 2
    batched = x.ndim == n + 2
    x = x if batched else x[None]
    stride, padding, dilation, extra = (
        repeated(v, n) for v in (stride, padding, dilation, output_padding)
    )
    if transposed:
        # It is the gradient of a convolution: dilate x; flip and regroup the weights.
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
    """Return the gradients of a convolution."""
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
    """Return the normalised array, the mean and the inverse deviation."""
    return _normed(x, tuple(range(x.ndim - len(shape), x.ndim)), w, b, eps)


def _normed(x: Any, at: Any, w: Any, b: Any, eps: float) -> Any:
    wide = convert(x, jnp.promote_types(x.dtype, jnp.float32))
    middle = jnp.mean(wide, at, keepdims=True)
    inverse = lax.rsqrt(jnp.mean((wide - middle) ** 2, at, keepdims=True) + eps)
    y = (wide - middle) * inverse
    y = y if w is None else y * w
    return (y if b is None else y + b).astype(x.dtype), middle, inverse


@row("aten.native_group_norm", accumulates=True)
def group_norm(
    x: Any, w: Any, b: Any, n: int, c: int, hw: int, groups: int, eps: float
) -> Any:
    """Return the array, normalised in groups of channels, with means and deviations."""
    shape = n, groups, c // groups * hw
    y, middle, inverse = _normed(x.reshape(shape), (2,), None, None, eps)
    channels = (1, c, *(1,) * (x.ndim - 2))
    y = y.reshape(x.shape)
    y = y if w is None else y * w.reshape(channels)
    y = y if b is None else y + b.reshape(channels)
    return y, middle[..., 0], inverse[..., 0]


def _batch_norm(x: Any, w: Any, b: Any, mean: Any, var: Any, eps: float) -> Any:
    channels = (1, -1, *(1,) * (x.ndim - 2))
    inverse = lax.rsqrt(var + eps)
    y = (x - mean.reshape(channels)) * inverse.reshape(channels)
    y = y if w is None else y * w.reshape(channels)
    return (y if b is None else y + b.reshape(channels)), mean, inverse


def _moments(x: Any) -> tuple[Any, Any]:
    """Return the mean and the variance of each channel."""
    at = tuple(d for d in range(x.ndim) if d != 1)
    return jnp.mean(x, at), jnp.var(x, at)


@row("aten._native_batch_norm_legit.no_stats", accumulates=True)
def batch_norm_no_stats(
    x: Any, w: Any, b: Any, training: bool, momentum: float, eps: float
) -> Any:
    """Normalise by the batch's own mean and variance."""
    del training, momentum
    return _batch_norm(x, w, b, *_moments(x), eps)


@row(
    *("aten.native_batch_norm", "aten._native_batch_norm_legit.default"),
    typed=True,
    accumulates=True,
)
def batch_norm(
    out: Any, x: Any, w: Any, b: Any, mean: Any, var: Any, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    """Normalise by the batch's mean and variance, or by `mean` and `var`."""
    if training:
        return _batch_norm(x, w, b, *_moments(x), eps)
    y, *_ = _batch_norm(x, w, b, mean, var, eps)
    return y, *(jnp.zeros(t.shape, t.dtype) for t in out[1:])


row("aten._native_batch_norm_legit_no_training", typed=True, accumulates=True)(
    lambda out, x, w, b, mean, var, momentum, eps: batch_norm(
        out, x, w, b, mean, var, False, momentum, eps
    )
)


@row("aten._native_batch_norm_legit_functional", accumulates=True)
def batch_norm_functional(
    x: Any, w: Any, b: Any, mean: Any, var: Any, training: bool, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    """Normalise as `batch_norm`, and return new running means and variances."""
    if not training:
        y, *_ = _batch_norm(x, w, b, mean, var, eps)
        none = jnp.zeros((0,), x.dtype)
        return y, none, none, mean, var
    middle, spread = _moments(x)
    y, _, inverse = _batch_norm(x, w, b, middle, spread, eps)
    count = x.size // x.shape[1]
    spread = spread * count / max(count - 1, 1)
    mean = (1 - momentum) * mean + momentum * middle
    return y, middle, inverse, mean, (1 - momentum) * var + momentum * spread


def _fake_quantize(
    x: Any, scale: Any, zero: Any, low: int, high: int, product: Any
) -> Any:
    """Round to multiples of `scale`, and return what the limits have not cut.

    The derivative by `x` is 1 there, as in torch, and 0 elsewhere. Torch takes scales
    in float32, whatever the dtype of `x`, and computes the multiples in that of
    `product`.
    """
    scale = jnp.asarray(scale, jnp.float32)
    steps = x.astype(jnp.promote_types(x.dtype, jnp.float32)) * (1 / scale)
    whole = jnp.issubdtype(jnp.result_type(zero), jnp.integer)
    steps = zero + jnp.round(steps) if whole else jnp.round(zero + steps)
    multiple = jnp.clip(steps, low, high).astype(product) - zero
    rounded = lax.stop_gradient((multiple * scale).astype(x.dtype))
    kept = (low <= steps) & (steps <= high)
    through = jnp.where(kept, x, 0)
    return rounded + (through - lax.stop_gradient(through)), kept


@row("aten.fake_quantize_per_tensor_affine_cachemask")
def fake_quantize(x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    """Round to multiples of a number."""
    return _fake_quantize(x, scale, zero, low, high, jnp.float32)


@row("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def fake_quantize_if(
    x: Any, scale: Any, zero: Any, enabled: Any, low: int, high: int
) -> Any:
    """Round to multiples of `scale` if `enabled` is not 0. All three are one number."""
    zero = zero.reshape(()).astype(jnp.int32)  # torch cuts off its fraction
    rounded, kept = fake_quantize(x, scale.reshape(()), zero, low, high)
    on = enabled.reshape(()) != 0
    return jnp.where(on, rounded, x), ~on | kept


@row("aten.fake_quantize_per_channel_affine_cachemask")
def fake_quantize_channels(
    x: Any, scale: Any, zero: Any, axis: int, low: int, high: int
) -> Any:
    """Round to multiples of a scale for each index of an axis."""
    axes = [i for i in range(x.ndim) if i != axis]
    scale, zero = (jnp.expand_dims(y, axes) for y in (scale, zero))
    product = jnp.promote_types(x.dtype, jnp.float32)
    return _fake_quantize(x, scale, zero, low, high, product)


@row("aten._weight_norm_interface_backward")
def weight_norm_backward(g: Any, v: Any, scale: Any, norms: Any, dim: int) -> Any:
    """Return the gradients of `v * scale / norm(v)` by `v` and by `scale`."""
    at = tuple(d for d in range(v.ndim) if d != dim)
    along = jnp.sum(g * v, at, keepdims=True)
    norms = norms.reshape(along.shape)
    g_v = scale / norms * (g - v * along / norms**2)
    return g_v, (along / norms).reshape(scale.shape)


_SUM, _MEAN, _MAX = range(3)


def _bags(at: Any, offsets: Any, n: int) -> Any:
    """Return the bag of each index."""
    return jnp.searchsorted(offsets[:n], jnp.arange(at.shape[0]), side="right") - 1


@row("aten._embedding_bag", typed=True)
def embedding_bag(
    out: Any, w: Any, at: Any, offsets: Any, scale_grad_by_freq: bool = False,
    mode: int = _SUM, sparse: bool = False, weights: Any = None,
    include_last_offset: bool = False, padding_idx: int = -1,
) -> Any:  # fmt: skip
    """Return the sum, mean or maximum of the rows in each bag, and what backward needs.

    A bag is a part of the indices, from its offset to the next one.
    """
    n_bags, n = out[0].shape[0], at.shape[0]
    bag = _bags(at, offsets, n_bags)
    is_used = at != padding_idx
    rows = w[at] if weights is None else w[at] * weights[:, None]
    sizes = jax.ops.segment_sum(is_used.astype(offsets.dtype), bag, n_bags)
    places = jnp.zeros((n_bags, w.shape[1]), offsets.dtype)
    if mode == _MAX:
        low = jnp.where(is_used[:, None], rows, -jnp.inf)
        y = jax.ops.segment_max(low, bag, n_bags)
        y = jnp.where(sizes[:, None] > 0, y, 0)
        order = jnp.where(
            is_used[:, None] & (rows == y[bag]), jnp.arange(n)[:, None], n
        )
        first = jax.ops.segment_min(order, bag, n_bags)
        places = jnp.where(sizes[:, None] > 0, at[jnp.clip(first, 0, n - 1)], -1)
    else:
        y = jax.ops.segment_sum(jnp.where(is_used[:, None], rows, 0), bag, n_bags)
        y = y / jnp.maximum(sizes, 1)[:, None] if mode == _MEAN else y
    found = bag, sizes, places
    # Torch leaves out what its backward does not need in this mode.
    return y, *[
        x if x.shape == t.shape else jnp.zeros(t.shape, t.dtype)
        for x, t in zip(found, out[1:], strict=True)
    ]


@row("aten._embedding_bag_backward")
def embedding_bag_backward(
    g: Any, at: Any, offsets: Any, bag: Any, sizes: Any, places: Any, n_rows: int,
    scale_grad_by_freq: bool, mode: int, sparse: bool, weights: Any = None,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    """Return the gradient of `embedding_bag` by its table."""
    if scale_grad_by_freq:  # torch divides by other numbers than the frequencies
        raise NotImplementedError("scale_grad_by_freq=True")
    empty = jnp.zeros((n_rows, g.shape[1]), g.dtype)
    bag = _bags(at, offsets, g.shape[0])
    if mode == _MAX:
        columns = jnp.broadcast_to(jnp.arange(g.shape[1]), g.shape)
        return empty.at[places, columns].add(jnp.where(places < 0, 0, g))
    if mode == _MEAN:
        g = g / jnp.maximum(sizes, 1)[:, None]
    rows = g[bag] if weights is None else g[bag] * weights[:, None]
    rows = jnp.where((at != padding_idx)[:, None], rows, 0)
    return empty.at[at].add(rows)


@row("aten._embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(
    g: Any, w: Any, at: Any, offsets: Any, bag: Any, mode: int, padding_idx: int = -1
) -> Any:
    """Return the gradient of `embedding_bag` by the weights of the indices."""
    found = (g[_bags(at, offsets, g.shape[0])] * w[at]).sum(-1)
    return jnp.where(at != padding_idx, found, 0)
