"""Slopes of a function, by finite differences.

The slope of f along a direction is estimated by the five-point formula

    (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h,

with an error of order h^4 and a rounding error of eps / h. Their sum is smallest at h =
eps^(1/5): eps^(4/5), which is 3e-13 in float64 and 3e-6 in float32. Near a kink a
smaller step is right, so several are tried. For each element, the pair of neighbouring
steps that agrees best counts. If none agree, the element has no slope to compare with.

If f is accurate only to sigma (`noise`), the formula is wrong by up to 1.5 sigma / h,
the effect of a jump of sigma. The error of an iteration has no larger effect: it grows
over an interval, and falls by sigma at its end. So all steps from 1/4 down are tried,
and twice this bound is allowed. The step with the smallest sum of bound and gap to the
next step counts.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from jaxfn._check import numbers, shared
from jaxfn._check.case import Case
from jaxfn._check.numbers import Arrays
from jaxfn._check.shared import Outcome

Fun: TypeAlias = Callable[..., list[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Slope:
    """The slope of one output along a direction.

    Attributes:
        value: The slope, in double precision.
        settled: For each element, whether the differences agree.
        least_size: Size below which a slope can't be told from rounding.
        error: Error of each element, from the noise of the function.
    """

    value: np.ndarray
    settled: np.ndarray
    least_size: float
    error: np.ndarray | float = 0.0


def line(f: Fun, xs: Sequence[Any], along: Sequence[Any]) -> Callable[[float], Any]:
    """Return `f` on the line through `xs` along a direction, in NumPy."""
    return lambda step: [
        shared.wide(o)
        for o in f(
            *[
                x if d is None else numbers.moved(x, step, d)
                for x, d in zip(xs, along, strict=True)
            ]
        )
    ]


def slopes(
    f: Fun,
    xs: Sequence[Any],
    along: Sequence[Any],
    eps: float,
    noise: Sequence[float] | None = None,
) -> list[Slope]:
    """Return the slopes of the outputs of `f` at `xs` along a direction.

    `noise` is the accuracy of each output, relative to its largest element.
    """
    at = line(f, xs, along)
    values = at(0.0)
    if noise is not None and any(noise):
        return _noisy(at, values, eps, noise)
    first = eps**0.2
    found = [_five_points(at, first / 8**k) for k in range(3)]
    settled = [_settle([e[j] for e in found], v, eps) for j, v in enumerate(values)]
    if not all(s.settled.all() for s in settled):
        smaller = [first / 8**k for k in (3, 4)]
        found += [_five_points(at, h) for h in smaller if h >= 10 * eps**0.6]
        settled = [_settle([e[j] for e in found], v, eps) for j, v in enumerate(values)]
    return settled


def _five_points(at: Callable[[float], Any], h: float) -> list[np.ndarray]:
    points = zip(at(h), at(-h), at(2 * h), at(-2 * h), strict=True)
    with np.errstate(all="ignore"):
        return [(8 * (a - b) - (c - d)) / (12 * h) for a, b, c, d in points]


def _settle(estimates: list[np.ndarray], value: np.ndarray, eps: float) -> Slope:
    with np.errstate(all="ignore"):
        pairs = list(itertools.pairwise(estimates))
        gaps = np.stack([np.abs(a - b) for a, b in pairs])
        slope, gap, _ = _best(estimates, gaps, gaps)
        least_size = _least_size(value, eps)
        return Slope(
            slope, gap <= eps**0.4 * (shared.largest(slope) + least_size), least_size
        )


def _best(
    estimates: list[np.ndarray], gaps: np.ndarray, errors: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each element the best estimate, its gap, and its index."""
    errors = np.where(np.isnan(errors), np.inf, errors)
    gaps = np.where(np.isnan(gaps), np.inf, gaps)
    best = np.argmin(errors, axis=0)[None]
    slope = np.take_along_axis(np.stack(estimates[:-1]), best, 0)[0]
    return slope, np.take_along_axis(gaps, best, 0)[0], best[0]


