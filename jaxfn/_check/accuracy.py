"""How accurate the function and its derivatives are, as far as it must be known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

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


LINES = 2
"""In random directions, beside those along each argument."""


def of(case: Case, what: str) -> list[float]:
    """Of each value, gradient or tangent near the arguments.

    An iteration may be smooth along one line, with the same number of steps, and as
    inaccurate as along another, where it jumps.
    """
    if what not in case.accuracy:
        found = [jumps(*line) for line in _lines(case, what)]
        case.accuracy[what] = [max(column) for column in zip(*found, strict=True)]
    return case.accuracy[what]


def jumps(f: Callable[..., Any], xs: Sequence[Any], ts: Sequence[Any]) -> list[float]:
    """Of each result of `f`, on a line through its arguments."""
    return noise.jumps(line(f, xs, ts))


Line: TypeAlias = tuple[Callable[..., Any], Sequence[Any], Sequence[Any]]


def _lines(case: Case, what: str) -> Iterator[Line]:
    """What moves: everything together, and for a value each argument alone."""
    generator, n, xs = case.rng(), len(case.at), case.xs
    f = _function(case, what, n)
    # What nothing traces is slow: one line must do.
    for _ in range(LINES if case.is_traced else 1):
        cts, ts = case.cts(generator), case.ts(generator)
        given = {"value": [], "gradient": cts, "tangent": ts}[what]
        yield f, [*xs, *given], [*ts, *(numbers.direction(x, generator) for x in given)]
    if what == "value" and case.is_traced:
        for i, t in enumerate(case.ts(generator)):
            yield f, xs, [t if j == i else None for j in range(n)]


def _function(case: Case, what: str, n: int) -> Callable[..., Any]:
    if what == "value":
        return case.quick_f
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
