"""Functions of many arguments, and of pytrees with many leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from tests.benchmarks.rows import Pair, Row, compare
from tests.benchmarks.timing import Call, Effort
from tests.build import function

Fun = Callable[..., Any]


def twice(trees: Any) -> Any:
    return jax.tree.map(lambda x: 2 * x, trees)


def bare() -> Fun:
    return lambda *trees: twice(trees)


def by_function() -> Fun:
    return function(
        forward=lambda ctx, *trees: twice(trees), backward=lambda ctx, *gs: twice(gs)
    ).apply


def custom_vjp() -> Fun:
    f = jax.custom_vjp(bare())
    f.defvjp(
        lambda *trees: (f(*jax.tree.map(lambda x: x.value, trees)), None),
        lambda _, gs: twice(gs),
        symbolic_zeros=True,
    )
    return f


DOUBLED = {"bare": bare, "Function": by_function, "custom_vjp": custom_vjp}
"""Twice each leaf of all arguments, in every way; each output ignores all but one."""


def total(outs: Any) -> Any:
    """The sum of one element of each: cheap, whatever their number."""
    leaves = jax.tree.leaves(outs)
    result = leaves[0]
    for leaf in leaves[1:]:
        result = result + leaf
    return result


def arguments(n: int) -> list[Any]:
    return [jnp.float32(i) for i in range(n)]


def leaves(n: int) -> dict[str, Any]:
    """A pytree with n leaves, in lists and dicts."""
    xs = arguments(n)
    return {"a": xs[: n // 2], "b": [{"c": x} for x in xs[n // 2 :]]}


def of_arguments(n: int, name: str) -> Call:
    return _gradient(arguments(n), lambda f, xs: f(*xs), name)


def of_leaves(n: int, name: str) -> Call:
    return _gradient(leaves(n), lambda f, tree: f(tree), name)


def _gradient(given: Any, call: Fun, name: str) -> Call:
    """Trace and lower the gradient of a new one of `DOUBLED`, called on this."""

    def prepare() -> Fun:
        f = DOUBLED[name]()
        return jax.grad(lambda xs: total(call(f, xs)))

    return Call(lambda f: jax.jit(f).lower(given), prepare, finish=lambda _: None)


def rows(effort: Effort) -> Iterator[Row]:
    """Time to trace and lower the gradient, by arguments and by leaves."""
    pairs = [Pair("Function", "bare"), Pair("Function", "custom_vjp")]
    ignoring = [Pair("Function", "bare"), Pair("Function", "custom_vjp", 1.1)]
    for n in (1, 4, 16, 64, 256):
        group = {name: of_arguments(n, name) for name in DOUBLED}
        title = f"trace and lower grad of {n} arguments, each with its own output"
        spent = effort.slower(15)
        used = pairs if n == 1 else ignoring
        yield from compare("trace", title, group, used, spent)
    for n in (10, 1000):
        group = {name: of_leaves(n, name) for name in DOUBLED}
        title = f"trace and lower grad of a pytree with {n:,} leaves"
        yield from compare("trace", title, group, pairs, effort.slower(9))
    yield from growth(effort)


def growth(effort: Effort) -> Iterator[Row]:
    for name in DOUBLED:
        target = 1.3 if name == "Function" else None
        for what, make, many, text in (
            ("argument", of_arguments, 256, "256"),
            ("leaf", of_leaves, 1000, "1,000"),
        ):
            group = {f"{name}, {n}": make(n, name) for n in (16, many)}
            pair = Pair(f"{name}, {many}", f"{name}, 16", target, 16 / many)
            title = f"trace and lower grad: cost per {what}, {text} to 16"
            yield from compare("trace", title, group, [pair], effort.slower(9))
