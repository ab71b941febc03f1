"""Functions of many arguments, and of pytrees with many leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import jaxfn
from tests.benchmarks.rows import Pair, Row, compare
from tests.benchmarks.timing import Call, Effort

Fun = Callable[..., Any]


def doubled(n: int) -> dict[str, Callable[[], Fun]]:
    """Twice each of n arguments, in every way; each output ignores all but one."""

    def bare():
        return lambda *xs: tuple(2 * x for x in xs)

    def function():
        class Double(jaxfn.Function):
            @staticmethod
            def forward(ctx, *xs):
                return tuple(2 * x for x in xs)

            @staticmethod
            def backward(ctx, *gs):
                return tuple(2 * g for g in gs)

        return Double.apply

    def custom_vjp():
        f = jax.custom_vjp(bare())
        f.defvjp(
            lambda *xs: (f(*[x.value for x in xs]), None),
            lambda _, gs: tuple(2 * g for g in gs),
            symbolic_zeros=True,
        )
        return f

    return {"bare": bare, "Function": function, "custom_vjp": custom_vjp}


def doubled_tree() -> dict[str, Callable[[], Fun]]:
    """Twice each leaf of one pytree, in every way."""

    def twice(tree):
        return jax.tree.map(lambda x: 2 * x, tree)

    def function():
        class Double(jaxfn.Function):
            @staticmethod
            def forward(ctx, tree):
                return twice(tree)

            @staticmethod
            def backward(ctx, g):
                return twice(g)

        return Double.apply

    def custom_vjp():
        f = jax.custom_vjp(twice)
        f.defvjp(
            lambda tree: (f(jax.tree.map(lambda x: x.value, tree)), None),
            lambda _, g: (twice(g),),
            symbolic_zeros=True,
        )
        return f

    return {
        "bare": lambda: lambda tree: twice(tree),
        "Function": function,
        "custom_vjp": custom_vjp,
    }


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


def of_arguments(n: int, make: Callable[[], Fun]) -> Call:
    xs = arguments(n)

    def prepare() -> Fun:
        f = make()
        return jax.grad(lambda xs: total(f(*xs)))

    return Call(lambda f: jax.jit(f).lower(xs), prepare, finish=lambda _: None)


def of_leaves(n: int, make: Callable[[], Fun]) -> Call:
    tree = leaves(n)

    def prepare() -> Fun:
        f = make()
        return jax.grad(lambda tree: total(f(tree)))

    return Call(lambda f: jax.jit(f).lower(tree), prepare, finish=lambda _: None)


def rows(effort: Effort) -> Iterator[Row]:
    """Time to trace and lower the gradient, by arguments and by leaves."""
    pairs = [Pair("Function", "bare"), Pair("Function", "custom_vjp")]
    ignoring = [Pair("Function", "bare"), Pair("Function", "custom_vjp", 1.1)]
    for n in (1, 4, 16, 64, 256):
        group = {name: of_arguments(n, make) for name, make in doubled(n).items()}
        title = f"trace and lower grad of {n} arguments, each with its own output"
        spent = effort.slower(15)
        used = pairs if n == 1 else ignoring
        yield from compare("trace", title, group, used, spent, size=n)
    for n in (10, 1000):
        group = {name: of_leaves(n, make) for name, make in doubled_tree().items()}
        title = f"trace and lower grad of a pytree with {n:,} leaves"
        yield from compare("trace", title, group, pairs, effort.slower(9), size=n)
    yield from growth(effort)


def growth(effort: Effort) -> Iterator[Row]:
    for name in ("Function", "custom_vjp", "bare"):
        target = 1.3 if name == "Function" else None
        group = {f"{name}, {n}": of_arguments(n, doubled(n)[name]) for n in (16, 256)}
        pair = Pair(f"{name}, 256", f"{name}, 16", target, 16 / 256)
        title = "trace and lower grad: cost per argument, 256 to 16"
        yield from compare("trace", title, group, [pair], effort.slower(9))
        group = {f"{name}, {n}": of_leaves(n, doubled_tree()[name]) for n in (16, 1000)}
        pair = Pair(f"{name}, 1000", f"{name}, 16", target, 16 / 1000)
        title = "trace and lower grad: cost per leaf, 1,000 to 16"
        yield from compare("trace", title, group, [pair], effort.slower(9))
