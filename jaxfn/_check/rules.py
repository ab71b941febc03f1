"""Checks of the rules themselves: value and backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxfn._check import accuracy, differences, numbers
from jaxfn._check.case import Case
from jaxfn._check.differences import Slope
from jaxfn._check.looks import likeness
from jaxfn._check.numbers import Arrays, Outcome, Skip

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
    first = case.first_value
    again = case.run(*case.arrays)
    names = outputs(len(first))
    outcome = numbers.compare(again, first, names, case.same_tolerance, atol=case.atol)
    if case.reference is None or case.surrogate:
        return outcome
    expected = case.run_of(case.reference, case.arrays)
    names = [f"{name} (against the reference)" for name in names]
    against = numbers.compare(
        first, expected, names, case.slope_tolerance, atol=case.atol
    )
    return numbers.worst([outcome, against])


def value_jit(case: Case) -> Outcome:
    got = case.run_program.compiled(*case.arrays)
    return case.compare(got, case.first_value, outputs(len(got)))


# ---- backward


def backward(case: Case) -> Outcome:
    """<J^T ct, t> against <ct, slope along t>, one argument at a time."""
    generator = case.rng()
    case.cts(generator)
    ts = case.ts(generator)
    grads = case.first_gradients
    return numbers.worst([_argument(case, i, t, grads) for i, t in enumerate(ts)])


def _argument(case: Case, i: int, t: Any, grads: Arrays) -> Outcome:
    along = [t if j == i else None for j in range(len(case.at))]
    accuracies: list[float] = []
    outcome = _paired(case, i, t, slopes_of(case, along), grads)
    if outcome is None or not outcome.ok:
        # What is wrong may be the value, by the tolerance of a solver.
        accuracies = accuracy.of(case, "value")
        of_gradient = accuracy.of(case, "gradient")
        if any(accuracies) or any(of_gradient):
            slopes = slopes_of(case, along, accuracies)
            size = numbers.largest(numbers.wide(grads[i]))
            size *= float(np.sum(np.abs(numbers.wide(t))))
            more = accuracy.MOST * of_gradient[i] * size
            outcome = _paired(case, i, t, slopes, grads, more)
            notes = (
                accuracy.said("value", accuracies),
                accuracy.said("gradient", of_gradient),
            )
            if outcome is not None:
                note = ", ".join(filter(None, notes))
                outcome = dataclasses.replace(outcome, note=note)
    if outcome is None:
        raise ValueError(f"{case.x_labels[i]}: {UNSETTLED}.")
    return _located(case, outcome, i, accuracies)


def _paired(
    case: Case, i: int, t: Any, slopes: list[Slope], grads: Arrays, more: float = 0.0
) -> Outcome | None:
    """The gradient by argument i against slopes along t; None if there are none."""
    if not has_slope(slopes):
        return None
    cts = case.first_cts
    if not all(s.settled.all() for s in slopes):
        # The gradient is that of masked cotangents where an element has no slope.
        cts = _masked(slopes, cts)
        grads = case.pull(cts, *case.xs)
    values = [np.where(s.settled, s.value, 0) for s in slopes]
    expected, got = numbers.pairing(cts, values), numbers.pairing([grads[i]], [t])
    size = max(numbers.size_of(cts, values), numbers.size_of([grads[i]], [t]))
    size += sum(s.floor for s in slopes)
    errors = [np.broadcast_to(s.error, s.value.shape) for s in slopes]
    more += numbers.size_of(cts, errors)
    more += case.atol * float(np.sum(np.abs(numbers.wide(t))))
    return numbers.is_close(got, expected, size, case.slope_tolerance, more)


def has_slope(slopes: Sequence[Slope]) -> bool:
    return all(s.settled.all() for s in slopes) or any(s.settled.any() for s in slopes)


def _masked(slopes: Sequence[Slope], cts: Arrays) -> Arrays:
    return [
        numbers.array(np.where(s.settled, np.asarray(ct), 0), ct.dtype)
        for s, ct in zip(slopes, cts, strict=True)
    ]


def slopes_of(
    case: Case, along: Sequence[Any], accuracies: Sequence[float] = ()
) -> list[Slope]:
    """The slopes of the value, or the derivative of the reference."""
    if case.reference is None:
        known = accuracies or None
        return differences.slopes(case.quick_f, case.xs, along, case.eps, known)
    ts = [
        z if d is None else d
        for z, d in zip(numbers.zeros(case.xs), along, strict=True)
    ]
    tangents = case.reference_program(ts, *case.xs)
    return [
        Slope(numbers.wide(t), np.ones(t.shape, bool), case.eps**0.4) for t in tangents
    ]


MOST_ELEMENTS = 100


def _located(
    case: Case, outcome: Outcome, i: int, accuracies: Sequence[float]
) -> Outcome:
    """Where the gradient is wrong, element by element, if it is and they are few."""
    x, label = case.xs[i], case.x_labels[i]
    if outcome.ok:
        return outcome
    where = f"gradient of {label} along a random direction: {outcome.where}"
    if x.size <= MOST_ELEMENTS:
        expected, cts = _elements(case, i, accuracies)
        grads = case.pull(cts, *case.xs)
        got = numbers.wide(grads[i])
        text = numbers.compare([got], [expected], [f"gradient of {label}"], 0.0).where
        where = "; ".join(filter(None, (text, likeness(got, expected, "gradient"))))
    return dataclasses.replace(outcome, where=where)


def _elements(
    case: Case, i: int, accuracies: Sequence[float]
) -> tuple[np.ndarray, Arrays]:
    """The gradient by each element of argument i, and the cotangents it is for."""
    x = case.xs[i]
    units = [1.0, 1j] if numbers.is_complex(x) else [1.0]
    found = {}
    cts = case.first_cts
    for k in np.ndindex(x.shape):
        for unit in units:
            t = np.zeros(x.shape, x.dtype)
            t[k] = unit
            along = [numbers.array(t) if j == i else None for j in range(len(case.at))]
            found[k, unit] = slopes = slopes_of(case, along, accuracies)
            cts = _masked(slopes, cts)
    expected = np.zeros(x.shape, numbers.wide(x).dtype)
    for (k, unit), slopes in found.items():
        values = [np.where(s.settled, s.value, 0) for s in slopes]
        expected[k] += numbers.pairing(cts, values) / unit
    return expected, cts


def backward_repeats(case: Case) -> Outcome:
    again = case.pull(case.first_cts, *case.xs)
    return case.compare(again, case.first_gradients, _gradients(case))


def backward_jit(case: Case) -> Outcome:
    got = case.pull_program.compiled(case.first_cts, *case.arrays)
    return case.compare(got, case.first_gradients, _gradients(case))


def _gradients(case: Case, chosen: Sequence[int] | None = None) -> list[str]:
    labels = case.x_labels
    at = range(len(labels)) if chosen is None else chosen
    return [f"gradient of {labels[i]}" for i in at]


def backward_zero(case: Case) -> Outcome:
    """Zero cotangents give zero gradients."""
    got = case.quick_pull(numbers.zeros(case.out_types), *case.xs)
    return case.compare(got, numbers.zeros(got), _gradients(case), floor=1.0)


def backward_linear(case: Case) -> Outcome:
    """Backward of a sum is the sum, and of a hundredfold the hundredfold."""
    generator = case.rng()
    a, b = case.cts(generator), case.cts(generator)
    of_a, of_b = case.quick_pull(a, *case.xs), case.quick_pull(b, *case.xs)
    found = []
    for factor in (1.0, 100.0, -0.01):
        got = case.quick_pull(numbers.combine(factor, a, b), *case.xs)
        expected = numbers.combine(factor, of_a, of_b)
        names = [f"{name} ({factor:g} ct + ct')" for name in _gradients(case)]
        found.append(case.compare(got, expected, names))
    return numbers.worst(found)


def backward_subsets(case: Case) -> Outcome:
    """A gradient does not depend on which other arguments are differentiated."""
    if len(case.at) < 2:
        raise Skip("one argument has a derivative")
    whole = case.quick_pull(case.first_cts, *case.xs)

    def parts(cts: Arrays, xs: Arrays) -> list[Arrays]:
        return [
            list(jax.vjp(case.only(chosen, xs), *[xs[i] for i in chosen])[1](cts))
            for chosen in case.subsets()
        ]

    found = []
    every = case.program(parts)(case.first_cts, case.xs)
    for chosen, got in zip(case.subsets(), every, strict=True):
        names = [f"{n} (without the others)" for n in _gradients(case, chosen)]
        found.append(case.compare(got, [whole[i] for i in chosen], names))
    return numbers.worst(found)


def backward_unused(case: Case) -> Outcome:
    """An output that is not used is like one with zero cotangents."""
    cts = case.first_cts
    if len(cts) < 2:
        raise Skip("one output has a derivative")

    def parts(cts: Arrays, xs: Arrays) -> list[Arrays]:
        return [
            list(jax.vjp(lambda *xs, j=j: case.f(*xs)[j], *xs)[1](ct))
            for j, ct in enumerate(cts)
        ]

    found, zeros = [], numbers.zeros(cts)
    for j, got in enumerate(case.program(parts)(cts, case.xs)):
        padded = [ct if k == j else zeros[k] for k, ct in enumerate(cts)]
        expected = case.quick_pull(padded, *case.xs)
        names = [f"{name} (output {j} alone)" for name in _gradients(case)]
        found.append(case.compare(got, expected, names))
    return numbers.worst(found)
