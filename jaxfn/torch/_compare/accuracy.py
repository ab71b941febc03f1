"""The accuracy of both sides near the arguments, measured if it is needed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxfn._check import LARGEST, MOST, Outcome, eps_of, jumps, largest, wide
from jaxfn.torch._compare.original import OriginalError

SIDES = ("original", "port")
STEPS = 4

Fun = Callable[..., Sequence[Any]]


class Accuracy:
    """The accuracy of both sides, measured after a comparison failed, and cached.

    Args:
        function: Function of a side and of a result ("value", "gradient", ...).
        points: Returns the arrays that such a result is a function of.
        seed: Seed of the steps.
    """

    def __init__(
        self,
        function: Callable[[str, str], Fun],
        points: Callable[[str], Sequence[np.ndarray]],
        seed: int,
    ) -> None:
        self._function, self._points, self._seed = function, points, seed
        self._found: dict[tuple[str, str, str], Sequence[float]] = {}

    def allow(self, outcome: Outcome, what: str, k: int, size: float) -> Outcome:
        """Return the outcome of result `k`, with the tolerance that accuracy allows."""
        for side in SIDES:
            moves = self._once("moves", side, what, self._moves)[k]
            more = outcome.tolerance + MOST * moves / size
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

    def jumps_of(self, side: str, what: str) -> Sequence[float]:
        """Return how much each result of a side jumps, relative to its size."""
        return self._once("jumps", side, what, self._jumps)

    def _once(
        self,
        kind: str,
        side: str,
        what: str,
        run: Callable[[Fun, Sequence[np.ndarray]], Sequence[float]],
    ) -> Sequence[float]:
        key = kind, side, what
        if key not in self._found:
            self._found[key] = run(self._function(side, what), self._points(what))
        return self._found[key]

    def _moves(self, f: Fun, xs: Sequence[np.ndarray]) -> Sequence[float]:
        """Return how much each result changes with the last digits of the arguments.

        After cancellation no digits are left to compare.
        """
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

    def _jumps(self, f: Fun, xs: Sequence[np.ndarray]) -> Sequence[float]:
        """Return how much each result jumps near the arguments, relative to its size.

        An iteration is no more accurate than its tolerance. Code in single precision
        has no more digits than that, whatever its arguments have.
        """
        generator = np.random.default_rng(self._seed)
        along = [normal(x, generator, size_of(x)) for x in xs]
        try:
            return jumps(f, xs, along)
        except OriginalError:  # it refuses points near the arguments
            return [0.0] * len(f(*xs))


def normal(
    x: np.ndarray, generator: np.random.Generator, size: float = 1.0
) -> np.ndarray:
    """Return normal numbers of the shape and dtype of `x`."""
    numbers: Any = size * generator.standard_normal(x.shape)
    if np.iscomplexobj(x):
        numbers = numbers + size * 1j * generator.standard_normal(x.shape)
    return np.asarray(numbers).astype(x.dtype)


def size_of(x: np.ndarray) -> float:
    """Return the typical size of the elements, as the length of a direction."""
    mean = float(np.sqrt(np.mean(np.abs(wide(x)) ** 2))) if x.size else 1.0
    return float(np.clip(mean, 1e-3, 1e3))
