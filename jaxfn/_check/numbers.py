"""Numbers for `check`: directions, finite differences, comparisons.

Differences. The slope of f along a direction is estimated by the five-point formula

    (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h,

whose error is of order h^4, beside a rounding error of eps / h. Both are smallest
together at h = eps^(1/5), where they are eps^(4/5): 3e-13 in float64, 3e-6 in float32.
Near a kink a smaller step is right, so several are tried, and for each element that
pair of neighbouring steps counts which agrees best. An element for which none agree has
no slope that could be compared with.

Tolerances. A comparison with differences allows eps^(2/5), half of the digits that they
have (5e-7 in float64): rules are wrong by a factor, a sign, a term, seldom by less. A
comparison of two ways to compute the same allows eps^(1/2), half of all digits.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._base import compat, pytree

Arrays: TypeAlias = list[Any]
Fun: TypeAlias = Callable[..., Arrays]


class Skip(Exception):  # noqa: N818  (no error)
    """A check can't run; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The largest difference that a check found.

    Attributes:
        error: relative to the size of the array that it is in.
        tolerance: the largest error that passes.
        where: the array and element, with both values.
    """

    error: float = 0.0
    tolerance: float = 0.0
    where: str = ""

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # NaN is not


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """That which is furthest above its tolerance; NaN above all."""

    def excess(o: Outcome) -> float:
        return np.inf if np.isnan(o.error) else o.error / (o.tolerance or 1.0)

    return max(outcomes, key=excess, default=Outcome())


def is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def is_complex(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def wide(x: Any) -> np.ndarray:
    """`x` in NumPy, in double precision; a key as its data."""
    if is_key(x):
        x = jax.random.key_data(x)
    return np.asarray(x).astype(np.complex128 if is_complex(x) else np.float64)


def eps_of(arrays: Sequence[Any]) -> float:
    """The rounding error of the least precise of these arrays."""
    floats = [x.dtype for x in arrays if pytree.is_inexact(x)]
    return max((float(jnp.finfo(d).eps) for d in floats), default=2.0**-52)


def copies(arrays: Sequence[Any]) -> Arrays:
    """Fresh buffers: a Function may mark its arguments dirty, which uses them up."""
    return [x if compat.is_tracer(x) or is_key(x) else jnp.copy(x) for x in arrays]


# ---- directions


def direction(x: Any, generator: np.random.Generator) -> Any:
    """A random direction at `x`, about as long as `x` is."""
    size = float(np.sqrt(np.mean(np.abs(wide(x)) ** 2))) if x.size else 1.0
    return like(x, generator) * float(np.clip(size, 1e-3, 1e3))


def like(x: Any, generator: np.random.Generator) -> Any:
    """Normal numbers in the space of `x`."""
    numbers: Any = generator.standard_normal(x.shape)
    if is_complex(x):
        numbers = numbers + 1j * generator.standard_normal(x.shape)
    return jnp.asarray(numbers, x.dtype)


def pairing(cts: Sequence[Any], ts: Sequence[Any]) -> float:
    """<ct, t>: without a conjugate, as JAX pairs them."""
    pairs = zip(cts, ts, strict=True)
    return float(sum(np.sum(wide(ct) * wide(t)).real for ct, t in pairs))


def size_of(cts: Sequence[Any], ts: Sequence[Any]) -> float:
    """The pairing if nothing cancelled."""
    pairs = zip(cts, ts, strict=True)
    return float(sum(np.sum(np.abs(wide(ct) * wide(t))) for ct, t in pairs))


# ---- differences


@dataclasses.dataclass(frozen=True, slots=True)
class Slope:
    """The slope of one output along a direction.

    Attributes:
        value: in double precision.
        settled: for each element, whether the differences agree on it.
        floor: slopes below it can't be told from rounding.
    """

    value: np.ndarray
    settled: np.ndarray
    floor: float


def slopes(f: Fun, xs: Sequence[Any], along: Sequence[Any], eps: float) -> list[Slope]:
    """The slopes of the outputs of `f` at `xs` along a direction (None: none)."""
    first = eps**0.2
    found = [_five_points(f, xs, along, h) for h in (first, first / 8, first / 64)]
    values = [wide(o) for o in f(*xs)]
    return [
        _settle([estimates[j] for estimates in found], value, eps)
        for j, value in enumerate(values)
    ]


def _five_points(
    f: Fun, xs: Sequence[Any], along: Sequence[Any], h: float
) -> list[np.ndarray]:
    def at(step: float) -> list[np.ndarray]:
        moved = [
            x if d is None else x + jnp.asarray(step, d.real.dtype) * d
            for x, d in zip(xs, along, strict=True)
        ]
        return [wide(o) for o in f(*moved)]

    points = zip(at(h), at(-h), at(2 * h), at(-2 * h), strict=True)
    with np.errstate(all="ignore"):
        return [(8 * (a - b) - (c - d)) / (12 * h) for a, b, c, d in points]


def _settle(estimates: list[np.ndarray], value: np.ndarray, eps: float) -> Slope:
    with np.errstate(all="ignore"):
        pairs = list(itertools.pairwise(estimates))
        gaps = np.stack([np.abs(a - b) for a, b in pairs])
        gaps = np.where(np.isnan(gaps), np.inf, gaps)
        best = np.argmin(gaps, axis=0)
        means = np.stack(estimates[:-1])
        slope = np.take_along_axis(means, best[None], 0)[0]
        gap = np.take_along_axis(gaps, best[None], 0)[0]
        finite = np.where(np.isfinite(slope), np.abs(slope), 0)
        floor = eps**0.4 * float(np.max(np.abs(value), initial=0.0)) + 1e-30
        scale = np.max(finite, initial=0.0) + floor
        return Slope(slope, gap <= eps**0.4 * scale, floor)


# ---- comparisons


def compare(
    got: Sequence[Any],
    expected: Sequence[Any],
    labels: Sequence[str],
    tolerance: float,
    *,
    floor: float = 0.0,
) -> Outcome:
    """The largest difference of two lists of arrays, each relative to its array."""
    if len(got) != len(expected):
        return Outcome(np.inf, tolerance, f"{len(got)} arrays for {len(expected)}")
    triples = zip(got, expected, labels, strict=True)
    return worst([_compare(a, b, label, tolerance, floor) for a, b, label in triples])


def _compare(
    got: Any, expected: Any, label: str, tolerance: float, floor: float
) -> Any:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        text = (
            f"{label}: expected {expected.dtype}{list(expected.shape)}, "
            f"got {got.dtype}{list(got.shape)}"
        )
        return Outcome(np.inf, tolerance, text)
    a, b = wide(got), wide(expected)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return Outcome(0.0, tolerance)
    with np.errstate(all="ignore"):
        finite = np.where(np.isfinite(b), np.abs(b), 0)
        size = max(float(np.max(finite)), floor, 1e-30)
        gaps = np.where(same, 0.0, np.abs(a - b) / size)
        gaps = np.where(np.isnan(gaps), np.inf, gaps)
    at = np.unravel_index(int(np.argmax(gaps)), gaps.shape)
    place = f" at {[int(i) for i in at]}" if at else ""
    text = f"{label}{place}: expected {b[at]:.6g}, got {a[at]:.6g}"
    return Outcome(float(gaps[at]), tolerance, text)


def is_close(got: float, expected: float, size: float, tolerance: float) -> Outcome:
    """Two numbers, the difference relative to `size`."""
    gap = abs(got - expected)
    error = 0.0 if gap == 0 else gap / max(size, 1e-30)
    text = f"expected {expected:.6g}, got {got:.6g}"
    return Outcome(float(np.nan_to_num(error, nan=np.inf)), tolerance, text)
