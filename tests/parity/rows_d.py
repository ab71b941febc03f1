"""What forward may return."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .core import expect, raises, row
from .rules import both_ways

X = [1.0, 2.0]


class Pair(NamedTuple):
    first: Any
    second: Any


@row("OUT-01", "same", "one array")
def _(fw):
    f = fw.make(forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: 5 * g)
    return both_ways(fw, f.apply)


@row("OUT-02", "same", "a tuple is several outputs")
def _(fw):
    f = fw.make(
        forward=lambda ctx, x: (2 * x, 3 * x), backward=lambda ctx, g, h: 5 * g + 7 * h
    ).apply
    return [
        both_ways(fw, f),
        fw.grad(lambda x: f(x)[1], fw.array(X)),
        fw.vjp(f, [fw.array(X)], (fw.array([1.0, 0.0]), fw.array([0.0, 1.0]))),
    ]


@row("OUT-04", "same", "an empty tuple")
def _(fw):
    f = fw.make(forward=lambda ctx, x: (), backward=lambda ctx: None).apply
    return fw.call(f, fw.array(X))


def container(fw, wrap, backward):
    f = fw.make(
        forward=lambda ctx, x: wrap(2 * x, 3 * x),
        backward=backward if fw.name == "jaxfn" else lambda ctx, *g: 5 * g[0],
    ).apply
    x = fw.array(X)
    return [fw.call(f, x), fw.attempt(lambda: fw.grad(f, x))]


def plain_container(wrap):
    x = jnp.array(X)
    return [wrap(2 * x, 3 * x), [jnp.full(2, 12.0)]]


@row("OUT-05", "superset", "a list is one output; gradients flow through it")
@expect(lambda fw: plain_container(lambda a, b: [a, b]))
def _(fw):
    return container(fw, lambda a, b: [a, b], lambda ctx, gs: 5 * gs[0] + 7 * gs[1])


@row("OUT-06", "superset", "so it is with dicts and nested tuples; namedtuples stay")
@expect(
    lambda fw: {
        "dict": plain_container(lambda a, b: {"a": a, "b": b}),
        "nested": plain_container(lambda a, b: (a, (None, b))),
        "namedtuple": plain_container(Pair),
    }
)
def _(fw):
    return {
        "dict": container(
            fw,
            lambda a, b: {"a": a, "b": b},
            lambda ctx, gs: 5 * gs["a"] + 7 * gs["b"],
        ),
        "nested": container(
            fw, lambda a, b: (a, (None, b)), lambda ctx, g, gs: 5 * g + 7 * gs[1]
        ),
        "namedtuple": container(fw, Pair, lambda ctx, g, h: 5 * g + 7 * h),
    }


def statics(fw, *others):
    """Outputs, and whether backward gets None for those that are no arrays."""
    seen = {}

    def backward(ctx, *grads):
        seen["none"] = tuple(g is None for g in grads)
        return 5 * grads[0]

    f = fw.make(forward=lambda ctx, x: (2 * x, *others), backward=backward).apply
    x = fw.array(X)
    return [f(x), fw.grad(lambda x: f(x)[0], x), seen]


@row("OUT-07", "same", "None among the outputs")
def _(fw):
    return statics(fw, None)


@row("OUT-08", "same", "None as the only output")
def _(fw):
    f = fw.make(forward=lambda ctx, x: None, backward=lambda ctx, g: None).apply
    return fw.call(f, fw.array(X))


@row("OUT-09", "same", "outputs that are no arrays come back as they are")
def _(fw):
    return statics(fw, 3, "bar", True, 2.5)


@row("OUT-10", "must differ", "a NumPy array that is returned becomes an array")
@expect(lambda fw: [False, [jnp.full(2, 12.0)], {"none": False}])
def _(fw):
    seen = {}

    def backward(ctx, g, h):
        seen["none"] = h is None
        return 5 * g if h is None else 5 * g + 7 * h

    f = fw.make(
        forward=lambda ctx, x: (2 * x, np.array(X, np.float32)), backward=backward
    ).apply
    x = fw.array(X)
    return [isinstance(f(x)[1], np.ndarray), fw.grad(f, x), seen]


def identity(fw):
    return fw.make(forward=lambda ctx, x: x, backward=lambda ctx, g: 2 * g).apply


@row("OUT-11", "same", "an input returned as it is has the Function's derivative")
def _(fw):
    f = identity(fw)
    return [both_ways(fw, f), fw.grad(lambda x: x * f(x), fw.array(X))]


@row("OUT-12", "same", "and its own value where nothing is differentiated")
def _(fw):
    return fw.call(identity(fw), fw.array(X))


@row("OUT-15", "must differ", "an array returned twice has a gradient in each place")
@expect(lambda fw: [jnp.full(2, 1.0 + 100 * 2)])
def _(fw):
    def forward(ctx, x):
        out = 2 * x
        return out, out

    f = fw.make(forward=forward, backward=lambda ctx, g, h: g + 100 * h).apply
    return fw.grad(lambda x: (lambda a, b: (a, 2 * b))(*f(x)), fw.array(X))


@row("OUT-17", "same", "a constant from outside may be returned")
def _(fw):
    c = fw.array([7.0, 8.0])
    f = fw.make(forward=lambda ctx, x: c, backward=lambda ctx, g: 5 * g).apply
    return both_ways(fw, f)


@row("OUT-18", "must differ", "a closed-over array that is differentiated is refused")
@raises(RuntimeError, "`MyF` used a traced value", "was not passed to apply", "Pass it")
def _(fw):
    def product(x, w):
        f = fw.make(forward=lambda ctx, x: x * w, backward=lambda ctx, g: 3 * g)
        return f.apply(x)

    return fw.grad(product, fw.array(X), fw.array(X))


@row("OUT-21", "same", "outputs without dimensions, and without elements")
def _(fw):
    def backward(ctx, g, h):
        return fw.np.ones(2) * g + h.sum()

    f = fw.make(forward=lambda ctx, x: (x.sum(), x[:0]), backward=backward)
    return both_ways(fw, f.apply)
