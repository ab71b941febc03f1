"""Time to trace and lower, with new functions for every trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import jaxfn
from tests.benchmarks import peers
from tests.benchmarks.eager import arrays
from tests.benchmarks.rows import Pair, Row, compare
from tests.benchmarks.timing import Call, Effort

Fun = Callable[..., Any]
X, Y = arrays(16)


def lower(f: Fun) -> Any:
    return jax.jit(f).lower(X, Y)


def apply(f: Fun) -> Fun:
    return lambda x, y: f(x, y)


def gradient(f: Fun) -> Fun:
    return jax.grad(lambda x, y: f(x, y).sum(), (0, 1))


def tangent(f: Fun) -> Fun:
    return lambda x, y: jax.jvp(f, (x, y), (x, y))


def batched_gradient(f: Fun) -> Fun:
    return jax.vmap(jax.grad(lambda x, y: f(x, y), (0, 1)))


def second(f: Fun) -> Fun:
    return jax.grad(lambda x, y: gradient(f)(x, y)[0].sum(), (0, 1))


def fresh(name: str, transform: Fun, run: Fun = lower) -> Call:
    """Trace and lower what `transform` makes of a new one of the peers."""
    make = peers.ALL[name]
    return Call(run, lambda: transform(make()), finish=lambda _: None)


def again(name: str, transform: Fun) -> Call:
    """The same of a function that was traced before, in a new program."""
    f = peers.ALL[name]()
    return Call(lower, lambda: transform(f), finish=lambda _: None)


# measure: (transformation, pairs)
MEASURES: dict[str, tuple[Fun, list[Pair]]] = {
    "apply": (
        apply,
        [
            Pair("Function", "bare"),
            Pair("Function", "custom_vjp"),
            Pair("Function, separate", "custom_vjp"),
            Pair("Function, jvp", "custom_jvp"),
            Pair("Function, both", "custom_jvp"),
            Pair("Function, vmap", "custom_vjp over custom_vmap"),
            Pair("Function", "equinox.filter_custom_vjp"),
            Pair("Function", "hijax"),
        ],
    ),
    "grad": (
        gradient,
        [
            Pair("Function", "bare"),
            Pair("Function", "custom_vjp", 1.25),
            Pair("Function", "custom_vjp, no zeros"),
            Pair("Function, separate", "custom_vjp", 1.25),
            Pair("Function, jvp", "custom_jvp"),
            Pair("Function, both", "custom_vjp"),
            Pair("Function, vmap", "custom_vjp over custom_vmap"),
            Pair("custom_function", "custom_vjp, no zeros"),
            Pair("Function", "equinox.filter_custom_vjp"),
            Pair("Function", "hijax"),
        ],
    ),
    "grad of grad": (
        second,
        [
            Pair("Function", "custom_vjp"),
            Pair("Function, separate", "custom_vjp"),
            Pair("Function, jvp", "custom_jvp"),
            Pair("Function, both", "custom_vjp"),
        ],
    ),
    "jvp": (
        tangent,
        [
            Pair("Function, jvp", "custom_jvp"),
            Pair("Function, both", "custom_jvp"),
            Pair("Function, jvp, vmap", "custom_jvp over custom_vmap"),
            Pair("Function, jvp", "hijax"),
        ],
    ),
    "vmap of grad": (
        batched_gradient,
        [
            Pair("Function", "custom_vjp"),
            Pair("Function, separate", "custom_vjp"),
            Pair("Function, vmap", "custom_vjp over custom_vmap"),
            Pair("Function", "equinox.filter_custom_vjp"),
            Pair("Function", "hijax"),
        ],
    ),
}


def one_apply(effort: Effort) -> Iterator[Row]:
    for what, (transform, pairs) in MEASURES.items():
        names = dict.fromkeys(n for p in pairs for n in (p.ours, p.against))
        group = {n: fresh(n, transform) for n in peers.available(list(names))}
        title = f"trace and lower {what}"
        yield from compare("trace", title, group, pairs, effort, gaps=peers.GAPS)
    pairs = [Pair("Function", "custom_vjp"), Pair("Function, separate", "custom_vjp")]
    names = ["Function", "Function, separate", "custom_vjp"]
    group = {n: again(n, gradient) for n in names}
    title = "trace and lower grad, class traced before"
    yield from compare("trace", title, group, pairs, effort)


# ---- chains


def chain(n: int, transform: Fun) -> Callable[[Fun], Fun]:
    """`transform` of n applies, one after the other."""

    def of(f: Fun) -> Fun:
        def chained(x, y):
            for _ in range(n):
                x = f(x, y)
            return x

        return transform(chained)

    return of


def chains(effort: Effort) -> Iterator[Row]:
    for what, transform in (("apply", apply), ("grad", gradient)):
        for n in (10, 100) if effort.quick else (10, 100, 1000):
            names = ["bare", "Function", "Function, separate", "custom_vjp"]
            group = {name: fresh(name, chain(n, transform)) for name in names}
            target = 1.15 if n == 1000 else None
            pairs = [
                Pair("Function", "bare"),
                Pair("Function", "custom_vjp", target),
                Pair("Function, separate", "custom_vjp", target),
            ]
            spent = effort.slower({10: 15, 100: 9}.get(n, 7))
            title = f"trace and lower {what} of a chain of {n:,}"
            yield from compare("trace", title, group, pairs, spent, size=n)
        yield from growth(what, transform, effort)


def growth(what: str, transform: Fun, effort: Effort) -> Iterator[Row]:
    """The cost of each of many applies against that of each of few."""
    few, many = 10, 100 if effort.quick else 1000
    for name in ("Function", "Function, separate", "custom_vjp"):
        group = {
            f"{name}, {n}": fresh(name, chain(n, transform)) for n in (few, many)
        }
        target = None if name == "custom_vjp" else 1.2
        pair = Pair(f"{name}, {many}", f"{name}, {few}", target, few / many)
        title = f"trace and lower {what}: cost per apply, {many:,} to {few}"
        yield from compare("trace", title, group, [pair], effort.slower(7))


# ---- many arguments and leaves


def doubled(n: int) -> dict[str, Callable[[], Fun]]:
    """Twice each of n arguments, in every way."""

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
    twice = lambda tree: jax.tree.map(lambda x: 2 * x, tree)  # noqa: E731

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


def of_arguments(n: int, make: Callable[[], Fun]) -> Call:
    xs = [jnp.float32(i) for i in range(n)]

    def prepare() -> Fun:
        f = make()
        return jax.grad(lambda xs: total(f(*xs)))

    return Call(lambda f: jax.jit(f).lower(xs), prepare, finish=lambda _: None)


def of_leaves(n: int, make: Callable[[], Fun]) -> Call:
    tree = {"a": [jnp.float32(i) for i in range(n // 2)]}
    tree["b"] = [{"c": jnp.float32(i)} for i in range(n - n // 2)]

    def prepare() -> Fun:
        f = make()
        return jax.grad(lambda tree: total(f(tree)))

    return Call(lambda f: jax.jit(f).lower(tree), prepare, finish=lambda _: None)


def widths(effort: Effort) -> Iterator[Row]:
    pairs = [Pair("Function", "bare"), Pair("Function", "custom_vjp")]
    for n in (1, 4, 16, 64, 256):
        group = {name: of_arguments(n, make) for name, make in doubled(n).items()}
        title = f"trace and lower grad of {n} arguments"
        spent = effort.slower(15)
        yield from compare("trace", title, group, pairs, spent, size=n)
    for n in (10, 1000):
        group = {name: of_leaves(n, make) for name, make in doubled_tree().items()}
        title = f"trace and lower grad of a pytree with {n:,} leaves"
        yield from compare(
            "trace", title, group, pairs, effort.slower(9), size=n
        )
    yield from growth_of_widths(effort)


def growth_of_widths(effort: Effort) -> Iterator[Row]:
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


# ---- depth


def nested(depth: int, mode: str) -> Callable[[Fun], Fun]:
    """So many transformations around one apply."""

    def of(f: Fun) -> Fun:
        g = lambda x, y: f(x, y).sum()  # noqa: E731
        if mode == "grad":
            for _ in range(depth):
                g = lambda x, y, g=g: jax.grad(g)(x, y).sum()
        elif mode == "jvp":
            for _ in range(depth):
                g = lambda x, y, g=g: jax.jvp(lambda x: g(x, y), (x,), (x,))[1]
        else:
            steps = (jax.vmap, jax.checkpoint, _gradient_of_sum, jax.jit)
            g = lambda x, y: f(x, y)
            for step in steps[:depth]:
                g = step(g)
        return g

    return of


def _gradient_of_sum(f: Fun) -> Fun:
    return jax.grad(lambda x, y: f(x, y).sum())


def depths(effort: Effort) -> Iterator[Row]:
    families = {
        "grad": [("Function", "custom_vjp"), ("Function, separate", "custom_vjp")],
        "jvp": [("Function, jvp", "custom_jvp"), ("Function, both", "custom_jvp")],
        "vmap, checkpoint, grad, jit": [("Function", "custom_vjp")],
    }
    for mode, names in families.items():
        pairs = [Pair(*pair) for pair in names]
        for depth in (1, 2, 3, 4):
            used = dict.fromkeys(n for pair in names for n in pair)
            group = {name: fresh(name, nested(depth, mode)) for name in used}
            title = f"trace and lower {depth} nested: {mode}"
            yield from compare(
                "trace", title, group, pairs, effort.slower(9), size=depth
            )


def rows(effort: Effort) -> Iterator[Row]:
    """All measurements of tracing and lowering."""
    yield from one_apply(effort)
    yield from chains(effort)
    yield from widths(effort)
    yield from depths(effort)
