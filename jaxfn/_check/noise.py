"""How accurate is a function? By its jumps.

An iteration that stops at a tolerance gives a value that is smooth where the number of
steps is constant, and jumps where it changes. So does a value that rounds. The size of
the jumps says how accurate the value is; and no function that has a slope jumps, so
what is measured here can't hide that a rule is wrong.

To find a jump, the function is evaluated along a line, and where it departs most from a
polynomial the interval is divided by eight, again and again. What a smooth function
departs from its slope shrinks by 64 each time, at a kink by 8, at a jump not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Line = Callable[[float], list[np.ndarray]]
"""The results at a point of a line, in double precision."""

LARGEST = 1e-4
"""Of a jump, relative to its array: a larger one is no rounding or tolerance."""

_REACHES = (0.5, 0.1, 0.02)
_POINTS, _DEGREE = 25, 10
_PARTS, _DEPTH = 8, 12
_LASTS = 0.3


def jumps(line: Line) -> list[float]:
    """The largest jump of each result near zero; 0 where none is found.

    Relative to the largest element of the result, and 0 where that is above LARGEST.
    """
    sizes = [float(np.max(np.abs(o), initial=0.0)) for o in line(0.0)]
    found = [0.0] * len(sizes)
    for reach in _REACHES:
        at = np.linspace(-reach, reach, _POINTS)
        rows = [line(float(s)) for s in at]
        for j, size in enumerate(sizes):
            if size == 0:
                continue
            table = np.stack([_reals(row[j]) for row in rows])
            place = _suspect(at, table)
            if place is not None:
                k, low, high = place
                jump = _zoom(line, j, k, low, high, 1e-15 * size) / size
                found[j] = max(found[j], jump)
    return [0.0 if jump > LARGEST else jump for jump in found]


def _reals(x: np.ndarray) -> np.ndarray:
    return (np.stack([x.real, x.imag]) if np.iscomplexobj(x) else x).ravel()


def _suspect(at: np.ndarray, table: np.ndarray) -> tuple[int, float, float] | None:
    """The element that departs most from a polynomial, and in which interval."""
    kept = np.flatnonzero(np.isfinite(table).all(0))
    if not kept.size:
        return None
    basis = np.polynomial.chebyshev.chebvander(at / at[-1], _DEGREE)
    part = table[:, kept]
    rest = part - basis @ np.linalg.lstsq(basis, part, rcond=None)[0]
    steps = np.abs(np.diff(rest, axis=0))
    i, k = np.unravel_index(int(np.argmax(steps)), steps.shape)
    return int(kept[k]), float(at[i]), float(at[i + 1])


def _zoom(
    line: Line, j: int, k: int, low: float, high: float, smallest: float
) -> float:
    """The jump of element k of result j between two points, 0 if there is none."""
    sizes: list[float] = []
    for _ in range(_DEPTH):
        at = np.linspace(low, high, _PARTS + 1)
        values = np.array([_reals(line(float(s))[j])[k] for s in at])
        steps = np.diff(values)
        apart = np.abs(steps - np.median(steps))
        i = int(np.argmax(apart))
        low, high = float(at[i]), float(at[i + 1])
        sizes.append(float(apart[i]))
        if not np.isfinite(sizes[-1]) or sizes[-1] <= smallest:
            return 0.0
        if len(sizes) > 4 and _lasts(sizes[-4:]):
            return sizes[-1]
    return 0.0


def _lasts(sizes: Sequence[float]) -> bool:
    return min(sizes) >= _LASTS * max(sizes)
