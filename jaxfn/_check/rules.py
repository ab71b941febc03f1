"""Checks of the rules themselves: value, backward, jvp, and one against the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._check import numbers
from jaxfn._check.case import Case
from jaxfn._check.numbers import Arrays, Outcome, Skip, Slope

UNSETTLED = (
    "the value has no slope here that finite differences agree on: it jumps, or "
    "forward rounds to a lower precision. Pass `reference`, or `surrogate=True` if the "
    "derivative differs from the value's on purpose"
)


def outputs(n: int) -> list[str]:
    return [f"output {j}" for j in range(n)]


# ---- value


def value(case: Case) -> Outcome:
    """Does forward run, twice the same, and as the reference does?"""
    first = case.run(*case.arrays)
    outcome = numbers.compare(
        case.run(*case.arrays), first, outputs(len(first)), case.same_tolerance
    )
    if case.reference is None or case.surrogate:
        return outcome
    expected = case._run(case.reference, case.arrays)
    names = [f"{name} (against the reference)" for name in outputs(len(first))]
    against = numbers.compare(first, expected, names, case.slope_tolerance)
    return numbers.worst([outcome, against])


def value_jit(case: Case) -> Outcome:
    expected = case.run(*case.arrays)
    got = jax.jit(case.run)(*case.arrays)
    return numbers.compare(got, expected, outputs(len(expected)), case.same_tolerance)


# ---- backward


def backward(case: Case) -> Outcome:
    """<J^T ct, t> against <ct, slope along t>, one argument at a time."""
    generator = case.rng()
    cts, ts = case.cts(generator), case.ts(generator)
    grads = case.pull(cts, *case.xs)
    found = []
    for i, t in enumerate(ts):
        slopes, masked = _masked(case, i, t, cts)
        # The gradient is that of masked cotangents where an element has no slope.
        used = grads if masked is cts else case.pull(masked, *case.xs)
        values = [s.value for s in slopes]
        expected, got = numbers.pairing(masked, values), numbers.pairing([used[i]], [t])
        size = max(numbers.size_of(masked, values), numbers.size_of([used[i]], [t]))
        floor = sum(s.floor for s in slopes)
        outcome = numbers.is_close(got, expected, size + floor, case.slope_tolerance)
        found.append(_located(case, outcome, i, masked, used[i]))
    return numbers.worst(found)


def _masked(case: Case, i: int, t: Any, cts: Arrays) -> tuple[list[Slope], Arrays]:
    """The slopes along argument i, and cotangents with zeros where there is none."""
    along = [t if j == i else None for j in range(len(case.at))]
    slopes = slopes_of(case, along)
    if all(s.settled.all() for s in slopes):
        return slopes, cts
    if not any(s.settled.any() for s in slopes):
        raise ValueError(f"{case.x_labels[i]}: {UNSETTLED}.")
    masked = [
        jnp.where(s.settled, ct, 0).astype(ct.dtype)
        for s, ct in zip(slopes, cts, strict=True)
    ]
    known = [Slope(np.where(s.settled, s.value, 0), s.settled, s.floor) for s in slopes]
    return known, masked


def slopes_of(case: Case, along: Sequence[Any]) -> list[Slope]:
    """The slopes of the value, or the derivative of the reference."""
    if case.reference is None:
        return numbers.slopes(case.f, case.xs, along, case.eps)
    ts = [
        jnp.zeros_like(x) if d is None else d
        for x, d in zip(case.xs, along, strict=True)
    ]
    tangents = jax.jvp(case.reference_f, case.xs, ts)[1]
    return [
        Slope(numbers.wide(t), np.ones(t.shape, bool), case.eps**0.4) for t in tangents
    ]


MOST_ELEMENTS = 100


def _located(case: Case, outcome: Outcome, i: int, cts: Arrays, grad: Any) -> Outcome:
    """Where the gradient is wrong, element by element, if it is and they are few."""
    x, label = case.xs[i], case.x_labels[i]
    if outcome.ok:
        return outcome
    where = f"gradient of {label} along a random direction: {outcome.where}"
    if x.size <= MOST_ELEMENTS:
        expected = np.zeros(x.shape, numbers.wide(x).dtype)
        for k in np.ndindex(x.shape):
            unit = jnp.zeros_like(x).at[k].set(1)
            expected[k] = _element(case, i, unit, cts)
            if numbers.is_complex(x):
                expected[k] -= 1j * _element(case, i, 1j * unit, cts)
        got = jnp.asarray(grad)
        text = numbers.compare(
            [numbers.wide(got)], [expected], [f"gradient of {label}"], 0.0
        ).where
        where = _ratio(text, numbers.wide(got), expected)
    return Outcome(outcome.error, outcome.tolerance, where)


def _element(case: Case, i: int, unit: Any, cts: Arrays) -> float:
    along = [unit if j == i else None for j in range(len(case.at))]
    return numbers.pairing(cts, [s.value for s in slopes_of(case, along)])


def _ratio(text: str, got: np.ndarray, expected: np.ndarray) -> str:
    """The text, with the factor if all elements are wrong by the same one."""
    with np.errstate(all="ignore"):
        ratios = (got / expected).ravel()
    if ratios.size and np.isfinite(ratios).all() and np.ptp(ratios.real) < 1e-3:
        return (
            f"{text}; the whole gradient is {ratios[0].real:.4g} times the expected one"
        )
    return text


def backward_repeats(case: Case) -> Outcome:
    cts = case.cts(case.rng())
    first, second = (case.pull(cts, *case.xs) for _ in range(2))
    return numbers.compare(second, first, _gradients(case), case.same_tolerance)


def backward_jit(case: Case) -> Outcome:
    cts = case.cts(case.rng())
    expected = case.pull(cts, *case.xs)
    got = jax.jit(case.pull)(cts, *case.xs)
    return numbers.compare(got, expected, _gradients(case), case.same_tolerance)


def _gradients(case: Case, chosen: Sequence[int] | None = None) -> list[str]:
    labels = case.x_labels
    at = range(len(labels)) if chosen is None else chosen
    return [f"gradient of {labels[i]}" for i in at]


def backward_zero(case: Case) -> Outcome:
    """Zero cotangents give zero gradients."""
    zeros = [jnp.zeros_like(o) for o in case.f(*case.xs)]
    got = case.pull(zeros, *case.xs)
    expected = [jnp.zeros_like(g) for g in got]
    return numbers.compare(
        got, expected, _gradients(case), case.same_tolerance, floor=1.0
    )


def backward_linear(case: Case) -> Outcome:
    """Backward of a sum is the sum, and of a hundredfold the hundredfold."""
    generator = case.rng()
    a, b = case.cts(generator), case.cts(generator)
    of_a, of_b = case.pull(a, *case.xs), case.pull(b, *case.xs)
    found = []
    for factor in (1.0, 100.0, -0.01):
        got = case.pull(_combine(factor, a, b), *case.xs)
        expected = _combine(factor, of_a, of_b)
        names = [f"{name} ({factor:g} ct + ct')" for name in _gradients(case)]
        found.append(numbers.compare(got, expected, names, case.same_tolerance))
    return numbers.worst(found)


def _combine(factor: float, a: Arrays, b: Arrays) -> Arrays:
    return [
        (jnp.asarray(factor, x.real.dtype) * x + y).astype(x.dtype)
        for x, y in zip(a, b, strict=True)
    ]


def backward_subsets(case: Case) -> Outcome:
    """A gradient does not depend on which other arguments are differentiated."""
    if len(case.at) < 2:
        raise Skip("one argument has a derivative")
    cts = case.cts(case.rng())
    whole = case.pull(cts, *case.xs)
    found = []
    for chosen in case.subsets():
        xs = [case.xs[i] for i in chosen]
        got = list(jax.vjp(case.only(chosen), *xs)[1](cts))
        names = [f"{n} (without the others)" for n in _gradients(case, chosen)]
        expected = [whole[i] for i in chosen]
        found.append(numbers.compare(got, expected, names, case.same_tolerance))
    return numbers.worst(found)


def backward_unused(case: Case) -> Outcome:
    """An output that is not used is like one with zero cotangents."""
    cts = case.cts(case.rng())
    if len(cts) < 2:
        raise Skip("one output has a derivative")
    found = []
    for j, ct in enumerate(cts):
        padded = [ct if k == j else jnp.zeros_like(c) for k, c in enumerate(cts)]
        expected = case.pull(padded, *case.xs)
        alone = jax.vjp(lambda *xs, j=j: case.f(*xs)[j], *case.xs)[1]
        names = [f"{name} (output {j} alone)" for name in _gradients(case)]
        got = list(alone(ct))
        found.append(numbers.compare(got, expected, names, case.same_tolerance))
    return numbers.worst(found)


# ---- jvp


def jvp(case: Case) -> Outcome:
    """The tangents against slopes, one argument at a time."""
    ts, found = case.ts(case.rng()), []
    case.push(ts, *case.xs)  # refusals before anything is computed
    for i, t in enumerate(ts):
        along = [t if j == i else None for j in range(len(ts))]
        slopes = slopes_of(case, along)
        if slopes and not any(s.settled.any() for s in slopes):
            raise ValueError(f"{case.x_labels[i]}: {UNSETTLED}.")
        zeros = [jnp.zeros_like(x) for x in case.xs]
        got = case.push([t if j == i else z for j, z in enumerate(zeros)], *case.xs)
        for j, (tangent, s) in enumerate(zip(got, slopes, strict=True)):
            known = numbers.wide(jnp.where(s.settled, tangent, 0))
            expected = np.where(s.settled, s.value, 0).astype(known.dtype)
            label = f"tangent of output {j} along {case.x_labels[i]}"
            outcome = numbers.compare(
                [known], [expected], [label], case.slope_tolerance, floor=s.floor
            )
            found.append(outcome)
    return numbers.worst(found)


def jvp_jit(case: Case) -> Outcome:
    ts = case.ts(case.rng())
    expected = case.push(ts, *case.xs)
    got = jax.jit(case.push)(ts, *case.xs)
    return numbers.compare(got, expected, _tangents(expected), case.same_tolerance)


def _tangents(arrays: Arrays) -> list[str]:
    return [f"tangent of {name}" for name in outputs(len(arrays))]


def jvp_linear(case: Case) -> Outcome:
    generator, found = case.rng(), []
    a, b = case.ts(generator), case.ts(generator)
    of_a, of_b = case.push(a, *case.xs), case.push(b, *case.xs)
    for factor in (1.0, 100.0, -0.01):
        got = case.push(_combine(factor, a, b), *case.xs)
        names = [f"{name} ({factor:g} t + t')" for name in _tangents(got)]
        expected = _combine(factor, of_a, of_b)
        found.append(numbers.compare(got, expected, names, case.same_tolerance))
    return numbers.worst(found)


def jvp_subsets(case: Case) -> Outcome:
    """A constant argument is like one with zero tangent."""
    if len(case.at) < 2:
        raise Skip("one argument has a derivative")
    ts, found = case.ts(case.rng()), []
    zeros = [jnp.zeros_like(x) for x in case.xs]
    for chosen in case.subsets():
        padded = [t if i in chosen else zeros[i] for i, t in enumerate(ts)]
        expected = case.push(padded, *case.xs)
        some = [case.xs[i] for i in chosen], [ts[i] for i in chosen]
        got = jax.jvp(case.only(chosen), *some)[1]
        constants = [case.x_labels[i] for i in range(len(ts)) if i not in chosen]
        names = [f"{n} ({', '.join(constants)} constant)" for n in _tangents(got)]
        found.append(numbers.compare(got, expected, names, case.same_tolerance))
    return numbers.worst(found)


def adjoint(case: Case) -> Outcome:
    """<ct, J t> = <J^T ct, t>."""
    generator = case.rng()
    cts, ts = case.cts(generator), case.ts(generator)
    pushed, pulled = case.push(ts, *case.xs), case.pull(cts, *case.xs)
    a, b = numbers.pairing(cts, pushed), numbers.pairing(pulled, ts)
    size = max(numbers.size_of(cts, pushed), numbers.size_of(pulled, ts))
    outcome = numbers.is_close(b, a, size, case.slope_tolerance)
    text = f"<ct, jvp t> is {a:.6g} and <backward ct, t> is {b:.6g}"
    return Outcome(outcome.error, outcome.tolerance, text)


Run = Callable[[Case], Outcome]
