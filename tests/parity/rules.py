"""Rules, and what is done with a Function, that many rows share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.build import keep


def saves(value: Callable[..., Any]) -> Callable[..., Any]:
    """A forward in the combined style that saves its arguments for both rules."""

    def forward(ctx, *xs):
        keep(ctx, *xs)
        return value(*xs)

    return forward


def times(slope: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for either mode: its argument, times the slope of what was saved."""

    def rule(ctx, g):
        return g * slope(*ctx.saved_tensors)

    return rule


def both_ways(fw: Any, f: Any, x: Any = None) -> Any:
    """The value and the gradient, at (1, 2) or another array."""
    x = fw.array([1.0, 2.0]) if x is None else x
    return [fw.call(f, x), fw.grad(f, x)]


def two_orders(fw: Any, f: Any, x: Any) -> Any:
    """The first and the second derivative."""
    return [fw.grad(f, x), fw.grad2(f, x)]


def forward_mode(fw: Any, f: Any, x: Any = None) -> Any:
    """The tangents of the outputs for ones, at (1, 2) or another array."""
    x = fw.array([1.0, 2.0]) if x is None else x
    return fw.jvp(f, [x], [fw.np.ones_like(x)])
