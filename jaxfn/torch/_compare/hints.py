"""What a wrong result looks like: another one, or a variant of the right one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxfn._check import compare_arrays, is_near, likeness


def of_one_kind(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both as complex arrays if one of them is complex."""
    if np.iscomplexobj(a) == np.iscomplexobj(b):
        return a, b
    return a.astype(np.complex128), b.astype(np.complex128)


def hint(
    got: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    i: int,
    labels: Sequence[str],
    what: str,
    tolerance: float,
) -> str:
    """Return what result `i` looks like; arrays are in double precision."""

    def same(a: np.ndarray, b: np.ndarray) -> bool:
        if a.shape != b.shape or not b.any():
            return False
        return compare_arrays(*of_one_kind(a, b), "", tolerance).ok

    others = [k for k in range(len(got)) if k != i and same(got[i], expected[k])]
    swapped = [k for k in others if same(got[k], expected[i])]
    if swapped:
        first, last = sorted([i, swapped[0]])
        return f"{_short(labels[first])} and {_short(labels[last])} are swapped"
    if others:
        return f"it equals the expected {_short(labels[others[0]])}"
    a, b = of_one_kind(got[i], expected[i])
    found = likeness(a, b, what)
    if not found and a.shape == b.shape and a.size > 1:
        limit = tolerance * np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
        with np.errstate(all="ignore"):
            same_ones = (a == b) | (np.isnan(a) & np.isnan(b)) | (abs(a - b) <= limit)
        return f"{int(np.sum(~same_ones))} of {a.size} elements differ"
    return found


def _short(label: str) -> str:
    """Return a label without the type, which is the same for both."""
    return label.partition(" (")[0].partition(",")[0]


def counts(got: np.ndarray, parts: Sequence[np.ndarray]) -> list[complex] | None:
    """Return how often each part is in a sum; None if it is no such sum.

    Args:
        got: A gradient.
        parts: The contribution of each output to it.
    """
    table = np.stack([part.ravel() for part in parts], 1)
    if not got.size or np.linalg.matrix_rank(table) < len(parts):
        return None
    found = np.linalg.lstsq(table, got.ravel(), rcond=None)[0]
    if not is_near(table @ found, got.ravel()):
        return None
    near = np.round(found)
    return [complex(c) for c in np.where(np.abs(found - near) < 1e-3, near, found)]
