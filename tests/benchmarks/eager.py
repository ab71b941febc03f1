"""Calls without jit: values, gradients, tangents, batches; forms of arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from tests.benchmarks import peers
from tests.benchmarks.rows import Pair, Row, compare, names
from tests.benchmarks.timing import Call, Effort
from tests.build import function

Fun = Callable[..., Any]
SIZES = (16, 10_000, 10_000_000)


def arrays(n: int) -> tuple[Any, Any]:
    return jnp.linspace(0, 1, n), jnp.linspace(1, 2, n)


def plain(f: Fun, *args: Any) -> Any:
    return f(*args)


def gradient(f: Fun, *args: Any) -> Any:
    return jax.value_and_grad(lambda *xs: f(*xs).sum(), tuple(range(len(args))))(*args)


def tangent(f: Fun, *args: Any) -> Any:
    return jax.jvp(f, args, args)


def batch(f: Fun, *args: Any) -> Any:
    return jax.vmap(f)(*args)


def calls(some: Iterable[str], transform: Fun, *args: Any) -> dict[str, Call]:
    """What to time, of those that are available; the functions are made once."""
    made = {name: peers.ALL[name]() for name in peers.available(some)}
    return {name: Call(lambda _, f=f: transform(f, *args)) for name, f in made.items()}


# each with its transformation and what is compared under it
MEASURES: dict[str, tuple[Fun, list[Pair]]] = {
    "apply": (
        plain,
        [
            Pair("Function", "bare", 1.4),
            Pair("Function", "custom_vjp", 0.3),
            Pair("Function", "custom_vjp, no zeros"),
            Pair("Function", "equinox.filter_custom_vjp"),
            Pair("Function", "hijax"),
            Pair("Function, separate", "bare", 1.4),
            Pair("Function, jvp", "bare"),
            Pair("Function, jvp", "custom_jvp"),
            Pair("Function, both", "bare"),
            Pair("Function, vmap", "custom_vjp over custom_vmap"),
            Pair("custom_function", "custom_vjp"),
        ],
    ),
    "value_and_grad": (
        gradient,
        [
            Pair("Function", "bare"),
            Pair("Function", "custom_vjp", 1.1),
            Pair("Function", "custom_vjp, no zeros"),
            Pair("Function", "equinox.filter_custom_vjp"),
            Pair("Function", "hijax"),
            Pair("Function, separate", "custom_vjp", 1.1),
            Pair("Function, jvp", "custom_jvp"),
            Pair("Function, both", "custom_vjp"),
            Pair("Function, vmap", "custom_vjp over custom_vmap"),
            Pair("custom_function", "custom_vjp, no zeros"),
        ],
    ),
    "jvp": (
        tangent,
        [
            Pair("Function, jvp", "bare"),
            Pair("Function, jvp", "custom_jvp"),
            Pair("Function, jvp", "hijax"),
            Pair("Function, both", "custom_jvp"),
            Pair("Function, jvp, vmap", "custom_jvp over custom_vmap"),
        ],
    ),
    "vmap": (
        batch,
        [
            Pair("Function", "bare"),
            Pair("Function", "custom_vjp"),
            Pair("Function", "equinox.filter_custom_vjp"),
            Pair("Function", "hijax"),
            Pair("Function, separate", "custom_vjp"),
            Pair("Function, vmap", "custom_vjp over custom_vmap"),
        ],
    ),
}


# ---- forms of arguments


def _save_power(ctx, x, y, n=2):
    ctx.save_for_backward(x, y)
    ctx.n = n
    return x**n * y


def _pull_power(n: int, x: Any, y: Any, g: Any) -> tuple[Any, Any]:
    return g * n * x ** (n - 1) * y, g * x**n


POWERED = function(
    forward=_save_power,
    backward=lambda ctx, g: (*_pull_power(ctx.n, *ctx.saved_tensors, g), None),
)
"""`x ** n * y`, with static n."""


def _save_tree(ctx, tree):
    ctx.save_for_backward(tree["x"], tree["y"])
    return tree["x"] ** 2 * tree["y"]


def _pull_tree(x: Any, y: Any, g: Any) -> dict[str, Any]:
    return {"x": 2 * g * x * y, "y": g * x**2}


OF_TREE = function(
    forward=_save_tree, backward=lambda ctx, g: _pull_tree(*ctx.saved_tensors, g)
)
"""`x ** 2 * y`, of one dict."""


def powered_by_hand() -> Fun:
    f = jax.custom_vjp(lambda x, y, n=2: x**n * y, nondiff_argnums=(2,))

    def fwd(x, y, n):
        return f(x.value, y.value, n), (x.value, y.value)

    f.defvjp(fwd, lambda n, res, g: _pull_power(n, *res, g), symbolic_zeros=True)
    return f


def of_tree_by_hand() -> Fun:
    f = jax.custom_vjp(lambda tree: tree["x"] ** 2 * tree["y"])

    def fwd(tree):
        x, y = tree["x"].value, tree["y"].value
        return f({"x": x, "y": y}), (x, y)

    f.defvjp(fwd, lambda res, g: (_pull_tree(*res, g),), symbolic_zeros=True)
    return f


def forms(transform: Fun) -> Iterator[tuple[str, dict[str, Call]]]:
    """For each form of arguments: bare, Function and custom_vjp."""
    x, y = arrays(16)

    def static(f: Fun) -> Call:
        return Call(lambda _: transform(lambda x, y: f(x, y, 2), x, y))

    def keyword(f: Fun) -> Call:
        return Call(lambda _: transform(lambda x, y: f(x, y=y, n=2), x, y))

    def tree(f: Fun) -> Call:
        return Call(lambda _: transform(lambda x, y: f({"x": x, "y": y}), x, y))

    def power(x, y, n=2):
        return x**n * y

    powers = {
        "bare": power,
        "Function": POWERED.apply,
        "custom_vjp": powered_by_hand(),
    }
    trees = {
        "bare": lambda tree: tree["x"] ** 2 * tree["y"],
        "Function": OF_TREE.apply,
        "custom_vjp": of_tree_by_hand(),
    }
    yield "static argument", {name: static(f) for name, f in powers.items()}
    yield "keyword arguments", {name: keyword(f) for name, f in powers.items()}
    yield "pytree argument", {name: tree(f) for name, f in trees.items()}


def torch_calls() -> dict[str, Call]:
    """The Function and its twin in torch, forward and backward, eager."""
    import torch

    class SinTimes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return torch.sin(x) * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * torch.cos(x) * y, g * torch.sin(x)

    xs = [torch.linspace(i, 1 + i, 16, requires_grad=True) for i in range(2)]

    def both(_: Any) -> Any:
        return torch.autograd.grad(SinTimes.apply(*xs).sum(), xs)

    return {"torch": Call(both, finish=lambda _: None)}


def rows(effort: Effort) -> Iterator[Row]:
    """All measurements without jit."""
    for what, (transform, pairs) in MEASURES.items():
        group = calls(names(pairs), transform, *arrays(16))
        yield from compare("eager", what, group, pairs, effort, gaps=peers.GAPS)
    group = calls(["Function"], gradient, *arrays(16))
    if not peers.GAPS["torch"]:
        group |= torch_calls()
    pairs = [Pair("Function", "torch", label="torch.autograd.Function")]
    what = "value_and_grad in both frameworks"
    yield from compare("eager", what, group, pairs, effort, gaps=peers.GAPS)
    for kind, transform in (("apply", plain), ("value_and_grad", gradient)):
        for form, group in forms(transform):
            pairs = [Pair("Function", "bare"), Pair("Function", "custom_vjp")]
            yield from compare("eager", f"{kind}, {form}", group, pairs, effort)
    yield from by_size(effort)


def by_size(effort: Effort) -> Iterator[Row]:
    for n in SIZES[: 2 if effort.quick else 3]:
        spent = effort.for_size(n)
        for kind, transform in (("apply", plain), ("value_and_grad", gradient)):
            pairs = [Pair("Function", "bare"), Pair("Function", "custom_vjp")]
            group = calls(names(pairs), transform, *arrays(n))
            what = f"{kind}, {n:,} elements"
            yield from compare("eager", what, group, pairs, spent)
