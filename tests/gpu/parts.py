"""The parts of `python -m tests.gpu`, and what a check is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np


class SkipError(Exception):
    """Raised by a check that can't run here; the text says why."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """What a check found.

    Attributes:
        text: One line for the table.
        numbers: The same for programs.
    """

    text: str
    numbers: dict[str, float] = dataclasses.field(default_factory=dict)


Check = Callable[[], Figure]


@dataclasses.dataclass(frozen=True)
class Part:
    """Some checks that run in one process.

    Attributes:
        module: In this folder. Its `checks(small)` gives a dict of checks by name, with
            small sizes for a CPU.
        title: What the part is about.
        seconds: The most it may take on a GPU.
        needs: Packages without which no check runs.
        alone: Whether nothing else may run meanwhile, because the part measures times.
    """

    module: str
    title: str
    seconds: float
    needs: tuple[str, ...] = ()
    alone: bool = False


TRITON = ("torch", "triton")
PARTS = {  # the slowest ones first
    "triton": Part("functions", "Triton Functions by from_torch", 150, TRITON),
    "model": Part("model", "a whole model with Triton kernels", 150, TRITON),
    "laws": Part("laws", "which rule runs under which transformation", 90),
    "demo": Part("demo", "jaxfn.check on the examples of PyTorch's pages", 80),
    "alias": Part(
        "aliases", "views and shared buffers in Triton Functions", 90, TRITON
    ),
    "pallas": Part("pallas", "a Pallas kernel with all rules", 60),
    "call": Part("call", "jaxfn.triton_call in a jaxfn.Function", 60, TRITON),
    "tuned": Part("tuned", "an autotuned kernel with a heuristic", 60, TRITON),
    "ports": Part(
        "ports", "torch Functions beside ports by hand", 70, ("torch",), alone=True
    ),
    "norm": Part("norm", "RMSNorm: times", 80, ("torch",), alone=True),
}

# ---- comparing


def error(got: Any, expected: Any) -> float:
    """The greatest difference, over the greatest number that was expected."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if got.shape != expected.shape:
        raise AssertionError(f"the shape is {got.shape}, expected {expected.shape}")
    if not got.size:
        return 0.0
    worst = float(np.abs(got - expected).max())
    if math.isnan(worst):
        raise AssertionError("NaN in the result, or in what was expected")
    return worst / max(float(np.abs(expected).max()), 1e-30)


def expect(what: str, found: float, most: float) -> float:
    """Return an error that is small enough."""
    if not found <= most:
        raise AssertionError(f"{what}: the error is {found:.1e}, at most {most:.0e}")
    return found


def figure(**errors: float) -> Figure:
    """The errors in one line."""
    texts = [f"{key.replace('_', ' ')} {value:.1e}" for key, value in errors.items()]
    return Figure("error: " + ", ".join(texts), errors)
