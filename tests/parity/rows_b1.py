"""Function: the two styles, and the rules that are there or not."""

from __future__ import annotations

import jax.numpy as jnp

from tests.build import saving

from .core import expect, row, says
from .rules import both_ways, saves, times

X = [1.0, 2.0]


TRIPLE = times(lambda x: 3 * x)


@row("FN-01", "same", "the combined style: forward(ctx, *args)")
def _(fw):
    f = fw.make(forward=saves(lambda x: x**2), backward=TRIPLE)
    return both_ways(fw, f.apply)


@row("FN-02", "same", "the separate style: forward(*args) and setup_context")
def _(fw):
    f = fw.separate(lambda x: x**2, saving(), backward=TRIPLE)
    return both_ways(fw, f.apply)


@row("FN-03", "same", "an inherited setup_context chooses the separate style")
def _(fw):
    base = fw.make("Base", forward=lambda x: x, setup_context=saving())
    f = fw.make(base=base, forward=lambda x: x**2, backward=TRIPLE)
    return both_ways(fw, f.apply)


@row("FN-04", "same", "no forward")
@says("forward` is missing")
def _(fw):
    return fw.call(fw.make().apply, fw.array(X))


@row("FN-05", "same", "Function itself has no forward either")
@says("forward` is missing")
def _(fw):
    return fw.call(fw.Function.apply, fw.array(X))


@row("FN-06", "same", "no backward: an error only where it would run")
@says("`MyF.backward` is missing")
def _(fw):
    f = fw.make(forward=lambda ctx, x: 2 * x).apply
    x = fw.array(X)
    return [fw.call(f, x), fw.attempt(lambda: fw.grad(f, x))]


@row("FN-07", "same", "vjp is another name of backward")
def _(fw):
    f = fw.make(forward=lambda ctx, x: 2 * x, vjp=lambda ctx, g: 5 * g)
    return both_ways(fw, f.apply)


@row("FN-08", "same", "to define both is an error where one would run")
@says("`MyF.backward` and `MyF.vjp` are both defined")
def _(fw):
    f = fw.make(
        forward=lambda ctx, x: 2 * x,
        vjp=lambda ctx, g: 5 * g,
        backward=lambda ctx, g: 6 * g,
    ).apply
    x = fw.array(X)
    return [fw.call(f, x), fw.attempt(lambda: fw.grad(f, x))]


@row("FN-09", "superset", "vjp works under every transformation")
@expect(lambda fw: [jnp.full(2, 5.0)])
def _(fw):
    f = fw.separate(lambda x: 2 * x, saving(), vjp=lambda ctx, g: 5 * g)
    return fw.func_grad(f.apply, fw.array(X))


@row("FN-10", "same", "to make an instance warns")
def _(fw):
    return isinstance(fw.make(forward=lambda ctx, x: 2 * x)(), fw.Function)


@row("FN-11", "same", "to call an instance is an error")
@says("`MyF.apply")
def _(fw):
    f = fw.make(forward=lambda ctx, x: 2 * x)
    return fw.attempt(lambda: f()(fw.array(X)))


@row("FN-12", "same", "a forward without @staticmethod gets ctx as self")
def _(fw):
    class MyF(fw.Function):
        def forward(self, x):
            self.save_for_backward(x)
            return x**2

        def backward(self, g):
            return 3 * g * self.saved_tensors[0]

    return both_ways(fw, MyF.apply)


@row("FN-13", "same", "apply works on an instance, too")
def _(fw):
    f = fw.make(forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: 5 * g)
    return both_ways(fw, f().apply)


@row("FN-16", "same", "in the separate style a default value is an argument")
def _(fw):
    seen = {}

    def forward(x, k=2):
        return k * x

    def setup_context(ctx, inputs, output):
        seen.update(inputs=len(inputs), k=inputs[1], needs=ctx.needs_input_grad)

    def gradients(backward):
        f = fw.separate(forward, setup_context, backward=backward)
        return fw.grad(f.apply, fw.array(X))

    return [
        gradients(lambda ctx, g: (5 * g, None)),
        seen,
        fw.attempt(lambda: gradients(lambda ctx, g: 5 * g)),
    ]


@row("FN-17", "same", "in the combined style keywords are bound, defaults not")
def _(fw):
    seen = {}

    def forward(ctx, x, k=2, n=1):
        seen["needs"] = len(ctx.needs_input_grad)
        return k * x

    f = fw.make(forward=forward, backward=lambda ctx, g: (5 * g, None)).apply
    return [
        both_ways(fw, lambda x: f(x, k=3)),
        both_ways(fw, lambda x: f(k=3, x=x)),
        seen,
    ]


@row("FN-18", "same", "in the separate style keywords are bound to positions")
def _(fw):
    f = fw.separate(
        lambda x, k: k * x,
        lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
        backward=lambda ctx, g: (5 * g * ctx.saved_tensors[0], None),
    ).apply
    return both_ways(fw, lambda x: f(k=3, x=x))


def keyword_only(fw, **kwargs):
    def forward(x, *, k=2):
        return k * x

    def setup_context(ctx, inputs, output):
        ctx.n = len(inputs)

    f = fw.separate(forward, setup_context, backward=lambda ctx, g: ctx.n * g).apply
    return both_ways(fw, lambda x: f(x, **kwargs))


@row("FN-19", "superset", "keyword-only parameters may be given")
@expect(lambda fw: [3 * jnp.array(X), [jnp.ones(2)]])
def _(fw):
    return keyword_only(fw, k=3)


@row("FN-20", "superset", "or left to their defaults")
@expect(lambda fw: [2 * jnp.array(X), [jnp.ones(2)]])
def _(fw):
    return keyword_only(fw)


@row("FN-21", "same", "*args in forward")
def _(fw):
    seen = {}

    def forward(*xs):
        return xs[0] * xs[1] * xs[2]

    def setup_context(ctx, inputs, output):
        seen["n"] = len(inputs)

    f = fw.separate(forward, setup_context, backward=lambda ctx, g: (g, 2 * g, 3 * g))
    x = fw.array(X)
    return [fw.grad(f.apply, x, x, x), seen]


@row("FN-22", "same", "**kwargs in forward take nothing", own_words=True)
def _(fw):
    def forward(x, **kw):
        return 2 * x

    f = fw.separate(forward, saving()).apply
    return fw.call(lambda x: f(x, a=1), fw.array(X))


@row("FN-24", "same", "a missing argument", own_words=True)
def _(fw):
    def forward(ctx, x):
        return 2 * x

    f = fw.make(forward=forward)
    return {
        "missing": fw.attempt(f.apply),
        "too many": fw.attempt(lambda: f.apply(fw.array(X), 1)),
    }


@row("FN-25", "same", "no arguments at all")
def _(fw):
    f = fw.make(forward=lambda ctx: fw.np.ones(2), backward=lambda ctx, g: None)
    return fw.call(f.apply)


@row("FN-26", "same", "no array among the arguments")
def _(fw):
    def forward(ctx, k):
        return fw.np.full((2,), float(k))

    return fw.make(forward=forward, backward=lambda ctx, g: None).apply(3)
