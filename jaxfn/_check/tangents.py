"""Checks of the forward derivative: the jvp, for itself and against backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from jaxfn._check import accuracy, numbers
from jaxfn._check.case import Case
from jaxfn._check.differences import Slope
from jaxfn._check.numbers import Arrays, Outcome, Skip
from jaxfn._check.rules import UNSETTLED, has_slope, outputs, slopes_of


def jvp(case: Case) -> Outcome:
    """The tangents against slopes, one argument at a time."""
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
            raise ValueError(f"{case.x_labels[i]}: {UNSETTLED}.")
        found.append(outcome)
    return numbers.worst(found)


def _tangent(
    case: Case, i: int, got: Arrays, slopes: Sequence[Slope]
) -> Outcome | None:
    """Tangents along argument i against slopes; None if there are none."""
    if not has_slope(slopes):
        return None
    found = []
    for j, (tangent, s) in enumerate(zip(got, slopes, strict=True)):
        known = np.where(s.settled, numbers.wide(tangent), 0)
        expected = np.where(s.settled, s.value, 0).astype(known.dtype)
        label = f"tangent of output {j} along {case.x_labels[i]}"
        more = case.atol + float(np.max(s.error, initial=0.0))
        outcome = numbers.compare(
            [known],
            [expected],
            [label],
            case.slope_tolerance,
            floor=s.floor,
            atol=more,
        )
        found.append(outcome)
    return numbers.worst(found)


def jvp_jit(case: Case) -> Outcome:
    ts = case.ts(case.rng())
    expected = case.push(ts, *case.xs)
    got = case.push_program.compiled(ts, *case.arrays)
    return case.compare(got, expected, _tangents(expected))


def _tangents(arrays: Arrays) -> list[str]:
    return [f"tangent of {name}" for name in outputs(len(arrays))]


def jvp_linear(case: Case) -> Outcome:
    generator, found = case.rng(), []
    a, b = case.ts(generator), case.ts(generator)
    of_a, of_b = case.quick_push(a, *case.xs), case.quick_push(b, *case.xs)
    for factor in (1.0, 100.0, -0.01):
        got = case.quick_push(numbers.combine(factor, a, b), *case.xs)
        names = [f"{name} ({factor:g} t + t')" for name in _tangents(got)]
        expected = numbers.combine(factor, of_a, of_b)
        found.append(case.compare(got, expected, names))
    return numbers.worst(found)


def jvp_subsets(case: Case) -> Outcome:
    """A constant argument is like one with zero tangent."""
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
        names = [f"{n} ({', '.join(constants)} constant)" for n in _tangents(got)]
        found.append(case.compare(got, expected, names))
    return numbers.worst(found)


def adjoint(case: Case) -> Outcome:
    """<ct, J t> = <J^T ct, t>."""
    generator = case.rng()
    cts, ts = case.cts(generator), case.ts(generator)
    pushed, pulled = case.quick_push(ts, *case.xs), case.quick_pull(cts, *case.xs)
    a, b = numbers.pairing(cts, pushed), numbers.pairing(pulled, ts)
    size = max(numbers.size_of(cts, pushed), numbers.size_of(pulled, ts))
    allowed = case.atol * sum(float(np.sum(np.abs(numbers.wide(t)))) for t in ts)
    outcome = numbers.is_close(b, a, size, case.slope_tolerance, allowed)
    text = f"<ct, jvp t> is {a:.6g} and <backward ct, t> is {b:.6g}"
    return dataclasses.replace(outcome, where=text)
