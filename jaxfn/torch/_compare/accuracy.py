"""How accurate both sides are near the arguments, as far as it must be known."""

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
    """What is measured once a comparison has failed, and then kept.

    Args:
        function: of a side and of what it gives ("value", "gradient", ...).
        xs: the arrays that it is a function of.
        seed: of the steps that are taken.
    """

    def __init__(
        self, function: Callable[[str, str], Fun], xs: Sequence[np.ndarray], seed: int
    ) -> None:
        self._function, self._xs, self._seed = function, xs, seed
        self._found: dict[tuple[str, str, str], Sequence[float]] = {}

    def allow(self, outcome: Outcome, what: str, k: int, size: float) -> Outcome:
        """The outcome of result `k`, with what the accuracy explains allowed."""
        for side in SIDES:
            moves = self._once("moves", side, what, self._moves)[k]
            more = outcome.tolerance + MOST * moves / size
            if outcome.error <= more:
                return dataclasses.replace(outcome, tolerance=more, where="")
        if outcome.error > outcome.tolerance + MOST * LARGEST:
            return outcome
        for side in SIDES:
            jump = self._once("jumps", side, what, self._jumps)[k]
            more = outcome.tolerance + MOST * jump
            if outcome.error <= more:
                note = f"the {side} is accurate to about {jump:.0e} here"
                return Outcome(outcome.error, more, note=note)
        return outcome

    def _once(
        self, kind: str, side: str, what: str, run: Callable[[Fun], Sequence[float]]
    ) -> Sequence[float]:
        key = kind, side, what
        if key not in self._found:
            self._found[key] = run(self._function(side, what))
        return self._found[key]

    def _moves(self, f: Fun) -> Sequence[float]:
        """How much each result moves if the arguments do by their last digits.

        What cancels has no digits that could be compared.
        """
        generator, eps = np.random.default_rng(self._seed), eps_of(self._xs)
        first = [wide(np.asarray(x)) for x in f(*self._xs)]
        found = np.zeros(len(first))
        for k in range(STEPS):
            # The first keeps what is symmetric; the others are no common factor.
            steps = [
                1 + eps * (1 if k == 0 else generator.choice([-1, 1], x.shape))
                for x in self._xs
            ]
            pairs = zip(self._xs, steps, strict=True)
            with contextlib.suppress(Exception):  # no longer what f takes
                near = f(*[np.asarray(x * step).astype(x.dtype) for x, step in pairs])
                gaps = zip(near, first, strict=True)
                moves = [largest(wide(np.asarray(y)) - x) for y, x in gaps]
                found = np.maximum(found, moves)
        return [float(x) for x in found]

    def _jumps(self, f: Fun) -> Sequence[float]:
        """How much each result jumps near the arguments, relative to its size.

        An iteration is no more accurate than its tolerance, and what computes in single
        precision no more than that, whatever its arguments are.
        """
        generator = np.random.default_rng(self._seed)
        along = [normal(x, generator, size_of(x)) for x in self._xs]
        try:
            return jumps(f, self._xs, along)
        except OriginalError:  # beside the arguments
            return [0.0] * len(f(*self._xs))


def normal(
    x: np.ndarray, generator: np.random.Generator, size: float = 1.0
) -> np.ndarray:
    """Normal numbers in the space of `x`."""
    numbers: Any = size * generator.standard_normal(x.shape)
    if np.iscomplexobj(x):
        numbers = numbers + size * 1j * generator.standard_normal(x.shape)
    return np.asarray(numbers).astype(x.dtype)


def size_of(x: np.ndarray) -> float:
    """How large the elements are, for a direction about as long."""
    mean = float(np.sqrt(np.mean(np.abs(wide(x)) ** 2))) if x.size else 1.0
    return float(np.clip(mean, 1e-3, 1e3))
