"""Times as ratios within one process, so that a noisy machine does not decide them.

All calls of a group run in every round, forwards in even rounds and backwards in odd
ones. What is reported is the median of the ratios of each round, with their quartiles.
The garbage collector is off while a call is timed, and runs between rounds, for all
alike; what was imported before is frozen, so that it is not searched each time.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Call:
    """Something to time.

    Attributes:
        run: what is timed; it is given what `prepare` made.
        prepare: makes new functions for one run, outside of the time.
        finish: waits for the last result of a round, within the time.
    """

    run: Callable[[Any], Any]
    prepare: Callable[[], Any] = lambda: None
    finish: Callable[[Any], Any] = jax.block_until_ready


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: number of rounds.
        seconds: how long each call is repeated in a round.
        quick: leave out what is slow.
    """

    rounds: int = 30
    seconds: float = 0.005
    quick: bool = False

    def slower(self, rounds: int) -> Effort:
        """For calls that take seconds."""
        return dataclasses.replace(self, rounds=min(rounds, self.rounds), seconds=0.0)


ONCE = Effort(rounds=1, seconds=0.0, quick=True)


@dataclasses.dataclass(frozen=True)
class Spread:
    """The median of some numbers, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, method="inclusive")
        return cls(median, low, high)


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of one call, for each name and round."""

    seconds: dict[str, list[float]]

    def ratio(self, one: str, other: str, scale: float = 1.0) -> Spread:
        """How much longer `one` took than `other`, times `scale`."""
        pairs = zip(self.seconds[one], self.seconds[other], strict=True)
        return Spread.of([scale * a / b for a, b in pairs])

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])


def interleaved(calls: Mapping[str, Call], effort: Effort) -> Times:
    """Time all calls in rounds."""
    repeats = {name: _repeats(call, effort.seconds) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.freeze()
    try:
        for i in range(effort.rounds):
            for name in list(calls) if i % 2 == 0 else reversed(calls):
                seconds[name].append(_time(calls[name], repeats[name]))
            gc.collect()
    finally:
        gc.unfreeze()
    return Times(seconds)


def _repeats(call: Call, seconds: float) -> int:
    if not seconds:
        _time(call, 1)
        return 1
    _time(call, 3)  # compiles what is compiled once
    return max(1, int(seconds / _time(call, 3)))


def _time(call: Call, repeats: int) -> float:
    prepared = [call.prepare() for _ in range(repeats)]
    run, result = call.run, None
    was_on = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        for made in prepared:
            result = run(made)
        call.finish(result)
        return (time.perf_counter() - start) / repeats
    finally:
        if was_on:
            gc.enable()