def _least_size(value: np.ndarray, eps: float) -> float:
    return eps**0.4 * float(np.max(np.abs(value), initial=0.0)) + 1e-30


# ---- for a function with noise

_HALVINGS = 14
_UNKNOWN = 1e-2
"""Largest relative error of a slope; with a larger one it counts as unknown."""


def _noisy(
    at: Callable[[float], Any],
    values: list[np.ndarray],
    eps: float,
    noise: Sequence[float],
) -> list[Slope]:
    widths = [0.5 / 2**k for k in range(_HALVINGS)]
    points = [(at(w), at(-w)) for w in widths]
    found = []
    for j, (value, relative) in enumerate(zip(values, noise, strict=True)):
        size = shared.largest(value)
        sigma = max(relative, eps) * size
        with np.errstate(all="ignore"):
            halves = [high[j] - low[j] for high, low in points]
            estimates = [
                (8 * b - a) / (12 * h)
                for (a, b), h in zip(
                    itertools.pairwise(halves), widths[1:], strict=True
                )
            ]
            gaps = np.stack([np.abs(a - b) for a, b in itertools.pairwise(estimates)])
            shape = (-1,) + (1,) * value.ndim
            bounds = (3 * sigma / np.array(widths[1:-1])).reshape(shape)
            slope, gap, best = _best(estimates, gaps, gaps + bounds)
            bound = bounds.ravel()[best]
            scale = shared.largest(slope) + _least_size(value, eps)
            settled = (gap <= 2 * bound + eps**0.4 * scale) & (
                bound <= _UNKNOWN * (scale + size)
            )
            error = np.where(settled, gap + bound, 0.0)
        found.append(Slope(slope, settled, _least_size(value, eps), error))
    return found


# ---- for a case

UNSETTLED = (
    "the value has no slope here that finite differences agree on: it jumps, or "
    "forward rounds to a lower precision. Pass `reference`, or `surrogate=True` if the "
    "derivative differs from the value's on purpose"
)


def slopes_of(
    case: Case, along: Sequence[Any], accuracies: Sequence[float] = ()
) -> list[Slope]:
    """Return the slopes of the value, or the derivative of the reference."""
    if case.reference is None:
        known = accuracies or None
        found = slopes(case.quick_f, case.xs, along, case.eps, known)
        # A marked output has no derivative, although its value varies.
        return [
            s
            if has
            else Slope(np.zeros_like(s.value), np.ones_like(s.settled), s.least_size)
            for s, has in zip(found, case.has_derivative, strict=True)
        ]
    ts = [
        z if d is None else d
        for z, d in zip(numbers.zeros(case.xs), along, strict=True)
    ]
    tangents = case.reference_program(ts, *case.xs)
    return [
        Slope(shared.wide(t), np.ones(t.shape, bool), case.eps**0.4) for t in tangents
    ]


def has_slope(slopes: Sequence[Slope]) -> bool:
    return all(s.settled.all() for s in slopes) or any(s.settled.any() for s in slopes)


def masked(slopes: Sequence[Slope], cts: Arrays) -> Arrays:
    return [
        numbers.array(np.where(s.settled, np.asarray(ct), 0), ct.dtype)
        for s, ct in zip(slopes, cts, strict=True)
    ]


def paired(
    case: Case,
    got: tuple[Sequence[Any], Sequence[Any]],
    slopes: Sequence[Slope],
    cts: Sequence[Any],
    allowed: float = 0.0,
) -> Outcome:
    """Compare the pairing of two lists of arrays with that of cotangents and slopes.

    An absolute difference of `allowed` always passes.
    """
    values = [np.where(s.settled, s.value, 0) for s in slopes]
    size = max(numbers.size_of(*got), numbers.size_of(cts, values))
    size += sum(s.least_size for s in slopes)
    errors = [np.broadcast_to(s.error, s.value.shape) for s in slopes]
    return shared.is_close(
        numbers.pairing(*got),
        numbers.pairing(cts, values),
        size,
        case.slope_tolerance,
        allowed + numbers.size_of(cts, errors),
    )
