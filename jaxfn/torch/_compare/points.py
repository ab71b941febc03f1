"""Other points near the arguments, where both sides are compared too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxfn._check import Skip
from jaxfn._core import values
from jaxfn.torch._compare.original import OriginalError
from jaxfn.torch._compare.pair import Pair

Point = list[np.ndarray]
Near = Callable[[np.ndarray, int, np.random.Generator], Any]


def points(pair: Pair, n: int, run: Callable[[Point], Any]) -> list[Point]:
    """Return `n` other points, at which `run` does not raise in torch.

    First, each element shrinks by its own factor, which keeps signs. If that raises,
    each array shrinks as a whole, which keeps it definite, sorted or symmetric.
    """
    for near in (_shrunk, _scaled):
        with contextlib.suppress(OriginalError):
            generator = pair.rng()
            found = [_moved(pair, near, k, generator) for k in range(1, n + 1)]
            for point in found:
                run(point)
            return found
    raise Skip("PyTorch itself raises at other points near these arguments")


def _moved(pair: Pair, near: Near, k: int, generator: np.random.Generator) -> Point:
    found = list(pair.arrays)
    for i, x in enumerate(found):
        if values.is_inexact(x):
            found[i] = np.asarray(near(x, k, generator)).astype(x.dtype)
    return found


def _shrunk(x: np.ndarray, k: int, generator: np.random.Generator) -> Any:
    return x * (1 - 0.05 * k * generator.random(x.shape))


def _scaled(x: np.ndarray, k: int, _: np.random.Generator) -> Any:
    return x * (1 - 0.05 * k)
