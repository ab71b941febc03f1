"""Descriptions of wrong arrays: common mistakes that the values show.

They are hints for a message, so a near match counts.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from jaxfn._check import numbers, shared
from jaxfn._check.case import Case
from jaxfn._check.finite_differences import masked, slopes_of
from jaxfn._check.numbers import Arrays
from jaxfn._check.shared import Outcome
from jaxfn._core import results

NEARLY = 1e-3
"""Tolerance, relative to the largest element; finite differences are no better."""

_MOST_PARTS = 1000


def likeness(got: np.ndarray, expected: np.ndarray, what: str) -> str:
    """Describe `got` relative to `expected` in words; empty if nothing simple fits.

    Args:
        got: An array in double precision.
        expected: The expected array.
        what: A word for both, such as "gradient".
    """
    if got.shape != expected.shape:
        if got.ndim > 1 and got.shape == expected.shape[::-1]:
            return f"the shape of the {what} is that of its transpose"
        return ""
    if not got.size or not np.isfinite(got).all() or not np.isfinite(expected).all():
        return ""
    return next(_found(got, expected, what), "")


def _found(got: np.ndarray, expected: np.ndarray, what: str) -> Iterator[str]:
    whole = f"the whole {what}"
    if not got.any():
        yield f"{whole} is zero"
        return
    size = np.vdot(expected, expected)
    if size:
        factor = np.vdot(expected, got) / size
        if is_near(got, factor * expected):
            yield f"{whole} {_times(complex(factor))}"
    if np.iscomplexobj(expected) and is_near(got, expected.conj()):
        yield f"{whole} is the conjugate of the expected one"
    if got.ndim > 1 and is_near(got, np.swapaxes(expected, -1, -2)):
        yield f"{whole} is the transpose of the expected one"
    for axis in range(got.ndim):
        if is_near(got, np.flip(expected, axis)):
            yield f"{whole} is the expected one reversed along axis {axis}"
    if got.size > 1:
        gaps = got - expected
        if is_near(gaps, np.full_like(gaps, gaps.ravel()[0])):
            yield f"every element is off by {_short(complex(gaps.ravel()[0]))}"
    for axis in range(got.ndim):
        if got.shape[axis] > 1 and (signs := _signs(got, expected, axis)):
            yield f"the sign is turned at {signs} of axis {axis}"


def _times(factor: complex) -> str:
    if abs(factor + 1) <= NEARLY:
        return "is the expected one with the sign turned"
    return f"is {_short(factor)} times the expected one{_fraction(factor)}"


def _short(x: complex) -> str:
    if abs(x.imag) > NEARLY * abs(x):
        return f"({x.real:.4g}{x.imag:+.4g}j)"
    text = f"{x.real:.4g}"
    return text if text != "1" else f"{x.real:.9g}"


def _fraction(factor: complex) -> str:
    """Write a factor as 1/n, the sign of a mean in place of a sum."""
    if factor.imag or not 0 < abs(factor.real) < 0.9:
        return ""
    parts = 1 / factor.real
    n = round(parts)
    near = abs(parts - n) <= NEARLY * abs(n) and abs(n) <= _MOST_PARTS
    return f" (1/{n})" if near else ""


def _signs(got: np.ndarray, expected: np.ndarray, axis: int) -> list[int]:
    """Return the places along an axis with a turned sign, if all else is right."""
    others = tuple(i for i in range(got.ndim) if i != axis)
    signs = np.sign(np.sum(np.real(got * expected.conj()), axis=others))
    shape = [1] * got.ndim
    shape[axis] = -1
    if is_near(got, expected * np.where(signs < 0, -1, 1).reshape(shape)):
        return [int(i) for i in np.flatnonzero(signs < 0)]
    return []


def is_near(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two arrays agree as well as finite differences can tell."""
    if a.shape != b.shape:
        return False
    size = float(np.max(np.abs(b), initial=0.0))
    return size > 0 and bool(np.max(np.abs(a - b), initial=0.0) <= NEARLY * size)


# ---- for a case

MOST_ELEMENTS = 100


def located(
    case: Case, outcome: Outcome, i: int, accuracies: Sequence[float]
) -> Outcome:
    """Name the wrong element of a gradient, if it is wrong and has few elements."""
    x, label = case.xs[i], case.x_labels[i]
    if outcome.ok:
        return outcome
    where = f"gradient of {label} along a random direction: {outcome.where}"
    if x.size <= MOST_ELEMENTS:
        expected, cts = _elements(case, i, accuracies)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            got = shared.wide(case.pull(cts, *case.xs)[i])
        text = shared.compare([got], [expected], [f"gradient of {label}"], 0.0).where
        parts = (text, _cause(case, i, got, expected, told, accuracies))
        where = "; ".join(filter(None, parts))
    return dataclasses.replace(outcome, where=where)


def _cause(
    case: Case,
    i: int,
    got: np.ndarray,
    expected: np.ndarray,
    told: Sequence[warnings.WarningMessage],
    accuracies: Sequence[float],
) -> str:
    """Name the likely cause of a wrong gradient; "" if nothing simple fits."""
    missing = [x for x in told if " returned None" in str(x.message)]
    if missing:
        return str(missing[0].message).partition(",")[0] + ": is a return missing?"
    if not expected.any():
        return FLAT
    for j, x in enumerate(case.xs):
        if j != i and x.size <= MOST_ELEMENTS:
            other, _ = _elements(case, j, accuracies)
            # A sum, as over a broadcast dimension, can make the wrong gradient fit.
            pairs = ((other, got), (got, other))
            summed = [(results.sum_to_shape(a, b.shape), b) for a, b in pairs]
            if any(a is not None and is_near(np.asarray(a), b) for a, b in summed):
                return f"it looks like that of {case.x_labels[j]}: is the order right?"
    return likeness(got, expected, "gradient")


FLAT = (
    "the expected gradient is all zero, as of a value that rounds or jumps. If the "
    "rule differs from it on purpose, pass `surrogate=True`"
)


def _elements(
    case: Case, i: int, accuracies: Sequence[float]
) -> tuple[np.ndarray, Arrays]:
    """Return the gradient by each element of argument i, and its cotangents."""
    x = case.xs[i]
    units = [1.0, 1j] if shared.is_complex(x) else [1.0]
    found = {}
    cts = case.first_cts
    for k in np.ndindex(x.shape):
        for unit in units:
            t = np.zeros(x.shape, x.dtype)
            t[k] = unit
            along = [numbers.array(t) if j == i else None for j in range(len(case.at))]
            found[k, unit] = slopes = slopes_of(case, along, accuracies)
            cts = masked(slopes, cts)
    expected = np.zeros(x.shape, shared.wide(x).dtype)
    for (k, unit), slopes in found.items():
        values = [np.where(s.settled, s.value, 0) for s in slopes]
        expected[k] += numbers.pairing(cts, values) / unit
    return expected, cts
