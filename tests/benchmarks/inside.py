"""Functions whose rules use another Function, one inside the other.

Each level multiplies the one below by y. With `sin(x)` at the bottom, level n is
`sin(x) * y**n`. Its rules either call the level below or differentiate it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.benchmarks import peers

Fun = Callable[..., Any]


class Calls:
    """Rules that call the level below, which is the derivative by y divided by n."""

    @staticmethod
    def pull(below: Fun, n: int, x: Any, y: Any, g: Any) -> tuple[Any, Any]:
        return g * jnp.cos(x) * y**n, g * n * below(x, y)

    @staticmethod
    def push(below: Fun, n: int, x: Any, y: Any, x_t: Any, y_t: Any) -> Any:
        return x_t * jnp.cos(x) * y**n + y_t * n * below(x, y)


class Differentiates:
    """Rules that take the derivative of the level below."""

    @staticmethod
    def pull(below: Fun, n: int, x: Any, y: Any, g: Any) -> tuple[Any, Any]:
        z, pull_below = jax.vjp(below, x, y)
        x_g, y_g = pull_below(g * y)
        return x_g, y_g + g * z

    @staticmethod
    def push(below: Fun, n: int, x: Any, y: Any, x_t: Any, y_t: Any) -> Any:
        z, z_t = jax.jvp(below, (x, y), (x_t, y_t))
        return z_t * y + z * y_t


def levels(name: str, depth: int, rules: Any) -> Fun:
    """Make new functions of one kind, one inside the other; return the outermost.

    Args:
        name: of the kind, in `peers.ALL`.
        depth: how many there are.
        rules: `Calls` or `Differentiates`.
    """

    def call(x, y):
        return jnp.sin(x)

    for n in range(1, depth + 1):
        call = peers.ALL[name](_level(call, n, rules))
    return call


def _level(below: Fun, n: int, rules: Any) -> peers.Formulas:
    pull, push = (
        functools.partial(rule, below, n) for rule in (rules.pull, rules.push)
    )
    return peers.Formulas(lambda x, y: below(x, y) * y, pull, push)
