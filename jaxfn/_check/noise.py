"""How accurate is a function? By its jumps.

An iteration that stops at a tolerance gives a value that is smooth where the number of
steps is constant, and jumps where it changes. So does a value that rounds. The size of
the jumps says how accurate the value is; and no function that has a slope jumps, so
what is measured here can't hide that a rule is wrong.

To find a jump, the function is evaluated along a line, and where it departs most from a
polynomial the interval is divided by eight, again and again. What a smooth function
departs from a cubic shrinks by thousands each time, at a kink by 8, at a jump not at
all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Line = Callable[[float], list[np.ndarray]]
"""The results at a point of a line, in double precision."""

LARGEST = 1e-4
"""Of a jump, relative to its array: a larger one is no rounding or tolerance."""

_REACHES = (0.5, 0.2, 0.05)
_POINTS, _DEGREE, _SUSPECTS = 41, 24, 3
_PARTS, _DEPTH = 8, 12
_LASTS = 0.3


def jumps(line: Line) -> list[float]:
    """The largest jump of each result near zero; 0 where none is found.

    Relative to the largest element of the result, and 0 where that is above LARGEST.
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
    """The intervals where an element departs most from a polynomial, and which."""
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
    line: Line, j: int, k: int, ends: tuple[float, float], smallest: float
) -> float:
    """The jump of element k of result j between two points, 0 if there is none."""
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
