"""Rows about what is returned, and about first derivatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._base import pytree
from jaxfn._check import Outcome, Skip, subsets, worst
from jaxfn.torch._compare.pair import Different, Pair, subsets_in_words

POINTS = 2
CONJUGATE = "PyTorch's convention: the conjugate of JAX's"


# ---- outputs


def outputs(pair: Pair) -> Outcome:
    """Are there as many, arrays and others in the same places?"""
    leaves, _ = pair.got
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
    if pytree.is_array(x):
        return "an array"
    return repr(x) if isinstance(x, (int, float, str, type(None))) else str(type(x))


def _is_like(got: Any, expected: Any) -> bool:
    if pytree.is_array(got) and pytree.is_array(expected):
        return True
    numbers = [isinstance(x, (bool, int, float, complex)) for x in (got, expected)]
    if all(n or _is_scalar(x) for n, x in zip(numbers, (got, expected), strict=True)):
        return True  # compared as values
    if pytree.is_array(got) or pytree.is_array(expected):
        return False
    try:
        return got is expected or bool(got == expected) or _name(got) == _name(expected)
    except Exception:  # noqa: BLE001  (an `==` of the user may raise anything)
        return type(got) is type(expected)


def _is_scalar(x: Any) -> bool:
    return pytree.is_array(x) and np.ndim(x) == 0


def _name(x: Any) -> str:
    """Of a dtype or a device, which torch and JAX write differently."""
    text = getattr(x, "__name__", None) or str(x)
    return text.removeprefix("torch.")


def _each(pair: Pair) -> list[tuple[str, Any, np.ndarray]]:
    """The outputs that are arrays in both."""
    rows = zip(pair.expected.labels, pair.got[0], pair.expected.leaves, strict=True)
    return [
        (label, x, y)
        for label, x, y in rows
        if pytree.is_array(x) and pytree.is_array(y)
    ]


def shape(pair: Pair) -> Outcome:
    """The same for each output?"""
    wrong = []
    for label, x, y in _each(pair):
        a, b = tuple(np.shape(x)), tuple(y.shape)
        turned = "; the axes are reversed" if a == b[::-1] and len(a) > 1 else ""
        if a != b:
            wrong.append(f"{label}: expected shape {b}, got {a}{turned}")
    if wrong:
        raise Different("\n  ".join(wrong))
    return Outcome()


def dtype(pair: Pair) -> Outcome:
    """The same for each output, as far as JAX has it?"""
    wrong, notes = [], []
    for label, x, y in _each(pair):
        expected = np.dtype(jax.dtypes.canonicalize_dtype(y.dtype))
        if expected != y.dtype:
            notes.append(f"{y.dtype} is {expected}, since x64 is off")
        if np.dtype(x.dtype) != expected:
            wrong.append(f"{label}: expected dtype {expected}, got {x.dtype}")
    if wrong:
        raise Different("\n  ".join(wrong))
    return Outcome(note=", ".join(dict.fromkeys(notes)))


# ---- values


def _numbers(pair: Pair, leaves: Sequence[Any], others: Sequence[Any]) -> Any:
    """Of both sides what can be compared as numbers, with labels."""
    rows = [
        (x, y, label)
        for x, y, label in zip(leaves, others, pair.expected.labels, strict=True)
        if any(map(pytree.is_array, (x, y)))
    ]
    return [list(column) for column in zip(*rows, strict=True)] or [[], [], []]


def value(pair: Pair) -> Outcome:
    """Is it what torch computes?"""
    got, expected, labels = _numbers(pair, pair.got[0], pair.expected.leaves)
    slack = None
    if pair.exact is not None:
        exact = pair.exact.expected.leaves
        slack = lost(_numbers(pair, pair.expected.leaves, exact))
    outcome = pair.compare(got, expected, labels, "value", slack=slack)
    return pair.allowing(outcome, _values(pair))


def lost(columns: Any) -> list[float]:
    """What torch itself loses in the precision given, relative to the largest."""
    found = []
    for x, exact, _ in zip(*columns, strict=True):
        a, b = np.asarray(x).astype(complex), np.asarray(exact).astype(complex)
        with np.errstate(all="ignore"):
            gaps = np.abs(a - b)[np.isfinite(a) & np.isfinite(b)]
            size = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        found.append(10 * float(gaps.max(initial=0.0) / max(size, 1e-30)))
    return found


def _values(pair: Pair) -> list[Callable[..., Any]]:
    """Both sides, as functions of the arrays that can be differentiated."""

    def in_jax(*xs: Any) -> list[Any]:
        return [pair.port.leaves(pair.whole(xs))[0][i] for i in pair.expected.moving]

    def in_torch(*xs: Any) -> list[Any]:
        found = pair.original.value(pair.arguments, pair.whole(xs)).leaves
        return [found[i] for i in pair.expected.moving]

    return [in_torch, in_jax]


def value_elsewhere(pair: Pair) -> Outcome:
    """The same at other points."""

    def run(point: list[np.ndarray]) -> Any:
        return pair.original.value(pair.arguments, point).leaves

    found = []
    for point in pair.points(POINTS, run):
        got = pair.port.leaves(point)[0]
        columns = _numbers(pair, got, run(point))
        labels = [f"{label} at another point" for label in columns[2]]
        found.append(pair.compare(columns[0], columns[1], labels, "value"))
    return pair.allowing(worst(found), _values(pair))


def value_differentiated(pair: Pair) -> Outcome:
    """The value beside a gradient: a rule may read which are needed."""
    chosen = needed(pair)
    outs = pair.original.value(pair.arguments, pair.arrays, chosen)
    got = pair.port.pull(pair.arrays, chosen, pair.cts)[0]
    expected = [outs.leaves[i] for i in outs.moving]
    labels = [outs.labels[i] for i in outs.moving]
    outcome = pair.compare(got, expected, labels, "value")
    return pair.allowing(outcome, _values(pair))


# ---- gradients


def needed(pair: Pair) -> tuple[int, ...]:
    """The arrays by which there is a gradient, if there is one."""
    if not pair.arguments.at:
        raise Skip("no argument is a float or complex array")
    if not pair.expected.moving:
        raise Skip("no output is a float or complex array")
    if not pair.original.has_backward:
        raise Skip("PyTorch's class has no backward")
    if not pair.chosen:
        raise Skip(f"PyTorch itself raises: {next(iter(pair.why_not.values()))}")
    return pair.chosen


def gradient(i: int) -> Callable[[Pair], Outcome]:
    """By array i, for cotangents of all outputs."""

    def run(pair: Pair) -> Outcome:
        needed(pair)
        if i in pair.why_not:
            raise Skip(f"PyTorch itself raises: {pair.why_not[i]}")
        labels = names(pair, pair.chosen)
        k = pair.chosen.index(i)
        got, expected = pair.got_gradients, pair.expected_gradients
        outcome = _only(pair, got, expected, labels, k)
        if not outcome.ok:
            outcome = pair.allowing(outcome, _gradients(pair, k))
        if not outcome.ok and (parts := _parts(pair, k, got[k])):
            outcome = dataclasses.replace(outcome, where=f"{outcome.where}; {parts}")
        if outcome.ok and np.iscomplexobj(expected[k]):
            outcome = dataclasses.replace(outcome, note=CONJUGATE)
        return outcome

    return run


def _only(pair: Pair, got: Any, expected: Any, labels: Any, k: int) -> Outcome:
    """The outcome of one of them, which may be mistaken for another."""
    first = [k, *(j for j in range(len(labels)) if j != k)]
    columns = [[xs[j] for j in first] for xs in (got, expected, labels)]
    got, expected, labels = columns
    alone = pair.compare(got[:1], expected[:1], labels[:1], "gradient")
    if alone.ok:
        return alone
    every = pair.compare(got, expected, labels, "gradient")
    where = every.where.partition("\n  ")[0]
    return dataclasses.replace(alone, where=where)


def names(pair: Pair, chosen: Sequence[int]) -> list[str]:
    """What to call the gradients."""
    return [f"gradient of {pair.arguments.label(i)}" for i in chosen]


def _gradients(pair: Pair, k: int) -> list[Callable[..., Any]]:
    def in_jax(*xs: Any) -> list[Any]:
        return [pair.jax_gradients(pair.whole(xs), pair.chosen, pair.cts)[k]]

    def in_torch(*xs: Any) -> list[Any]:
        return [pair.torch_gradients(pair.whole(xs), pair.chosen, pair.cts)[k]]

    return [in_torch, in_jax]


def _parts(pair: Pair, k: int, got: np.ndarray) -> str:
    """Which outputs count how often, where that is what is wrong."""
    n = len(pair.cts)
    if n < 2 or not got.size:
        return ""
    parts = []
    for j in range(n):
        cts = [ct if i == j else None for i, ct in enumerate(pair.cts)]
        parts.append(pair.torch_gradients(pair.arrays, pair.chosen, cts)[k].ravel())
    table = np.stack(parts, 1)
    if np.linalg.matrix_rank(table) < n:
        return ""
    counts = np.linalg.lstsq(table, got.ravel(), rcond=None)[0]
    near = np.abs(table @ counts - got.ravel()).max() <= 1e-6 * np.abs(table).max()
    if not near or np.ptp(counts.real) < 1e-6:
        return ""
    labels = [pair.expected.labels[i] for i in pair.expected.moving]
    wrong = [
        f"the cotangent of {label} counts {_number(c)} times"
        for label, c in zip(labels, counts, strict=True)
        if abs(c - 1) > 1e-6
    ]
    return ", ".join(wrong)


def _number(x: Any) -> str:
    return f"{x.real + 0.0:.4g}" if abs(x.imag) < 1e-6 else f"{x:.4g}"


def gradients_given(pair: Pair) -> Outcome:
    """In the precision of the arguments."""
    chosen = needed(pair)
    assert pair.exact is not None
    expected, got = pair.expected_gradients, pair.got_gradients
    labels = names(pair, chosen)
    exact = expected
    if pair.exact.chosen == chosen:
        leaves = pair.exact.expected
        kinds = [leaves.leaves[i].dtype for i in leaves.moving]
        cts = [ct.astype(kind) for ct, kind in zip(pair.cts, kinds, strict=True)]
        with pair.exact.context():
            exact = pair.exact.torch_gradients(pair.exact.arrays, chosen, cts)
    slack = lost([expected, exact, labels])
    wrong = [
        f"{label}: expected dtype {e.dtype}, got {g.dtype}"
        for g, e, label in zip(got, expected, labels, strict=True)
        if g.dtype != e.dtype
    ]
    if wrong:
        raise Different("\n  ".join(wrong))
    return pair.compare(got, expected, labels, "gradient", slack=slack)


def gradients_elsewhere(pair: Pair) -> Outcome:
    """At other points."""
    chosen = needed(pair)

    def run(point: list[np.ndarray]) -> Any:
        return pair.torch_gradients(point, chosen, pair.cts)

    found = []
    for point in pair.points(POINTS, run):
        got = pair.jax_gradients(point, chosen, pair.cts)
        labels = [f"{name} at another point" for name in names(pair, chosen)]
        found.append(pair.compare(got, run(point), labels, "gradient"))
    return _allowing_all(pair, found)


def _allowing_all(pair: Pair, found: Sequence[Outcome]) -> Outcome:
    outcome = worst(found)
    if outcome.ok:
        return outcome
    sides = [f for k in range(len(pair.chosen)) for f in _gradients(pair, k)]
    return pair.allowing(outcome, sides)


def gradients_of_subsets(pair: Pair) -> Outcome:
    """For each subset of needs_input_grad."""
    chosen = needed(pair)
    if len(chosen) < 2:
        raise Skip("one argument has a gradient")
    found = []
    for some in subsets(len(chosen)):
        these = tuple(chosen[k] for k in some)
        words = subsets_in_words(pair.arguments, these)
        expected = pair.torch_gradients(pair.arrays, these, pair.cts)
        try:
            got = pair.jax_gradients(pair.arrays, these, pair.cts)
        except Exception as error:
            raise Different(f"{words}: {type(error).__name__}: {error}") from error
        labels = [f"{name} ({words})" for name in names(pair, these)]
        found.append(pair.compare(got, expected, labels, "gradient"))
    return _allowing_all(pair, found)


def gradients_of_outputs(pair: Pair) -> Outcome:
    """For each output that is used alone."""
    chosen = needed(pair)
    n = len(pair.cts)
    if n < 2:
        raise Skip("one output has a gradient")
    found = []
    for j in range(n):
        cts = [ct if i == j else None for i, ct in enumerate(pair.cts)]
        words = f"{pair.expected.labels[pair.expected.moving[j]]} alone used"
        expected = pair.torch_gradients(pair.arrays, chosen, cts)
        try:
            got = pair.jax_gradients(pair.arrays, chosen, cts)
        except Exception as error:
            raise Different(f"{words}: {type(error).__name__}: {error}") from error
        labels = [f"{name} ({words})" for name in names(pair, chosen)]
        found.append(pair.compare(got, expected, labels, "gradient"))
    return _allowing_all(pair, found)


# ---- under jit


def value_jit(pair: Pair) -> Outcome:
    """Compiled."""
    at = [i for i, x in enumerate(pair.got[0]) if pytree.is_array(x)]
    if not pair.arrays:
        raise Skip("there is no array to trace")
    found = jax.jit(lambda xs: pair.port.arrays(xs))(
        list(map(jnp.asarray, pair.arrays))
    )
    if len(found) != len(at):
        raise Different(f"expected {len(at)} arrays, got {len(found)}")
    expected = [pair.expected.leaves[i] for i in at]
    labels = [pair.expected.labels[i] for i in at]
    return pair.allowing(pair.compare(found, expected, labels, "value"), _values(pair))


def gradients_jit(pair: Pair) -> Outcome:
    """Compiled."""
    chosen = needed(pair)

    def pull(arrays: Any, cts: Any) -> Any:
        return pair.port.pull(arrays, chosen, cts)[1]

    arrays, cts = ([jnp.asarray(x) for x in xs] for xs in (pair.arrays, pair.cts))
    got = [np.asarray(g) for g in jax.jit(pull)(arrays, cts)]
    labels = names(pair, chosen)
    return _allowing_all(
        pair, [pair.compare(got, pair.expected_gradients, labels, "gradient")]
    )
