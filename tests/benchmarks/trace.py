"""Time to trace and lower, with new functions for every trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from tests.benchmarks import inside, peers, widths
from tests.benchmarks.eager import arrays
from tests.benchmarks.rows import Pair, Row, compare, names
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


def hessian(f: Fun) -> Fun:
    return jax.hessian(lambda x, y: f(x, y).sum(), (0, 1))


def fresh(name: str, transform: Fun, run: Fun = lower) -> Call:
    """Trace and lower what `transform` makes of a new one of the peers."""
    make = peers.ALL[name]
    return Call(run, lambda: transform(make()), finish=lambda _: None)


def fresh_levels(name: str, depth: int, rules: Any, transform: Fun) -> Call:
    """The same of new functions, one inside the other."""

    def prepare() -> Fun:
        return transform(inside.levels(name, depth, rules))

    return Call(lower, prepare, finish=lambda _: None)


def again(name: str, transform: Fun) -> Call:
    """The same of a function that was traced before, in a new program."""
    f = peers.ALL[name]()
    return Call(lower, lambda: transform(f), finish=lambda _: None)


# each with its transformation and what is compared under it
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
            Pair("Function", "custom_vjp", 1.35),
            Pair("Function, separate", "custom_vjp", 1.35),
            Pair("Function, jvp", "custom_jvp"),
            Pair("Function, both", "custom_vjp"),
        ],
    ),
    "hessian": (hessian, [Pair("Function, both", "custom_jvp")]),
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
        group = {n: fresh(n, transform) for n in peers.available(names(pairs))}
        title = f"trace and lower {what}"
        yield from compare("trace", title, group, pairs, effort, gaps=peers.GAPS)
    pairs = [Pair("Function", "custom_vjp"), Pair("Function, separate", "custom_vjp")]
    group = {n: again(n, gradient) for n in names(pairs)}
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
            target = 1.15 if n == 1000 else None
            pairs = [
                Pair("Function", "bare"),
                Pair("Function", "custom_vjp", target),
                Pair("Function, separate", "custom_vjp", target),
            ]
            group = {name: fresh(name, chain(n, transform)) for name in names(pairs)}
            spent = effort.slower({10: 15, 100: 9}.get(n, 7))
            title = f"trace and lower {what} of a chain of {n:,}"
            yield from compare("trace", title, group, pairs, spent)
        yield from growth(what, transform, effort)


def growth(what: str, transform: Fun, effort: Effort) -> Iterator[Row]:
    """The cost of each of many applies against that of each of few."""
    few, many = 10, 100 if effort.quick else 1000
    for name in ("Function", "Function, separate", "custom_vjp"):
        group = {f"{name}, {n}": fresh(name, chain(n, transform)) for n in (few, many)}
        target = None if name == "custom_vjp" else 1.2
        pair = Pair(f"{name}, {many}", f"{name}, {few}", target, few / many)
        title = f"trace and lower {what}: cost per apply, {many:,} to {few}"
        yield from compare("trace", title, group, [pair], effort.slower(7))


# ---- Functions inside others


CALLS, DIFFERENTIATES = inside.Calls, inside.Differentiates
VJP, JVP = ("Function", "custom_vjp"), ("Function, both", "custom_jvp")

# what: the number of levels, their rules, the transformation, and what is compared
INSIDE: dict[str, tuple[int, Any, Fun, Pair]] = {
    "grad of a Function that calls another": (2, CALLS, gradient, Pair(*VJP, 1.3)),
    "grad of a Function that differentiates another": (
        *(2, DIFFERENTIATES, gradient),
        Pair(*VJP, 1.3),
    ),
    "grad of grad of a Function that calls another": (2, CALLS, second, Pair(*VJP)),
    "jvp of three Functions, each calling the next": (
        3,
        CALLS,
        tangent,
        Pair(*JVP, 1.5),
    ),
    "jvp of three Functions, each differentiating the next": (
        *(3, DIFFERENTIATES, tangent),
        Pair(*JVP, 1.5),
    ),
}


def inside_others(effort: Effort) -> Iterator[Row]:
    for what, (depth, rules, transform, pair) in INSIDE.items():
        group = {
            name: fresh_levels(name, depth, rules, transform) for name in names([pair])
        }
        yield from compare("trace", f"trace and lower {what}", group, [pair], effort)


# ---- depth


def _grad(f: Fun) -> Fun:
    return lambda x, y: jax.grad(f)(x, y).sum()


def _push(f: Fun) -> Fun:
    return lambda x, y: jax.jvp(lambda x: f(x, y), (x,), (x,))[1]


def _grad_of_sum(f: Fun) -> Fun:
    return jax.grad(lambda x, y: f(x, y).sum())


# name: the transformations from the inside out, and what is compared under them
NESTED: dict[str, tuple[list[Fun], list[Pair]]] = {
    "grad": (
        [_grad] * 4,
        [Pair("Function", "custom_vjp"), Pair("Function, separate", "custom_vjp")],
    ),
    "jvp": (
        [_push] * 4,
        [Pair("Function, jvp", "custom_jvp"), Pair("Function, both", "custom_jvp")],
    ),
    "vmap, checkpoint, grad, jit": (
        [jax.vmap, jax.checkpoint, _grad_of_sum, jax.jit],
        [Pair("Function", "custom_vjp")],
    ),
}


def nested(steps: list[Fun], *, of_sum: bool) -> Fun:
    """These transformations around one apply."""

    def of(f: Fun) -> Fun:
        g = (lambda x, y: f(x, y).sum()) if of_sum else (lambda x, y: f(x, y))
        for step in steps:
            g = step(g)
        return g

    return of


def depths(effort: Effort) -> Iterator[Row]:
    for mode, (steps, pairs) in NESTED.items():
        for depth in (1, 2, 3, 4):
            transform = nested(steps[:depth], of_sum="," not in mode)
            group = {name: fresh(name, transform) for name in names(pairs)}
            title = f"trace and lower {depth} nested: {mode}"
            spent = effort.slower(9)
            yield from compare("trace", title, group, pairs, spent)


def rows(effort: Effort) -> Iterator[Row]:
    """All measurements of tracing and lowering."""
    yield from one_apply(effort)
    yield from chains(effort)
    yield from widths.rows(effort)
    yield from inside_others(effort)
    yield from depths(effort)
