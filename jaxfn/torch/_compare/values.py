"""Rows about outputs, and about first derivatives in reverse mode."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxfn._check import (
    MOST,
    NO_FLOAT_OUTPUTS,
    NO_FLOATS,
    Outcome,
    Skip,
    compare_arrays,
    is_near,
    wide,
    worst,
)
from jaxfn._core import is_inexact, values
from jaxfn.torch._compare.original import OriginalError
from jaxfn.torch._compare.pair import (
    NUMBERS,
    Different,
    Pair,
    expect_numbers,
    numbers_in,
)
from jaxfn.torch._compare.report import counts, of_one_kind

POINTS = 2


# ---- outputs


def outputs(pair: Pair) -> Outcome:
    """Compare how many there are, and which of them are arrays."""
    leaves = pair.got
    expected = pair.expected
    if len(leaves) != len(expected.leaves):
        raise Different(
            f"expected {len(expected.leaves)} outputs, got {len(leaves)}: "
            f"{_kinds(expected.leaves)} and {_kinds(leaves)}"
        )
    for x, y, label in zip(leaves, expected.leaves, expected.labels, strict=True):
        if not _is_like(x, y):
            raise Different(f"{label}: expected {_kind(y)}, got {_kind(x)}")
    return Outcome()


def _kinds(leaves: Sequence[Any]) -> str:
    return f"({', '.join(map(_kind, leaves))})"


def _kind(x: Any) -> str:
    if values.is_array(x):
        return "an array"
    return repr(x) if isinstance(x, (int, float, str, type(None))) else str(type(x))


def _is_like(*pair: Any) -> bool:
    if all(map(values.is_array, pair)) or all(map(_is_number, pair)):
        return True  # compared as values
    if any(map(values.is_array, pair)):
        return False
    got, expected = pair
    try:
        return got is expected or bool(got == expected) or _name(got) == _name(expected)
    except Exception:  # noqa: BLE001  (an `==` of the user may raise anything)
        return type(got) is type(expected)


def _is_number(x: Any) -> bool:
    return isinstance(x, NUMBERS) or (values.is_array(x) and np.ndim(x) == 0)


def _name(x: Any) -> str:
    """Return the name of a dtype or device, which torch and JAX write differently."""
    text = getattr(x, "__name__", None) or str(x)
    return text.removeprefix("torch.")


def _each(pair: Pair) -> list[tuple[str, Any, np.ndarray]]:
    """Return the outputs that are arrays on both sides, with labels."""
    rows = zip(pair.expected.labels, pair.got, pair.expected.leaves, strict=True)
    return [
        (label, x, y)
        for label, x, y in rows
        if values.is_array(x) and values.is_array(y)
    ]


def shape(pair: Pair) -> Outcome:
    """Compare the shape of each output."""
    wrong = []
    for label, x, y in _each(pair):
        a, b = tuple(np.shape(x)), tuple(y.shape)
        turned = "; the axes are reversed" if a == b[::-1] and len(a) > 1 else ""
        if a != b:
            wrong.append(f"{label}: expected shape {b}, got {a}{turned}")
    if wrong:
        raise Different("\n  ".join(wrong))
    return Outcome()


NO_GRADIENT = "an integer or bool has no gradient"


def _is_whole(x: Any, y: Any) -> bool:
    """Return whether the port alone has no gradient, because of its dtype."""
    return is_inexact(y) and not is_inexact(x)


def dtype(pair: Pair) -> Outcome:
    """Compare the dtype of each output, as far as JAX has it."""
    wrong, notes = [], []
    for label, x, y in _each(pair):
        expected = np.dtype(jax.dtypes.canonicalize_dtype(y.dtype))
        if expected != y.dtype:
            notes.append(f"{y.dtype} is {expected}, since x64 is off")
        if np.dtype(x.dtype) != expected:
            lost = f" ({NO_GRADIENT})" if _is_whole(x, y) else ""
            wrong.append(f"{label}: expected dtype {expected}, got {x.dtype}{lost}")
    if wrong:
        raise Different("\n  ".join(wrong))
    return Outcome(note=", ".join(dict.fromkeys(notes)))


# ---- values


def _compared(
    pair: Pair, got: Sequence[Any], expected: Sequence[Any], where: str = ""
) -> Outcome:
    """Compare the leaves that are arrays or numbers."""
    at = [i for i, x in enumerate(got) if values.is_array(x) or _is_number(x)]
    labels = [f"{pair.expected.labels[i]}{where}" for i in at]
    slack = None
    if pair.exact is not None:
        exact = numbers_in(pair.exact.expected.leaves)
        slack = lost([(expected[i], exact[i]) for i in at])
    a, b = [got[i] for i in at], [expected[i] for i in at]
    return pair.compare(a, b, labels, "value", which=at, slack=slack)


def value(pair: Pair) -> Outcome:
    """Compare the values."""
    floats = [(x, y) for _, x, y in _each(pair) if is_inexact(y)]
    if floats:
        expect_numbers(*zip(*floats, strict=True))
    return _compared(pair, pair.got, pair.expected.leaves)


def lost(pairs: Sequence[tuple[Any, Any]]) -> list[float]:
    """Return the error of torch in the precision given, relative to the largest."""
    both = [map(wide, map(np.asarray, pair)) for pair in pairs]
    errors = [compare_arrays(*of_one_kind(*pair), "", 0.0).error for pair in both]
    return [MOST * error if np.isfinite(error) else 0.0 for error in errors]


def value_elsewhere(pair: Pair) -> Outcome:
    """Compare the values at other points."""
    ours, theirs = pair.port.leaves, pair.original.leaves
    near, where = points(pair, POINTS, theirs), " at another point"
    return worst([_compared(pair, ours(x), theirs(x), where) for x in near])


def value_differentiated(pair: Pair) -> Outcome:
    """Compare values with a gradient: rules may read needs_input_grad."""
    chosen = needed(pair)
    at = pair.expected.inexact
    outs = pair.original.value(pair.arrays, chosen)
    got = pair.port.beside(pair.arrays, chosen)
    expected, labels = ([xs[i] for i in at] for xs in (outs.leaves, outs.labels))
    return pair.compare(got, expected, labels, "value", which=at)


def needed(pair: Pair) -> tuple[int, ...]:
    """Return the arrays that have a gradient; skip the row if none has."""
    if not pair.arguments.at:
        raise Skip(NO_FLOATS)
    if not pair.expected.inexact:
        raise Skip(NO_FLOAT_OUTPUTS)
    if not pair.original.has_backward:
        raise Skip("PyTorch's class has no backward")
    for label, x, y in _each(pair):
        if _is_whole(x, y):
            raise Skip(f"{label} of the port is {x.dtype}: {NO_GRADIENT}")
    if not pair.chosen:
        raise Skip(f"PyTorch itself raises: {next(iter(pair.why_not.values()))}")
    return pair.chosen


# ---- other points

Point = list[np.ndarray]
Near = Callable[[np.ndarray, int, np.random.Generator], Any]


def points(pair: Pair, n: int, run: Callable[[Point], Any]) -> list[Point]:
    """Return `n` other points, at which `run` does not raise in torch.

    First, each element shrinks by its own factor, which keeps signs. If that raises,
    each array shrinks as a whole, which keeps it definite, sorted or symmetric.
    """
    for near in (_shrunk, _scaled):
        with contextlib.suppress(OriginalError):
            generator = pair.rng()
            found = [_moved(pair, near, k, generator) for k in range(1, n + 1)]
            for point in found:
                run(point)
            return found
    raise Skip("PyTorch itself raises at other points near these arguments")


def _moved(pair: Pair, near: Near, k: int, generator: np.random.Generator) -> Point:
    found = list(pair.arrays)
    for i, x in enumerate(found):
        if values.is_inexact(x):
            found[i] = np.asarray(near(x, k, generator)).astype(x.dtype)
    return found


def _shrunk(x: np.ndarray, k: int, generator: np.random.Generator) -> Any:
    return x * (1 - 0.05 * k * generator.random(x.shape))


def _scaled(x: np.ndarray, k: int, _: np.random.Generator) -> Any:
    return x * (1 - 0.05 * k)


CONJUGATE = "PyTorch's convention: the conjugate of JAX's"


def gradient(i: int, pair: Pair) -> Outcome:
    """Compare the gradient by array `i`, for cotangents of all outputs."""
    needed(pair)
    if i in pair.why_not:
        raise Skip(f"PyTorch itself raises: {pair.why_not[i]}")
    k = pair.chosen.index(i)
    got, expected = pair.got_gradients, pair.expected_gradients
    expect_numbers(got, expected)
    labels = names(pair, pair.chosen)
    outcome = pair.compare_one(k, got, expected, labels, "gradient")
    if not outcome.ok and np.isfinite(got[k]).all() and got[k].size:
        found = _cotangents(pair, k, got[k])
        where = "; ".join(filter(None, [outcome.where, found]))
        outcome = dataclasses.replace(outcome, where=where)
    if outcome.ok and np.iscomplexobj(expected[k]):
        outcome = dataclasses.replace(outcome, note=CONJUGATE)
    return outcome


def names(pair: Pair, chosen: Sequence[int], where: str = "") -> list[str]:
    """Return the labels of the gradients."""
    return [f"gradient of {pair.arguments.label(i)}{where}" for i in chosen]


def _cotangents(pair: Pair, k: int, got: np.ndarray) -> str:
    """Return how cotangents are misused, if that explains gradient `k`."""

    def gradient_for(cts: Sequence[Any]) -> np.ndarray:
        return pair.original.pull(pair.arrays, pair.chosen, cts)[k]

    if np.iscomplexobj(got):
        other = gradient_for([ct.conj() for ct in pair.cts]).conj()
        if is_near(got, other):
            return "a conjugate is missing: it is the gradient in JAX's convention"
    labels = [pair.expected.labels[i] for i in pair.expected.inexact]
    n = len(pair.cts)
    for i, j in itertools.combinations(range(n), 2):
        cts = list(pair.cts)
        cts[i], cts[j] = cts[j], cts[i]
        same = cts[i].shape == cts[j].shape and cts[i].dtype == cts[j].dtype
        if same and is_near(got, gradient_for(cts)):
            return f"the cotangents of {labels[i]} and {labels[j]} are swapped"
    if n < 2:
        return ""
    alone = [[x if i == j else None for i, x in enumerate(pair.cts)] for j in range(n)]
    parts = list(map(gradient_for, alone))
    found = counts(got, parts)
    if found is None or len(set(found)) == 1:
        return ""
    return ", ".join(
        f"the cotangent of {label} counts {_number(c)} times"
        for label, c in zip(labels, found, strict=True)
        if c != 1
    )


def _number(x: complex) -> str:
    return f"{x:.4g}" if x.imag else f"{x.real + 0.0:.4g}"


def gradients_given(pair: Pair) -> Outcome:
    """Compare them in the precision of the arguments."""
    chosen = needed(pair)
    assert pair.exact is not None
    expected, got = pair.expected_gradients, pair.got_gradients
    labels = names(pair, chosen)
    exact = expected
    if pair.exact.chosen == chosen:
        with pair.exact.context():
            exact = pair.exact.expected_gradients
    slack = lost(list(zip(expected, exact, strict=True)))
    wrong = [
        f"{label}: expected dtype {e.dtype}, got {g.dtype}"
        for g, e, label in zip(got, expected, labels, strict=True)
        if g.dtype != e.dtype
    ]
    if wrong:
        raise Different("\n  ".join(wrong))
    return pair.compare(got, expected, labels, "gradient", slack=slack)


def gradients_elsewhere(pair: Pair) -> Outcome:
    """Compare them at other points."""
    chosen, found = needed(pair), []

    def run(point: list[np.ndarray]) -> Any:
        return pair.original.pull(point, chosen, pair.cts)

    labels = names(pair, chosen, " at another point")
    for point in points(pair, POINTS, run):
        got = pair.port.pull(point, chosen, pair.cts)
        found.append(pair.compare(got, run(point), labels, "gradient"))
    return worst(found)
