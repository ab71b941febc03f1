"""The accuracy of both sides near the arguments, measured if it is needed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxfn._check import LARGEST, MOST, Outcome, direction, eps_of, jumps, largest, wide
from jaxfn.torch._compare.original import OriginalError

SIDES = ("original", "port")
STEPS = 4

Fun = Callable[..., Sequence[Any]]


class Accuracy:
    """The accuracy of both sides, measured after a comparison failed, and cached.

    Args:
        function: Returns a result of a side ("value", "gradient", ...) as a function of
            arrays, and these arrays.
        seed: Seed of the steps.
    """

    def __init__(
        self,
        function: Callable[[str, str], tuple[Fun, Sequence[np.ndarray]]],
        seed: int,
    ) -> None:
        self._function, self._seed = function, seed
        self.jumps_of = functools.cache(self._jumps)
        self._moves_of = functools.cache(self._moves)

    def allow(self, outcome: Outcome, what: str, k: int, size: float) -> Outcome:
        """Return the outcome of result `k`, with the tolerance that accuracy allows."""
        for side in SIDES:
            more = outcome.tolerance + MOST * self._moves_of(side, what)[k] / size
            if outcome.error <= more:
                return dataclasses.replace(outcome, tolerance=more, where="")
        if outcome.error > outcome.tolerance + MOST * LARGEST:
            return outcome
        for side in SIDES:
            jump = self.jumps_of(side, what)[k]
            more = outcome.tolerance + MOST * jump
            if outcome.error <= more:
                note = f"the {side} is accurate to about {jump:.0e} here"
                return Outcome(outcome.error, more, note=note)
        return outcome

    def _moves(self, side: str, what: str) -> Sequence[float]:
        """Return how much each result changes with the last digits of the arguments.

        After cancellation no digits are left to compare.
        """
        f, xs = self._function(side, what)
        generator, eps = np.random.default_rng(self._seed), eps_of(xs)
        first = [wide(np.asarray(x)) for x in f(*xs)]
        found = np.zeros(len(first))
        for k in range(STEPS):
            # The first step scales arrays as a whole: symmetric ones stay symmetric.
            steps = [
                1 + eps * (1 if k == 0 else generator.choice([-1, 1], x.shape))
                for x in xs
            ]
            pairs = zip(xs, steps, strict=True)
            with contextlib.suppress(Exception):  # f may refuse these
                near = f(*[np.asarray(x * step).astype(x.dtype) for x, step in pairs])
                gaps = zip(near, first, strict=True)
                moves = [largest(wide(np.asarray(y)) - x) for y, x in gaps]
                found = np.maximum(found, moves)
        return [float(x) for x in found]

    def _jumps(self, side: str, what: str) -> Sequence[float]:
        """Return how much each result jumps near the arguments, relative to its size.

        An iteration is no more accurate than its tolerance. Code in single precision
        has no more digits than that, whatever its arguments have.
        """
        f, xs = self._function(side, what)
        generator = np.random.default_rng(self._seed)
        try:
            return jumps(f, xs, [direction(x, generator) for x in xs])
        except OriginalError:  # it refuses points near the arguments
            return [0.0] * len(f(*xs))
