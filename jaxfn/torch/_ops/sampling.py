"""Values at places between the elements: grid_sample, upsampling."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxfn.torch._ops.row import row


def _steps(x: Any, n: int) -> Any:
    """0 to n - 1, in the precision in which torch computes positions."""
    return jnp.arange(n, dtype=jnp.promote_types(x.dtype, jnp.float32))


def _wide(x: Any) -> Any:
    """The array in that precision."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _corners(x: Any, d: int, out: int, align: bool, scale: Any) -> tuple[Any, Any, Any]:
    """Where each new position lies between two old ones."""
    size, i = x.shape[d], _steps(x, out)
    if align:
        at = i * ((size - 1) / (out - 1) if out > 1 else 0.0)
    else:
        ratio = 1 / scale if scale else size / out
        at = jnp.maximum((i + 0.5) * ratio - 0.5, 0)
    low = jnp.minimum(jnp.floor(at).astype(jnp.int32), size - 1)
    return low, jnp.minimum(low + 1, size - 1), at - low


def _rounded(x: Any, out: Any) -> Any:
    """The nearest integers where these are wanted."""
    if not jnp.issubdtype(out.dtype, jnp.integer):
        return x
    limits = jnp.iinfo(out.dtype)
    return jnp.clip(jnp.round(x), limits.min, limits.max)


def _scales(scales: Any, n: int) -> list[Any]:
    return [None] * n if scales is None else list(scales)


def _linear(x: Any, sizes: Any, align: bool, scales: Any) -> Any:
    first, x = x.ndim - len(sizes), _wide(x)
    for d, (size, scale) in enumerate(zip(sizes, scales, strict=True), first):
        low, high, part = _corners(x, d, size, align, scale)
        part = part.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - d - 1))
        a, b = jnp.take(x, low, d), jnp.take(x, high, d)
        x = a * (1 - part) + b * part
    return x


@row(
    "aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_trilinear3d",
    typed=True,
)  # fmt: skip
def upsample_linear(
    out: Any, x: Any, size: Any, align: bool, scales: Any = None, *more: Any
) -> Any:
    """Another size, by what lies between neighbours."""
    del size
    sizes = out.shape[2:]
    if scales is not None and not isinstance(scales, (list, tuple)):
        scales = [scales, *more]
    return _rounded(_linear(x, sizes, align, _scales(scales, len(sizes))), out)


@row(
    "aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d",
    typed=True,
)  # fmt: skip
def upsample_nearest(
    out: Any, x: Any, size: Any, scales: Any = None, *more: Any
) -> Any:
    """Another size, by the nearest in front."""
    del size
    if scales is not None and not isinstance(scales, (list, tuple)):
        scales = [scales, *more]
    sizes = out.shape[2:]
    for d, (n, scale) in enumerate(
        zip(sizes, _scales(scales, len(sizes)), strict=True), 2
    ):
        ratio = jnp.float32(1 / scale if scale else x.shape[d] / n)
        at = jnp.floor(jnp.arange(n, dtype=jnp.float32) * ratio).astype(jnp.int32)
        x = jnp.take(x, jnp.minimum(at, x.shape[d] - 1), d)
    return x


def _upsample_backward(forward: Any) -> Any:
    def backward(out: Any, g: Any, size: Any, shape: Any, *how: Any) -> Any:
        del size
        like = jax.ShapeDtypeStruct(tuple(shape), g.dtype)
        goal = jax.ShapeDtypeStruct(g.shape, g.dtype)

        def run(x: Any) -> Any:
            return forward(goal, x, None, *how)  # of few digits it computes with more

        del out
        wide = jax.eval_shape(run, like).dtype
        return jax.linear_transpose(run, like)(g.astype(wide))[0]

    return backward


row(
    "aten.upsample_linear1d_backward", "aten.upsample_bilinear2d_backward",
    "aten.upsample_trilinear3d_backward", typed=True,
)(_upsample_backward(upsample_linear))  # fmt: skip
row(
    "aten.upsample_nearest1d_backward", "aten.upsample_nearest2d_backward",
    "aten.upsample_nearest3d_backward", typed=True,
)(_upsample_backward(upsample_nearest))  # fmt: skip


def _cubic(part: Any) -> list[Any]:
    """The weights of four neighbours."""
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
    """Another size, by the cubic through four neighbours."""
    del size
    if scales is not None and not isinstance(scales, (list, tuple)):
        scales = [scales, *more]
    x = _wide(x)
    for d, (n, scale) in enumerate(zip(out.shape[2:], _scales(scales, 2), strict=True)):
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


row("aten.upsample_bicubic2d_backward", typed=True)(
    _upsample_backward(upsample_bicubic)
)
