"""Arrays for `check`, made by NumPy, because JAX compiles for each new shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._check.shared import is_complex, is_key, wide
from jaxfn._core import internals

Arrays: TypeAlias = list[Any]


def array(x: Any, dtype: Any = None) -> jax.Array:
    """Make a JAX array of this dtype, without compiling.

    `jnp.asarray` compiles a program for each shape: for a conversion, and in a new JAX
    for every array. An array on several devices stays there.
    """
    if isinstance(x, jax.Array) and len(x.devices()) > 1:
        return jnp.asarray(x, dtype)
    return jax.device_put(np.asarray(x, dtype))


def array_like(data: Any, x: Any) -> jax.Array:
    """Make a JAX array of the dtype of `x`, split over devices like `x`."""
    sharding = getattr(x, "sharding", None)
    if sharding is not None and len(sharding.device_set) > 1:
        return jax.device_put(np.asarray(data, x.dtype), sharding)
    return array(data, x.dtype)


def copies(arrays: Sequence[Any]) -> Arrays:
    """Copy arrays, because a Function may mark its arguments dirty, and delete them."""
    return [x if internals.is_tracer(x) or is_key(x) else _copy(x) for x in arrays]


def _copy(x: Any) -> Any:
    if isinstance(x, jax.Array) and len(x.devices()) > 1:
        return jnp.copy(x)
    return array(np.array(x))


def direction(x: Any, generator: np.random.Generator) -> Any:
    """Make a random direction at `x`, about as long as `x`."""
    size = float(np.sqrt(np.mean(np.abs(wide(x)) ** 2))) if x.size else 1.0
    return like(x, generator, float(np.clip(size, 1e-3, 1e3)))


def like(x: Any, generator: np.random.Generator, size: float = 1.0) -> Any:
    """Make normal numbers in the space of `x`."""
    normal: Any = size * generator.standard_normal(x.shape)
    if is_complex(x):
        normal = normal + size * 1j * generator.standard_normal(x.shape)
    return array_like(normal, x)


def moved(x: Any, step: float, d: Any) -> Any:
    """Take a step along d, in NumPy: to make a JAX array takes as long as to run f."""
    if isinstance(x, jax.Array) and len(x.devices()) > 1:
        return x + jnp.asarray(step, d.real.dtype) * d
    a, b = np.asarray(x), np.asarray(d)
    return np.asarray(a + np.real(b).dtype.type(step) * b, a.dtype)


def zeros(xs: Sequence[Any]) -> Arrays:
    return [array_like(np.zeros(x.shape), x) for x in xs]


def combine(factor: float, a: Sequence[Any], b: Sequence[Any]) -> Arrays:
    """Return factor a + b for each pair."""
    found: Arrays = []
    for like, x, y in zip(a, map(np.asarray, a), map(np.asarray, b), strict=True):
        found.append(array_like(np.real(x).dtype.type(factor) * x + y, like))
    return found


def stack(xs: Sequence[Any], axis: int = 0) -> Any:
    if is_key(xs[0]) or len(xs[0].devices()) > 1:
        return jnp.stack(xs, axis)
    return array(np.stack([np.asarray(x) for x in xs], axis))


def pairing(cts: Sequence[Any], ts: Sequence[Any]) -> float:
    """Return <ct, t>, without a conjugate, as in JAX."""
    pairs = zip(cts, ts, strict=True)
    return float(sum(np.sum(wide(ct) * wide(t)).real for ct, t in pairs))


def size_of(cts: Sequence[Any], ts: Sequence[Any]) -> float:
    """Return the pairing of the absolute values."""
    pairs = zip(cts, ts, strict=True)
    return float(sum(np.sum(np.abs(wide(ct) * wide(t))) for ct, t in pairs))
