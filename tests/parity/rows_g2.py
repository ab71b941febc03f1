"""The transformations of torch.func, and JAX's, on what rules see and return."""

from __future__ import annotations

import jax.numpy as jnp

from tests.build import nothing

from .core import EAGER, Raises, expect, raises, row
from .rows_g import scalar
from .rules import times
from .transforms import func


def gradient(fw, f, x=None):
    """The gradient of a scalar function by func's grad."""
    return fw.call(func(fw).grad(f), scalar(fw) if x is None else x)


@row("FUNC-17", "must differ", "a context has one class in all transformations")
@expect(lambda fw: ["FooBackward"])
def _(fw):
    names = set()

    def setup_context(ctx, inputs, output):
        names.add(type(ctx).__name__)

    f = fw.make(
        "Foo",
        forward=lambda x: 2 * x,
        setup_context=setup_context,
        backward=lambda ctx, g: 2 * g,
    )
    gradient(fw, f.apply)
    return sorted(names)


@row("FUNC-18", "must differ", "forward and backward are traced once", modes=EAGER)
@expect(lambda fw: ["forward", "setup_context", "backward", "backward"])
def _(fw):
    calls = []

    def note(name, rule):
        def noting(*args):
            calls.append(name)
            return rule(*args)

        return noting

    f = fw.separate(
        note("forward", lambda x: x**3),
        note("setup_context", lambda c, i, o: c.save_for_backward(*i)),
        backward=note("backward", lambda c, g: 3 * c.saved_tensors[0] ** 2 * g),
    )
    gradient(fw, func(fw).grad(f.apply))
    return calls


@row("FUNC-20", "must differ", "needs_input_grad says what jvp differentiates")
@expect(lambda fw: [(jnp.float32(4), jnp.float32(2)), [(True, False)]])
def _(fw):
    seen = []

    def setup_context(ctx, inputs, output):
        seen.append(ctx.needs_input_grad)

    def jvp(ctx, a, b):
        seen.append(ctx.needs_input_grad)
        return 2 * a + b

    f = fw.separate(lambda x, y: 2 * x, setup_context, jvp=jvp)
    y = fw.array(3.0)

    def run(x):
        return func(fw).jvp(lambda x: f.apply(x, y), (x,), (fw.np.ones_like(x),))

    return [fw.call(run, scalar(fw)), sorted(set(seen))]


@row("FUNC-21", "same", "an array from outside may be saved")
def _(fw):
    k = fw.array(5.0)

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(k)

    rule = times(lambda k: k)
    f = fw.separate(lambda x: k * x, setup_context, backward=rule)
    return gradient(fw, f.apply)


@row("FUNC-22", "superset", "differentiating what forward closes over is refused")
@raises(
    RuntimeError,
    "`MyF` used a traced value that was not passed to apply",
    "Pass it to apply",
)
def _(fw):
    x = scalar(fw)

    def run(w):
        f = fw.separate(lambda x: w * x, backward=lambda ctx, g: g)
        return f.apply(x)

    return gradient(fw, run)


@row("FUNC-23", "same", "a static output under grad")
def _(fw):
    seen = []

    def backward(ctx, g, none):
        seen.append(none)
        return 2 * g

    f = fw.separate(lambda x: (2 * x, "a"), backward=backward)

    def run(x):
        out, text = f.apply(x)
        seen.append(text)
        return out

    return [gradient(fw, run), seen]


@row("FUNC-24", "same", "keyword arguments of apply")
def _(fw):
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]

    def forward(x, k):
        return k * x

    f = fw.separate(forward, setup_context, backward=lambda ctx, g: (ctx.k * g, None))
    return gradient(fw, lambda x: f.apply(x, k=3) + f.apply(k=4, x=x))


@row("FUNC-25", "same", "an output marked non-differentiable")
def _(fw):
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    def backward(ctx, g, _):
        (order,) = ctx.saved_tensors
        return g[fw.np.argsort(order)]

    def forward(x):
        order = fw.np.argsort(x)
        return x[order], order

    f = fw.separate(forward, setup_context, backward=backward)
    k, x = fw.array([1.0, 10.0, 100.0]), fw.array([3.0, 1.0, 2.0])
    return gradient(fw, lambda x: (k * f.apply(x)[0]).sum(), x)


@row("FUNC-26", "must differ", "a consumed input under grad: only marked, not changed")
@expect(
    lambda fw: dict.fromkeys(("a copy", "the argument itself"), jnp.exp(jnp.float32(2)))
)
def _(fw):
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(*inputs)
        ctx.save_for_backward(output)

    forward = (lambda x: x.exp_()) if fw.name == "torch" else jnp.exp
    rule = times(lambda out: out)
    f = fw.separate(forward, setup_context, backward=rule)
    return {
        "a copy": gradient(fw, lambda x: f.apply(1 * x)),
        "the argument itself": fw.attempt(lambda: gradient(fw, f.apply)),
    }


@row("FUNC-30", "same", "None as an output")
def _(fw):
    seen = []

    def backward(ctx, g, none):
        seen.append(none)
        return 2 * g

    f = fw.separate(lambda x: (2 * x, None), backward=backward)
    return [gradient(fw, lambda x: f.apply(x)[0]), seen]


@row("FUNC-31", "superset", "a list that forward returns has gradients")
@expect(lambda fw: jnp.float32(5))
def _(fw):
    f = fw.separate(
        lambda x: [2 * x, 3 * x], backward=lambda ctx, gs: 2 * gs[0] + 3 * gs[1]
    )
    return gradient(fw, lambda x: sum(f.apply(x)))


@row("FUNC-32", "superset", "arrays in a list that is an argument have gradients")
@expect(lambda fw: jnp.float32(2))
def _(fw):
    f = fw.make(
        forward=lambda xs: 2 * xs[0],
        setup_context=nothing,
        # torch's own rule would be: None for the list
        backward=lambda ctx, g: None if fw.name == "torch" else [2 * g],
    )
    return gradient(fw, lambda x: f.apply([x]))


@row("FUNC-33", "same", "an input kept as an attribute of ctx")
def _(fw):
    def setup_context(ctx, inputs, output):
        (ctx.x,) = inputs

    f = fw.separate(
        lambda x: x**3, setup_context, backward=lambda ctx, g: 3 * ctx.x**2 * g
    ).apply
    t = func(fw)
    return [gradient(fw, f), gradient(fw, t.grad(f)), gradient(fw, t.grad(t.grad(f)))]


@row("FUNC-36", "must differ", "vjp of two outputs; JAX checks the cotangents itself")
@expect(
    lambda fw: {
        "pair": (jnp.float32(32),),
        "one": Raises(ValueError, "must match the pytree"),
    }
)
def _(fw):
    f = fw.separate(lambda x: (2 * x, 3 * x), backward=lambda ctx, a, b: 2 * a + 3 * b)

    def pull(x, *ct):
        return func(fw).vjp(f.apply, x)[1](*ct)

    one, ten = fw.array(1.0), fw.array(10.0)
    return {
        "pair": fw.call(lambda x: pull(x, (one, ten)), scalar(fw)),
        "one": fw.attempt(lambda: fw.call(lambda x: pull(x, one), scalar(fw))),
    }
