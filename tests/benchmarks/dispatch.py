"""Calling a compiled step that holds a Function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from tests.benchmarks import peers
from tests.benchmarks.eager import arrays
from tests.benchmarks.rows import Pair, Row, compare
from tests.benchmarks.timing import Call, Effort

HAND = {
    "Function": "custom_vjp",
    "Function, separate": "custom_vjp",
    "Function, jvp": "custom_jvp",
    "Function, both": "custom_vjp",
    "Function, vmap": "custom_vjp over custom_vmap",
}


def step(f: Callable[..., Any]) -> Any:
    """A step of gradient descent, compiled."""

    def descend(state):
        x, y = state
        dx, dy = jax.grad(lambda x, y: f(x, y).sum(), (0, 1))(x, y)
        return x - 0.1 * dx, y - 0.1 * dy

    return jax.jit(descend)


def calls(names: list[str], n: int) -> dict[str, Call]:
    steps = {name: step(peers.ALL[name]()) for name in names}
    state = arrays(n)
    return {name: Call(lambda _, f=f: f(state)) for name, f in steps.items()}


def rows(effort: Effort) -> Iterator[Row]:
    """Time from the call of a compiled step to its return."""
    names = list(dict.fromkeys(["bare", *HAND, *HAND.values()]))
    for n in (16, 10_000):
        # with bigger arrays it is the equal programs that take the time
        target = 1.05 if n == 16 else None
        pairs = [Pair(mine, hand, target) for mine, hand in HAND.items()]
        pairs.append(Pair("Function", "bare"))
        title = f"call a compiled step, {n:,} elements"
        spent = effort.for_size(n)
        yield from compare("dispatch", title, calls(names, n), pairs, spent)
