"""Times as ratios within one process, so that a noisy machine does not decide them.

All calls of a group run in every round, forwards in even rounds and backwards in odd
ones. What is reported is the median of the ratios of each round, with their quartiles.
The garbage collector is off while a call is timed, and runs between rounds, for all
alike; what was imported before is frozen, so that it is not searched each time.

Where Python is what takes the time, the clock counts CPU seconds of the process, which
neighbours on the machine do not disturb; where arrays are big it is a wall clock.
"""

from __future__ import annotations

import dataclasses
import gc
import math
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
        clock: seconds until now.
    """

    rounds: int = 30
    seconds: float = 0.02
    quick: bool = False
    clock: Callable[[], float] = time.process_time

    def slower(self, rounds: int) -> Effort:
        """For calls that take seconds."""
        return dataclasses.replace(self, rounds=min(rounds, self.rounds), seconds=0.0)

    def walled(self) -> Effort:
        """For calls that use more than one thread."""
        return dataclasses.replace(self, clock=time.perf_counter)

    def for_size(self, n: int) -> Effort:
        """For calls on arrays of n elements."""
        if n < 1000:
            return self
        return self.walled() if n < 1_000_000 else self.walled().slower(9)


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

    def overall(self, pairs: list[tuple[str, str]]) -> Spread:
        """The geometric mean of the ratios of some pairs."""
        logs = [
            [
                math.log(a / b)
                for a, b in zip(self.seconds[x], self.seconds[y], strict=True)
            ]
            for x, y in pairs
        ]
        return Spread.of(
            [math.exp(statistics.fmean(r)) for r in zip(*logs, strict=True)]
        )

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])


def interleaved(calls: Mapping[str, Call], effort: Effort) -> Times:
    """Time all calls in rounds."""
    repeats = {name: _repeats(call, effort) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.freeze()
    try:
        for i in range(effort.rounds):
            for name in list(calls) if i % 2 == 0 else reversed(list(calls)):
                seconds[name].append(_time(calls[name], repeats[name], effort))
            gc.collect()
    finally:
        gc.unfreeze()
    return Times(seconds)


def _repeats(call: Call, effort: Effort) -> int:
    _time(call, 1, effort)  # compiles what is compiled once
    if not effort.seconds:
        return 1
    once = min(_time(call, 3, effort) for _ in range(3))
    return max(1, int(effort.seconds / max(once, 1e-7)))


def _time(call: Call, repeats: int, effort: Effort) -> float:
    prepared = [call.prepare() for _ in range(repeats)]
    run, result, clock = call.run, None, effort.clock
    if repeats > 1:  # the collector and the other calls have emptied the caches
        call.finish(run(call.prepare()))
    was_on = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        for made in prepared:
            result = run(made)
        call.finish(result)
        return (clock() - start) / repeats
    finally:
        if was_on:
            gc.enable()
