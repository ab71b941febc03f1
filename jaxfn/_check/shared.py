"""Outcomes of comparisons: what `check` shares with `jaxfn.torch.compare`.

Tolerances. A comparison with finite differences allows eps^(2/5), half of the digits
that they have (5e-7 in float64): rules are wrong by a factor, a sign, a term, seldom by
less. A comparison of two ways to compute the same allows eps^(1/2), half of all digits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._base import pytree, short


class Skip(Exception):  # noqa: N818  (no error)
    """A check can't run; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The largest difference that a check found.

    Attributes:
        error: relative to the size of the array that it is in.
        tolerance: the largest error that passes.
        where: the array and element, with both values.
        rule: the wrong rule, if it is not always the same.
        note: what else there is to say.
    """

    error: float = 0.0
    tolerance: float = 0.0
    where: str = ""
    rule: str = ""
    note: str = ""

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


def refuse_extended(x: Any) -> None:
    """Refuse an array whose values only functions of its own dtype can read."""
    if jnp.issubdtype(x.dtype, jax.dtypes.extended) and not is_key(x):
        raise TypeError(
            f"check got an array of an extended dtype, {short(x)}: expected arguments "
            "and outputs that NumPy can hold, or PRNG keys. Check a function of "
            "ordinary arrays that converts them with jax.lax.convert_element_type."
        )


def is_complex(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def wide(x: Any) -> np.ndarray:
    """`x` in NumPy, in double precision; a key as its data."""
    refuse_extended(x)
    if is_key(x):
        x = jax.random.key_data(x)
    return np.asarray(x).astype(np.complex128 if is_complex(x) else np.float64)


def eps_of(arrays: Sequence[Any]) -> float:
    """The rounding error of the least precise of these arrays."""
    floats = [x.dtype for x in arrays if pytree.is_number(x)]
    return max((float(jnp.finfo(d).eps) for d in floats), default=2.0**-52)


def compare(
    got: Sequence[Any],
    expected: Sequence[Any],
    labels: Sequence[str],
    tolerance: float,
    *,
    floor: float = 0.0,
    atol: float = 0.0,
) -> Outcome:
    """The largest difference of two lists of arrays, each relative to its array.

    `atol` is a difference that passes whatever the size.
    """
    if len(got) != len(expected):
        return Outcome(np.inf, tolerance, f"{len(got)} arrays for {len(expected)}")
    triples = zip(got, expected, labels, strict=True)
    return worst([compare_arrays(*t, tolerance, floor, atol) for t in triples])


def compare_arrays(
    got: Any,
    expected: Any,
    label: str,
    tolerance: float,
    floor: float = 0.0,
    atol: float = 0.0,
) -> Outcome:
    """The largest difference of two arrays, and where it is."""
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
        size = max(largest(b), floor, 1e-30)
        gaps = np.where(same, 0.0, np.abs(a - b) / size)
        gaps = np.where(np.isnan(gaps), np.inf, gaps)
    at = np.unravel_index(int(np.argmax(gaps)), gaps.shape)
    place = f" at {[int(i) for i in at]}" if at else ""
    off = np.abs(a[at] - b[at])
    text = f"{label}{place}: expected {b[at]:.6g}, got {a[at]:.6g} (off by {off:.2g})"
    return Outcome(float(gaps[at]), tolerance + atol / size, text)


def is_close(
    got: float, expected: float, size: float, tolerance: float, allowed: float = 0.0
) -> Outcome:
    """Two numbers, the difference relative to `size`; up to `allowed` always passes."""
    gap, size = abs(got - expected), max(size, 1e-30)
    error = 0.0 if gap == 0 else gap / size
    text = f"expected {expected:.6g}, got {got:.6g}"
    error = float(np.nan_to_num(error, nan=np.inf))
    return Outcome(error, tolerance + allowed / size, text)


def largest(x: np.ndarray) -> float:
    """The largest finite element."""
    return float(np.max(np.where(np.isfinite(x), np.abs(x), 0), initial=0.0))


def name_of(fun: Any) -> str:
    """The name of a function or a class, without the functions around it."""
    found = getattr(fun, "__qualname__", None) or f"{type(fun).__name__}"
    return found.rsplit("<locals>.", maxsplit=1)[-1]


def subsets(n: int) -> list[tuple[int, ...]]:
    """Of `n` arrays, but for all of them; for five or more only the extreme ones."""
    everything = tuple(range(n))
    if n < 5:
        found = [
            tuple(i for i in everything if bits >> i & 1) for bits in range(1, 2**n)
        ]
    else:
        found = [(i,) for i in everything]
        found += [tuple(j for j in everything if j != i) for i in everything]
    return [chosen for chosen in found if chosen != everything]
