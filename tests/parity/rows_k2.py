"""NestedIOFunction: in jaxfn it works."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .core import expect, row
from .rows_k import quiet


def nest(fw):
    """(2 a, [3 b]) of (a, [b]): a class whose backward takes 10 and 20 instead."""

    class Nest(fw.NestedIOFunction):
        def __init__(self, scale=1):
            super().__init__()
            self.scale = scale

        def forward_extended(self, a, more):
            (b,) = more
            return self.two() * a, [3 * b]

        def backward_extended(self, grad_a, grads):
            (grad_b,) = grads
            return 10 * grad_a, [20 * grad_b]

        def two(self):
            return 2 * getattr(self, "scale", 1)

    return Nest


def arrays(fw):
    return fw.array([1.0]), fw.array([2.0])


def nested(fw, f):
    """Value and gradients of f at (a, [b])."""

    def run(a, b):
        return f(a, [b])

    return [fw.call(run, *arrays(fw)), fw.grad(run, *arrays(fw))]


@row("BC-13", "superset", "an instance can be called, with its attributes")
@expect(lambda fw: plain_nested(10))
def _(fw):
    with quiet():
        made = nest(fw)(5)
        return nested(fw, made)


@row("BC-14", "superset", "so can apply")
@expect(lambda fw: plain_nested(2))
def _(fw):
    return nested(fw, nest(fw).apply)


def plain_nested(first):
    """That of Nest, whose value has this for its first part."""
    one = jnp.ones(1)
    return [(first * one, [6 * one]), [10 * one, 20 * one]]


@row("BC-15", "same", "outputs and gradients are flattened in order")
def bc_15(fw):
    a, b = arrays(fw)
    n = made(fw)
    n._nested_input = (a, [b])
    flat, out = n.forward(), n._nested_output
    return {"flat": list(flat), "nested": out, "gradients": list(n.backward(a, b))}


@bc_15.jaxfn
def _(fw):
    a, b = arrays(fw)
    f = nest(fw).apply

    def run(a, b):
        return f(a, [b])

    out = fw.call(run, a, b)
    gradients = fw.vjp(run, [a, b], [a, b])
    return {"flat": jax.tree.leaves(out), "nested": out, "gradients": gradients}


@row("BC-18", "same", "only arrays and None are nested")
def bc_18(fw):
    return [
        fw.attempt(lambda x=x: made(fw).save_for_backward(x)) for x in (3, "a", [1.0])
    ]


@bc_18.jaxfn
def _(fw):
    def saving(value):
        class Nest(nest(fw)):
            def forward_extended(self, a, more):
                self.save_for_backward(value)
                return a, more

        return lambda: nested(fw, Nest.apply)

    return [fw.attempt(saving(x)) for x in (3, "a", [1.0])]


@row("BC-19", "same", "the extended rules are to be defined")
def _(fw):
    def name(rule):
        try:
            rule(None, fw.array([1.0]))
        except Exception as error:  # noqa: BLE001  (its name is the result)
            return type(error).__name__

    cls = fw.NestedIOFunction
    return [name(cls.forward_extended), name(cls.backward_extended)]


@row("BC-22", "must differ", "None among the gradients is a zero gradient")
@expect(lambda fw: [jnp.float32([x]) for x in (2, 0, 0, 3)])
def bc_22(fw):
    a, b = arrays(fw)
    return list(fw.function._iter_None_tensors((a, None, [None, b])))


@bc_22.jaxfn
def _(fw):
    class Nest(fw.NestedIOFunction):
        def forward_extended(self, a, b, pair):
            return a + b + sum(pair)

        def backward_extended(self, g):
            return 2 * g, None, [None, 3 * g]

    def run(*xs):
        return Nest.apply(*xs[:2], list(xs[2:]))

    return fw.grad(run, *arrays(fw), *arrays(fw))


def made(fw):
    """An instance, which is its own context."""
    with quiet():
        return nest(fw)()


@row("BC-29", "same", "an instance saves and marks nested containers, flat")
def _(fw):
    n, (a, b) = made(fw), arrays(fw)
    n.save_for_backward([a, (b, None)], {"k": a})
    n.mark_dirty([a], [None, (b,)])
    n.mark_non_differentiable([a], k=(b,))
    return [n.to_save, n.dirty_tensors, n.non_differentiable]


@row("BC-30", "superset", "and gives the containers back")
@expect(lambda fw: containers(fw))
def _(fw):
    n = made(fw)
    n.save_for_backward(*containers(fw))
    return n.saved_tensors


def containers(fw):
    a, b = arrays(fw)
    return [a, (b, None)], {"k": a}


@row("BC-31", "same", "it has nothing to give back before", own_words=True)
def _(fw):
    n = made(fw)
    try:
        return n.saved_tensors
    except AttributeError as error:
        return type(error).__name__


@row("BC-32", "same", "it refuses what is no array")
def _(fw):
    n = made(fw)
    methods = [n.save_for_backward, n.mark_dirty, n.mark_non_differentiable]
    return [
        fw.attempt(lambda method=method, x=x: method([x]))
        for method in methods
        for x in (3, "a", [1.0])
    ]
