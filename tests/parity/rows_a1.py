"""FunctionCtx: what is saved, and who reads it."""

from __future__ import annotations

import jax.numpy as jnp

from .core import Raises, Warns, expect, row
from .rules import forward_mode, saves, times, two_orders

X = [1.0, 2.0]


@row("CTX-01", "same", "inputs, None and outputs are saved in order")
def _(fw):
    seen = {}

    def forward(ctx, x):
        out = fw.np.exp(x)
        ctx.save_for_backward(x, None, out)
        return out

    def backward(ctx, g):
        x, none, out = ctx.saved_tensors
        seen.update(type=type(ctx.saved_tensors).__name__, none=none)
        return g * (x + 10 * out)

    f = fw.make(forward=forward, backward=backward)
    return [fw.grad(f.apply, fw.array(X)), seen]


@row("CTX-02", "must differ", "what is no array is refused at once, in every call")
def ctx_02(fw):
    ran = []

    def forward(ctx, x):
        ctx.save_for_backward(x, 3)
        ran.append(True)
        return 2 * x

    f = fw.make(forward=forward, backward=lambda ctx, g: g).apply
    x = fw.array(X)
    return {
        "grad": fw.attempt(lambda: fw.grad(f, x)),
        "plain": fw.attempt(lambda: fw.call(f, x)),
        "ran to the end": list(ran),
    }


@ctx_02.expect
def _(fw):
    refused = Raises(
        TypeError,
        "save_for_backward can only save variables, but argument 1 is of type int",
        "`MyF.forward`",
    )
    return {"grad": refused, "plain": refused, "ran to the end": []}


@row("CTX-03", "superset", "of two calls the last counts; jaxfn warns of it")
@expect(
    lambda fw: Warns([5 * jnp.array(X)], UserWarning, "more than once", "`MyF.forward`")
)
def _(fw):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_backward(5 * x)
        return 2 * x

    f = fw.make(forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0])
    return fw.grad(f.apply, fw.array(X))


@row("CTX-04", "same", "nothing saved is an empty tuple")
def _(fw):
    seen = {}

    def backward(name):
        def rule(ctx, g):
            seen[name] = ctx.saved_tensors
            return g

        return rule

    def empty(ctx, x):
        ctx.save_for_backward()
        return 2 * x

    for name, forward in {"none": lambda ctx, x: 2 * x, "empty": empty}.items():
        fw.grad(fw.make(forward=forward, backward=backward(name)).apply, fw.array(X))
    return seen


def calling(fw, method, *args):
    """The gradient with a backward that calls a method of ctx."""

    def backward(ctx, g):
        getattr(ctx, method)(*(args or (g,)))
        return g

    f = fw.make(forward=saves(lambda x: 2 * x), backward=backward)
    return fw.grad(f.apply, fw.array(X))


def too_late(method):
    return Raises(
        RuntimeError, f"`MyF.backward` called ctx.{method}", "forward or setup_context"
    )


@row("CTX-05", "must differ", "save_for_backward in backward is refused")
@expect(lambda fw: too_late("save_for_backward"))
def _(fw):
    return calling(fw, "save_for_backward")


@row("CTX-07", "superset", "a saved intermediate keeps its derivative")
@expect(lambda fw: derivatives_of_a_product(fw))
def _(fw):
    def forward(ctx, x):
        w = fw.np.exp(x)
        ctx.save_for_backward(x, w)
        return x * w

    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * (w + x * w)

    f = fw.make(forward=forward, backward=backward)
    return two_orders(fw, f.apply, fw.array(X))


def derivatives_of_a_product(fw):
    """The first and the second derivative of x exp(x)."""
    x = jnp.array(X)
    return [[(1 + x) * jnp.exp(x)], [(2 + x) * jnp.exp(x)]]


@row("CTX-08", "superset", "forward reads what it has saved so far")
@expect(lambda fw: [[jnp.array(X)], {"before": 0, "after": 1}])
def _(fw):
    seen = {}

    def forward(ctx, x):
        seen["before"] = len(ctx.saved_tensors)
        ctx.save_for_backward(x)
        seen["after"] = len(ctx.saved_tensors)
        return 2 * x

    f = fw.make(forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0])
    return [fw.grad(f.apply, fw.array(X)), seen]


@row("CTX-09", "superset", "so does setup_context")
@expect(lambda fw: {"save_for_backward": 1, "save_for_forward": 1})
def _(fw):
    seen = {}

    def setup(method):
        def setup_context(ctx, inputs, output):
            getattr(ctx, method)(*inputs)
            seen[method] = len(ctx.saved_tensors)

        return setup_context

    for method in ("save_for_backward", "save_for_forward"):
        f = fw.separate(lambda x: 2 * x, setup(method), backward=lambda ctx, g: g)
        fw.grad(f.apply, fw.array(X))
    return seen


@row("CTX-10", "must differ", "a gradient may be computed again from what was saved")
@expect(lambda fw: [2 * jnp.array(X)] * 2)
def _(fw):
    f = fw.make(forward=saves(lambda x: x**2), backward=times(lambda x: 2 * x))
    return fw.pull_twice(f.apply, fw.array(X), retain=False)


@row("CTX-11", "same", "so it may where nothing was saved")
def _(fw):
    f = fw.make(forward=lambda ctx, x: 3 * x, backward=lambda ctx, g: 3 * g)
    return fw.pull_twice(f.apply, fw.array(X), retain=False)


def reading(fw, name, *, jvp=True):
    def rule(ctx, g):
        saved = getattr(ctx, name)
        return 2 * g * (saved[0] if saved else 100)

    rules = {"jvp": rule} if jvp else {}
    f = fw.make(forward=saves(lambda x: x**2), backward=rule, **rules).apply
    return lambda: fw.grad(f, fw.array(X)), lambda: forward_mode(fw, f)


@row("CTX-13", "same", "saved_variables is a deprecated name")
def _(fw):
    # Without a jvp: ours is traced too where a gradient is taken, and would warn again.
    return reading(fw, "saved_variables", jvp=False)[0]()


@row("CTX-14", "same", "it does not know what was saved for jvp")
def _(fw):
    return [
        reading(fw, "saved_tensors")[1](),
        fw.attempt(reading(fw, "saved_variables")[1]),
    ]
