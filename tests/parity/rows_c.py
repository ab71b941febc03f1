"""Arguments of apply."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .core import expect, row
from .rules import both_ways, saves, times

X, Y = [1.0, 2.0], [3.0, 5.0]


@row("IN-01", "same", "arguments of any Python type come through as they are")
def _(fw):
    thing, table, seen = object(), {"k": [1, None]}, {}

    def forward(ctx, x, n, s, none, obj, dct, typ, fn):
        seen.update(
            static=(n, s, none),
            same=(obj is thing, dct == table, typ is int, fn is len),
        )
        return n * x

    def backward(ctx, g):
        return 5 * g, *[None] * 7

    f = fw.make(forward=forward, backward=backward).apply
    call = lambda x: f(x, 3, "a", None, thing, table, int, len)  # noqa: E731
    return [*both_ways(fw, call), seen]


def product(fw, wrap, unwrap):
    """x * y with y inside a container, where torch may have no gradient."""

    def forward(ctx, x, box):
        ctx.save_for_backward(x, unwrap(box))
        return x * unwrap(box)

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, wrap(g * x, None) if fw.name == "jaxfn" else None

    f = fw.make(forward=forward, backward=backward).apply
    x, y = fw.array(X), fw.array(Y)
    return [f(x, wrap(y, "s")), fw.grad(lambda x, y: f(x, wrap(y, "s")), x, y)]


def plain_product(fw):
    x, y = jnp.array(X), jnp.array(Y)
    return [x * y, [y, x]]


@row("IN-02", "superset", "gradients flow to arrays in a list")
@expect(plain_product)
def _(fw):
    return product(fw, lambda y, s: [y], lambda box: box[0])


@row("IN-02b", "superset", "and to those in tuples and dicts")
@expect(lambda fw: dict.fromkeys(("tuple", "dict", "nested"), plain_product(fw)))
def _(fw):
    return {
        "tuple": product(fw, lambda y, s: (y,), lambda box: box[0]),
        "dict": product(fw, lambda y, s: {"k": y}, lambda box: box["k"]),
        "nested": product(
            fw, lambda y, s: {"k": [None, (y, s)]}, lambda box: box["k"][1][0]
        ),
    }


@row("IN-03", "superset", "the gradient of a list is a list")
@expect(lambda fw: [k * jnp.ones(2) for k in (1, 2, 3)])
def _(fw):
    f = fw.make(
        forward=lambda ctx, x, ys: x * ys[0] * ys[1],
        backward=lambda ctx, g: (g, [2 * g, 3 * g]),
    ).apply
    x = fw.array(X)
    return fw.grad(lambda x, y, z: f(x, [y, z]), x, x, x)


@row("IN-04", "superset", "also where only an array in a list is differentiated")
@expect(lambda fw: [jnp.full(2, 3.0)])
def _(fw):
    f = fw.make(
        forward=lambda ctx, x, ys: x * ys[0],
        backward=lambda ctx, g: (None, [3 * g]) if fw.name == "jaxfn" else (None, None),
    ).apply
    x = fw.array(X)
    return fw.grad(lambda y: f(x, [y]), fw.array(Y))


@row("IN-06", "same", "Python numbers stay Python numbers")
def _(fw):
    seen = []

    def forward(ctx, x, *numbers):
        seen.append([type(n).__name__ for n in numbers])
        return sum(numbers) * x

    f = fw.make(forward=forward, backward=lambda ctx, g: (g, None, None, None)).apply
    return [fw.call(lambda x: f(x, 2, 1.5, True), fw.array(X)), seen]


@row("IN-07", "must differ", "a NumPy array is an array: it may have a gradient")
@expect(lambda fw: [jnp.full(2, 3.0)])
def _(fw):
    f = fw.make(
        forward=lambda ctx, x, y: x * fw.array(y), backward=lambda ctx, g: (3 * g, g)
    ).apply
    return fw.grad(lambda x: f(x, np.array(Y, np.float32)), fw.array(X))


@row("IN-08", "same", "objects that stand for arrays are arrays")
def in_08(fw):
    f = fw.make(forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: 5 * g).apply
    p = fw.torch.nn.Parameter(fw.array(X))
    f(p).sum().backward()
    return [f(p), [p.grad]]


@in_08.jaxfn
def _(fw):
    class Parameter:
        def __init__(self, value):
            self.value = value

        def __jax_array__(self):
            return self.value

    f = fw.make(forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: 5 * g).apply
    return both_ways(fw, lambda x: f(Parameter(x)))


def complex_square(fw):
    slope = times(lambda z: (2 * z).conj())
    return fw.make(forward=saves(lambda z: z * z), backward=slope).apply


@row("IN-09", "must differ", "a complex backward is torch's; jax.grad gives JAX's")
def in_09(fw):
    f, z = complex_square(fw), fw.array([1 + 2j, 3 - 1j], "complex64")
    return [fw.grad(f, z), fw.grad(lambda z: (1 - 2j) * f(z), z)]


@in_09.expect
def _(fw):
    z = jnp.array([1 + 2j, 3 - 1j], jnp.complex64)
    return [
        [jax.grad(lambda z: (z * z).real.sum())(z)],
        [jax.grad(lambda z: ((1 - 2j) * z * z).real.sum())(z)],
    ]


@row("IN-10", "same", "the gradient of an integer array is ignored")
def _(fw):
    f = fw.make(forward=lambda ctx, x, i: 2 * x, backward=lambda ctx, g: (5 * g, g))
    return fw.grad(f.apply, fw.array(X), fw.array([0, 1], "int32"))


@row("IN-11", "same", "so is that of an array that is not differentiated by")
def _(fw):
    f = fw.make(
        forward=lambda ctx, x, y: x * y,
        backward=lambda ctx, g: (5 * g, fw.np.ones((3, 4))),
    ).apply
    y = fw.array(Y)
    return fw.grad(lambda x: f(x, y), fw.array(X))


@row("IN-12", "same", "the gradient of what is no array must be None")
def _(fw):
    f = fw.make(forward=lambda ctx, x, k: 2 * x, backward=lambda ctx, g: (g, g)).apply
    return {
        repr(k): fw.attempt(lambda k=k: fw.grad(lambda x: f(x, k), fw.array(X)))
        for k in (3, 2.5, "s", None)
    }
