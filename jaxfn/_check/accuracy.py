"""How accurate the function and its derivatives are, as far as it must be known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxfn._check import noise, numbers
from jaxfn._check.case import Case
from jaxfn._check.differences import line
from jaxfn._check.numbers import Outcome

MOST = 10
"""Jumps that make an error.

An iteration whose steps shrink by a factor r jumps by 1 - r of its error: by a tenth
for r = 0.9. Two results are then at most ten jumps from each other.
"""

NAMES = {"value": "forward", "gradient": "backward", "tangent": "jvp"}


def along(case: Case, ts: Sequence[Any]) -> list[float]:
    """Of each output, on a line through the arguments."""
    return jumps(case.quick_f, case.xs, ts)


def jumps(f: Callable[..., Any], xs: Sequence[Any], ts: Sequence[Any]) -> list[float]:
    """Of each result of `f`, on a line through its arguments."""
    return noise.jumps(line(f, xs, ts))


def of(case: Case, what: str) -> list[float]:
    """Of each value, gradient or tangent, where all that it depends on moves."""
    if what not in case.accuracy:
        generator, n = case.rng(), len(case.at)
        xs, cts = case.xs, case.cts(generator)
        ts = case.ts(generator)
        if what == "value":
            case.accuracy[what] = along(case, ts)
        else:
            given = cts if what == "gradient" else ts
            f = _derivative(case, what, n)
            others = [numbers.direction(x, generator) for x in given]
            case.accuracy[what] = jumps(f, [*xs, *given], [*ts, *others])
    return case.accuracy[what]


def _derivative(case: Case, what: str, n: int) -> Callable[..., Any]:
    if what == "tangent":
        return lambda *args: case.quick_push(list(args[n:]), *args[:n])
    # Before it is known that compiling makes no difference: here it makes none.
    pull = case.pull_program if case.is_traced else case.gradients
    return lambda *args: pull(list(args[n:]), *case.whole(args[:n]))


def said(what: str, accuracies: Sequence[float]) -> str:
    """In words; an empty text if nothing was measured."""
    largest = max(accuracies, default=0.0)
    return f"{NAMES[what]} is accurate to about {largest:.0e} here" if largest else ""


def allow(case: Case, outcome: Outcome, kinds: Sequence[str]) -> Outcome:
    """The outcome, with what the accuracy of the results explains allowed."""
    found = {what: of(case, what) for what in kinds}
    more = MOST * max((x for xs in found.values() for x in xs), default=0.0)
    if not more or not outcome.error <= outcome.tolerance + more:
        return outcome
    note = ", ".join(filter(None, (said(what, xs) for what, xs in found.items())))
    tolerance = outcome.tolerance + more
    return Outcome(outcome.error, tolerance, outcome.where, outcome.rule, note)
