"""Checks of the rules themselves: the value, backward and jvp."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxfn._check import accuracy, numbers, shared
from jaxfn._check.case import Case, floats, name_outputs, name_tangents, rule_that_saves
from jaxfn._check.diagnosis import located
from jaxfn._check.finite_differences import (
    UNSETTLED,
    Slope,
    has_slope,
    masked,
    paired,
    slopes_of,
)
from jaxfn._check.numbers import Arrays
from jaxfn._check.shared import Outcome, Skip
from jaxfn._core import values

# ---- value


def value(case: Case) -> Outcome:
    """Run forward twice; compare the results, also with the reference."""
    first = case.first_value
    if not first and not case.arrays:
        raise Skip("no argument is an array")
    if not first:
        where = "It returned no array. Is `return` missing?"
        return Outcome(np.inf, 0.0, where)
    again = case.run(*case.arrays)
    names = name_outputs(first)
    outcome = shared.compare(again, first, names, case.same_tolerance, atol=case.atol)
    if case.reference is None or case.surrogate:
        return outcome
    expected = case.run_of(case.reference, case.arrays)
    names = [f"{name} (against the reference)" for name in names]
    against = shared.compare(
        first, expected, names, case.slope_tolerance, atol=case.atol
    )
    return shared.worst([outcome, against])


def value_jit(case: Case) -> Outcome:
    got = case.run_program.compiled(*case.arrays)
    return case.compare(got, case.first_value, name_outputs(got))


def _why_unsettled(case: Case) -> str:
    if any(np.isnan(x).any() for x in map(shared.wide, floats(case.first_value))):
        return "the value is nan here. Choose arguments in the domain of the function"
    return UNSETTLED


# ---- backward


def backward(case: Case) -> Outcome:
    """Compare <J^T ct, t> with <ct, slope along t>, one argument at a time."""
    of_fwd = _value_of_fwd(case)
    if not of_fwd.ok:
        return of_fwd
    generator = case.rng()
    case.cts(generator)
    ts = case.ts(generator)
    grads = case.first_gradients
    return shared.worst([_argument(case, i, t, grads) for i, t in enumerate(ts)])


def _value_of_fwd(case: Case) -> Outcome:
    """Check that the rule that saves for backward returns the function's value.

    JAX does not check this: outside a trace it uses the result of fwd.
    """
    structures: list[Any] = []

    def f(*xs: Any) -> Arrays:
        arrays = numbers.copies(case.whole(xs))
        found, spec = values.split(case.fun(*case.spec.join(arrays)))
        structures.append(spec.treedef)
        return found

    expected, got = f(*case.xs), jax.vjp(f, *case.xs)[0]
    want, have = structures
    if want != have:
        outcome = Outcome(np.inf, 0.0, f"expected {want}, got {have}")
    else:
        names, tolerance = name_outputs(expected), case.slope_tolerance
        outcome = shared.compare(got, expected, names, tolerance, atol=case.atol)
    rule = rule_that_saves(case.fun)
    where = f"{rule} returned another value than the function: {outcome.where}"
    return dataclasses.replace(outcome, where=where, rule=rule)


def _argument(case: Case, i: int, t: Any, grads: Arrays) -> Outcome:
    along = [t if j == i else None for j in range(len(case.at))]
    accuracies: list[float] = []
    outcome = _along(case, i, t, slopes_of(case, along), grads)
    if outcome is None or not outcome.ok:
        # The value itself may be inaccurate, by the tolerance of a solver.
        accuracies = accuracy.of(case, "value")
        of_gradient = accuracy.of(case, "gradient")
        if any(accuracies) or any(of_gradient):
            slopes = slopes_of(case, along, accuracies)
            size = shared.largest(shared.wide(grads[i]))
            size *= float(np.sum(np.abs(shared.wide(t))))
            more = accuracy.MOST * of_gradient[i] * size
            outcome = _along(case, i, t, slopes, grads, more)
            notes = (
                accuracy.said("value", accuracies),
                accuracy.said("gradient", of_gradient),
            )
            if outcome is not None:
                note = ", ".join(filter(None, notes))
                outcome = dataclasses.replace(outcome, note=note)
    if outcome is None:
        raise ValueError(f"{case.x_labels[i]}: {_why_unsettled(case)}.")
    return located(case, outcome, i, accuracies)


def _along(
    case: Case, i: int, t: Any, slopes: list[Slope], grads: Arrays, more: float = 0.0
) -> Outcome | None:
    """Compare the gradient by argument i with slopes; None if there are no slopes."""
    if not has_slope(slopes):
        return None
    cts = case.first_cts
    if not all(s.settled.all() for s in slopes):
        # An element without a slope gets no cotangent.
        cts = masked(slopes, cts)
        grads = case.pull(cts, *case.xs)
    more += case.atol * float(np.sum(np.abs(shared.wide(t))))
    return paired(case, ([grads[i]], [t]), slopes, cts, more)


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
    """Check that zero cotangents give zero gradients."""
    got = case.quick_pull(numbers.zeros(case.out_types), *case.xs)
    return case.compare(got, numbers.zeros(got), _gradients(case), least_size=1.0)


def backward_linear(case: Case) -> Outcome:
    """Check that backward maps sums to sums, and multiples to multiples."""
    generator = case.rng()
    a, b = case.cts(generator), case.cts(generator)
    return _linear(case, case.quick_pull, a, b, lambda _: _gradients(case), "ct")


def _linear(
    case: Case,
    f: Callable[..., Arrays],
    a: Arrays,
    b: Arrays,
    labels: Callable[[Arrays], list[str]],
    letter: str,
) -> Outcome:
    """Compare the derivative along sums with sums of derivatives."""
    of_a, of_b = f(a, *case.xs), f(b, *case.xs)
    found = []
    for factor in (1.0, 100.0, -0.01):
        got = f(numbers.combine(factor, a, b), *case.xs)
        expected = numbers.combine(factor, of_a, of_b)
        names = [f"{n} ({factor:g} {letter} + {letter}')" for n in labels(got)]
        found.append(case.compare(got, expected, names))
    return shared.worst(found)


def backward_subsets(case: Case) -> Outcome:
    """Check that a gradient does not depend on the other differentiated arguments."""
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
        them = ", ".join(re.split(r" \(|,", case.x_labels[i])[0] for i in chosen)
        names = [f"{n} ({them} alone differentiated)" for n in _gradients(case, chosen)]
        found.append(case.compare(got, [whole[i] for i in chosen], names))
    return shared.worst(found)


def backward_unused(case: Case) -> Outcome:
    """Check that an unused output acts like one with zero cotangents."""
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
        names = [f"{name} (output {j} alone used)" for name in _gradients(case)]
        found.append(case.compare(got, expected, names))
    return shared.worst(found)


# ---- jvp


def jvp(case: Case) -> Outcome:
    """Compare the tangents with slopes, one argument at a time."""
    ts, found = case.ts(case.rng()), []
    case.quick_push(ts, *case.xs)  # refusals before anything is computed
    zeros = numbers.zeros(case.xs)
    for i, t in enumerate(ts):
        along = [t if j == i else None for j in range(len(ts))]
        got = case.quick_push(
            [t if j == i else z for j, z in enumerate(zeros)], *case.xs
        )
        outcome = _tangent(case, i, got, slopes_of(case, along))
        if outcome is None or not outcome.ok:
            accuracies = accuracy.of(case, "value")
            if any(accuracies):
                slopes = slopes_of(case, along, accuracies)
                outcome = _tangent(case, i, got, slopes)
                note = accuracy.said("value", accuracies)
                outcome = outcome and dataclasses.replace(outcome, note=note)
        if outcome is None:
            raise ValueError(f"{case.x_labels[i]}: {_why_unsettled(case)}.")
        found.append(outcome)
    return shared.worst(found)


def _tangent(
    case: Case, i: int, got: Arrays, slopes: Sequence[Slope]
) -> Outcome | None:
    """Compare tangents along argument i with slopes; None if there are no slopes."""
    if not has_slope(slopes):
        return None
    found = []
    for j, (tangent, s) in enumerate(zip(got, slopes, strict=True)):
        known = np.where(s.settled, shared.wide(tangent), 0)
        expected = np.where(s.settled, s.value, 0).astype(known.dtype)
        label = f"tangent of output {j} along {case.x_labels[i]}"
        more = case.atol + float(np.max(s.error, initial=0.0))
        outcome = shared.compare(
            [known],
            [expected],
            [label],
            case.slope_tolerance,
            least_size=s.least_size,
            atol=more,
        )
        found.append(outcome)
    return shared.worst(found)


def jvp_jit(case: Case) -> Outcome:
    ts = case.ts(case.rng())
    expected = case.push(ts, *case.xs)
    got = case.push_program.compiled(ts, *case.arrays)
    return case.compare(got, expected, name_tangents(expected))


def jvp_linear(case: Case) -> Outcome:
    generator = case.rng()
    a, b = case.ts(generator), case.ts(generator)
    return _linear(case, case.quick_push, a, b, name_tangents, "t")


def jvp_subsets(case: Case) -> Outcome:
    """Check that a constant argument acts like one with zero tangent."""
    if len(case.at) < 2:
        raise Skip("one argument has a derivative")
    ts, zeros, found = case.ts(case.rng()), numbers.zeros(case.xs), []

    def parts(ts: Arrays, xs: Arrays) -> list[Arrays]:
        return [
            jax.jvp(
                case.only(chosen, xs),
                [xs[i] for i in chosen],
                [ts[i] for i in chosen],
            )[1]
            for chosen in case.subsets()
        ]

    every = case.program(parts)(ts, case.xs)
    for chosen, got in zip(case.subsets(), every, strict=True):
        padded = [t if i in chosen else zeros[i] for i, t in enumerate(ts)]
        expected = case.quick_push(padded, *case.xs)
        constants = [case.x_labels[i] for i in range(len(ts)) if i not in chosen]
        names = [f"{n} ({', '.join(constants)} constant)" for n in name_tangents(got)]
        found.append(case.compare(got, expected, names))
    return shared.worst(found)


def adjoint(case: Case) -> Outcome:
    """Check that <ct, J t> = <J^T ct, t>."""
    generator = case.rng()
    cts, ts = case.cts(generator), case.ts(generator)
    pushed, pulled = case.quick_push(ts, *case.xs), case.quick_pull(cts, *case.xs)
    a, b = numbers.pairing(cts, pushed), numbers.pairing(pulled, ts)
    size = max(numbers.size_of(cts, pushed), numbers.size_of(pulled, ts))
    allowed = case.atol * sum(float(np.sum(np.abs(shared.wide(t)))) for t in ts)
    outcome = shared.is_close(b, a, size, case.slope_tolerance, allowed)
    text = f"<ct, jvp t> is {a:.6g} and <backward ct, t> is {b:.6g}"
    return dataclasses.replace(outcome, where=text)
