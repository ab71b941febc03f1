"""Comparisons and their outcomes, which `check` and `jaxfn.torch.compare` share.

Tolerances. A comparison with finite differences allows eps^(2/5), half of their digits
(5e-7 in float64). That is enough, because a wrong rule is off by a factor, a sign or a
term. A comparison of two computations of the same value allows eps^(1/2), half of all
digits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._check.report import Status
from jaxfn._core import short, values


class Skip(Exception):  # noqa: N818  (no error)
    """A check can't run; the message says why."""

    status: Status = "skipped"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The largest difference that a check found.

    Attributes:
        error: The difference, relative to the size of its array.
        tolerance: The largest error that passes.
        where: The array and element, with both values.
        rule: The wrong rule, if the check has several.
        note: A remark for the report.
    """

    error: float = 0.0
    tolerance: float = 0.0
    where: str = ""
    rule: str = ""
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # NaN is not


def described(error: Exception) -> str:
    """Return an error and jaxfn's notes on it, without JAX's further explanations."""
    text = str(error).partition("\n\n")[0]
    notes = [x for x in getattr(error, "__notes__", ()) if x.startswith("`")]
    return " ".join([f"{type(error).__name__}: {text}", *notes])


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome furthest above its tolerance; NaN counts as furthest."""

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
    """Convert `x` to NumPy in double precision; a key to its data."""
    refuse_extended(x)
    if is_key(x):
        x = jax.random.key_data(x)
    return np.asarray(x).astype(np.complex128 if is_complex(x) else np.float64)


def eps_of(arrays: Sequence[Any]) -> float:
    """Return the rounding error of the least precise array."""
    floats = [x.dtype for x in arrays if values.is_number(x)]
    return max((float(jnp.finfo(d).eps) for d in floats), default=2.0**-52)


def compare(
    got: Sequence[Any],
    expected: Sequence[Any],
    labels: Sequence[str],
    tolerance: float,
    *,
    least_size: float = 0.0,
    atol: float = 0.0,
) -> Outcome:
    """Return the largest difference of two lists of arrays, relative to its array.

    An absolute difference of `atol` always passes.
    """
    if len(got) != len(expected):
        return Outcome(np.inf, tolerance, f"{len(got)} arrays for {len(expected)}")
    triples = zip(got, expected, labels, strict=True)
    return worst([compare_arrays(*t, tolerance, least_size, atol) for t in triples])


def compare_arrays(
    got: Any,
    expected: Any,
    label: str,
    tolerance: float,
    least_size: float = 0.0,
    atol: float = 0.0,
) -> Outcome:
    """Return the largest difference of two arrays, and its place."""
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
        size = max(largest(b), least_size, 1e-30)
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
    """Compare two numbers relative to `size`; a difference of `allowed` passes."""
    gap, size = abs(got - expected), max(size, 1e-30)
    error = 0.0 if gap == 0 else gap / size
    text = f"expected {expected:.6g}, got {got:.6g}"
    error = float(np.nan_to_num(error, nan=np.inf))
    return Outcome(error, tolerance + allowed / size, text)


def largest(x: np.ndarray) -> float:
    """Return the largest finite absolute value."""
    return float(np.max(np.where(np.isfinite(x), np.abs(x), 0), initial=0.0))


def name_of(fun: Any) -> str:
    """Return the name of a function or class, without enclosing functions."""
    found = getattr(fun, "__qualname__", None) or f"{type(fun).__name__}"
    return found.rsplit("<locals>.", maxsplit=1)[-1]


def subsets(n: int) -> list[tuple[int, ...]]:
    """List the proper subsets of `n` arrays; of five or more only the extreme ones."""
    everything = tuple(range(n))
    if n < 5:
        found = [
            tuple(i for i in everything if bits >> i & 1) for bits in range(1, 2**n)
        ]
    else:
        found = [(i,) for i in everything]
        found += [tuple(j for j in everything if j != i) for i in everything]
    return [chosen for chosen in found if chosen != everything]
