"""Ratios of times, measured so that a noisy machine does not decide them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def interleaved(
    calls: dict[str, Callable[[], Any]], *, rounds: int = 30, repeats: int = 100
) -> dict[str, float]:
    """Median seconds of a call for each; all are run in every round.

    Args:
        calls: what to time, by name.
        rounds: how often to go through all of them.
        repeats: how often to call each of them in a round.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            times[name].append((time.perf_counter() - start) / repeats)
    return {name: statistics.median(values) for name, values in times.items()}
