"""The accuracy of the function and its derivatives, measured if a check needs it.

If an iteration stops at a tolerance, its value is smooth as long as the number of steps
is constant, and jumps when it changes. A rounded value jumps too. The size of the jumps
tells the accuracy of the value. A function that has a slope never jumps, so this can't
hide a wrong rule.

To find a jump, `jumps` evaluates the function along a line. It takes the interval that
departs most from a polynomial, divides it by eight, and repeats. Each time, the
departure from a cubic shrinks by thousands if the function is smooth, by 8 at a kink,
and not at all at a jump.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from jaxfn._check import numbers
from jaxfn._check.case import Case
from jaxfn._check.finite_differences import line
from jaxfn._check.shared import Outcome

MOST = 10
"""Number of jumps that an error may amount to.

If the steps of an iteration shrink by a factor r, it jumps by 1 - r of its error: by a
tenth for r = 0.9. So two results are at most ten jumps apart.
"""

LARGEST = 1e-4
"""Largest jump, relative to its array, that counts as rounding or tolerance."""

NAMES = {"value": "forward", "gradient": "backward", "tangent": "jvp"}
LINES = 2
"""Number of lines in random directions; there is also one along each argument."""


def of(case: Case, what: str) -> list[float]:
    """Return the accuracy of each value, gradient or tangent near the arguments.

    An iteration may be smooth along one line, with a constant number of steps, and yet
    be as inaccurate as along another line. So several lines are tried.
    """
    if what not in case.accuracy:
        found = [jumps(*line) for line in _lines(case, what)]
        case.accuracy[what] = [max(column) for column in zip(*found, strict=True)]
    return case.accuracy[what]


def jumps(f: Callable[..., Any], xs: Sequence[Any], ts: Sequence[Any]) -> list[float]:
    """Return the largest jump of each result of `f`, on a line through `xs`."""
    return _largest_jumps(line(f, xs, ts))


Line: TypeAlias = tuple[Callable[..., Any], Sequence[Any], Sequence[Any]]


def _lines(case: Case, what: str) -> Iterator[Line]:
    """Yield the lines: along all arguments, and for a value along each alone."""
    generator, n, xs = case.rng(), len(case.at), case.xs
    f = _function(case, what, n)
    # An untraced function is slow, so use one line.
    for _ in range(LINES if case.is_traced else 1):
        cts, ts = case.cts(generator), case.ts(generator)
        given = {"value": [], "gradient": cts, "tangent": ts}[what]
        yield f, [*xs, *given], [*ts, *(numbers.direction(x, generator) for x in given)]
    if what == "value" and case.is_traced:
        for i, t in enumerate(case.ts(generator)):
            yield f, xs, [t if j == i else None for j in range(n)]


def _function(case: Case, what: str, n: int) -> Callable[..., Any]:
    if what == "value":
        return case.quick_f
    if what == "tangent":
        return lambda *args: case.quick_push(list(args[n:]), *args[:n])
    # Compiled, although "backward under jit" may not have passed yet.
    pull = case.pull_program if case.is_traced else case.gradients
    return lambda *args: pull(list(args[n:]), *case.whole(args[:n]))


def said(what: str, accuracies: Sequence[float]) -> str:
    """Describe an accuracy in words; empty if there are no jumps."""
    largest = max(accuracies, default=0.0)
    return f"{NAMES[what]} is accurate to about {largest:.0e} here" if largest else ""


def allow(case: Case, outcome: Outcome, kinds: Sequence[str]) -> Outcome:
    """Return the outcome, with a tolerance that allows for the accuracy."""
    found = {what: of(case, what) for what in kinds}
    more = MOST * max((x for xs in found.values() for x in xs), default=0.0)
    if not more or not outcome.error <= outcome.tolerance + more:
        return outcome
    note = ", ".join(filter(None, (said(what, xs) for what, xs in found.items())))
    tolerance = outcome.tolerance + more
    return Outcome(outcome.error, tolerance, outcome.where, outcome.rule, note)


# ---- jumps along a line

Points = Callable[[float], list[np.ndarray]]
"""A function from a point of a line to the results, in double precision."""

_REACHES = (0.5, 0.2, 0.05)
_POINTS, _DEGREE, _SUSPECTS = 41, 24, 3
_PARTS, _DEPTH = 8, 12
_LASTS = 0.3


def _largest_jumps(line: Points) -> list[float]:
    """Return the largest jump of each result near zero; 0 if none is found.

    It is relative to the largest element of the result, and 0 if it is above LARGEST.
    """
    sizes = [float(np.max(np.abs(o), initial=0.0)) for o in line(0.0)]
    found = [0.0] * len(sizes)
    nodes = np.cos(np.pi * (np.arange(_POINTS) + 0.5) / _POINTS)  # of Chebyshev
    for reach in _REACHES:
        rows = [line(float(s)) for s in reach * nodes]
        for j, size in enumerate(sizes):
            if size == 0:
                continue
            table = np.stack([_reals(row[j]) for row in rows])
            for i, k in _suspects(nodes, table):
                ends = float(reach * nodes[i]), float(reach * nodes[i + 1])
                jump = _zoom(line, j, k, ends, 1e-15 * size) / size
                found[j] = max(found[j], jump)
    return [0.0 if jump > LARGEST else jump for jump in found]


def _reals(x: np.ndarray) -> np.ndarray:
    return (
        np.stack([np.real(x), np.imag(x)]).ravel() if np.iscomplexobj(x) else x.ravel()
    )


def _suspects(nodes: np.ndarray, table: np.ndarray) -> list[tuple[int, int]]:
    """Return (interval, element) pairs that depart most from a polynomial."""
    kept = np.flatnonzero(np.isfinite(table).all(0))
    if not kept.size:
        return []
    basis = np.polynomial.chebyshev.chebvander(nodes, _DEGREE)
    steps = np.abs(np.diff(_departure(basis, table[:, kept]), axis=0))
    worst = np.argsort(steps.max(1))[: -_SUSPECTS - 1 : -1]
    return [(int(i), int(kept[np.argmax(steps[i])])) for i in worst]


def _departure(basis: np.ndarray, values: np.ndarray) -> np.ndarray:
    return values - basis @ np.linalg.lstsq(basis, values, rcond=None)[0]


def _zoom(
    line: Points, j: int, k: int, ends: tuple[float, float], smallest: float
) -> float:
    """Return the jump of element k of result j between two points, or 0."""
    low, high = ends
    cubic = np.vander(np.linspace(-1, 1, _PARTS + 1), 4)
    sizes: list[float] = []
    for _ in range(_DEPTH):
        at = np.linspace(low, high, _PARTS + 1)
        values = np.array([_reals(line(float(s))[j])[k] for s in at])
        if not np.isfinite(values).all():
            return 0.0
        steps = np.abs(np.diff(_departure(cubic, values)))
        i = int(np.argmax(steps))
        low, high = float(at[i]), float(at[i + 1])
        sizes.append(float(steps[i]))
        if sizes[-1] <= smallest:
            return 0.0
        if len(sizes) > 4 and min(sizes[-4:]) >= _LASTS * max(sizes[-4:]):
            return sizes[-1]
    return 0.0
