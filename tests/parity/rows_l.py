"""Attributes that torch got since 2.8."""

from __future__ import annotations

import functools
import inspect

import jax.numpy as jnp

from tests.build import nothing, saving

from .core import Raises, expect, row, says
from .rows_i import TWICE
from .rules import forward_mode, saves

X = [1.0, 2.0]

ONCE = "saved_tensors can only be accessed once when clear_saved_tensors_on_access=True"


def reading(fw, times, **members):
    """A Function that saves its input, and reads it so many times in backward."""

    def backward(ctx, g):
        for _ in range(times - 1):
            ctx.saved_tensors  # noqa: B018
        return 2 * g * ctx.saved_tensors[0]

    rules = {"forward": lambda x: x**2, "setup_context": saving(), "backward": backward}
    return fw.make(**rules, **members).apply


@row("NEW-01", "same", "clear_saved_tensors_on_access: one read, and no second")
def _(fw):
    def gradient(times):
        f = reading(fw, times, clear_saved_tensors_on_access=True)
        return fw.grad(f, fw.array(X))

    return [gradient(1), fw.attempt(lambda: gradient(2))]


@row("NEW-02", "must differ", "the one read is for each run of backward")
@expect(lambda fw: [2 * jnp.array(X)] * 2)
def _(fw):
    f = reading(fw, 1, clear_saved_tensors_on_access=True)
    return fw.pull_twice(f, fw.array(X), retain=True)


@row("NEW-03", "same", "clear_saved_tensors_on_access is a bool")
@says("Set `MyF.clear_saved_tensors_on_access`")
def _(fw):
    return fw.grad(reading(fw, 1, clear_saved_tensors_on_access=1), fw.array(X))


@row("NEW-04", "same", "jvp may read as often as it likes")
def _(fw):
    def jvp(ctx, t):
        return ctx.saved_tensors[0] * t + ctx.saved_tensors[0] * t

    forward = saves(lambda x: x**2)
    f = fw.make(forward=forward, jvp=jvp, clear_saved_tensors_on_access=True)
    return forward_mode(fw, f.apply)


@row("NEW-05", "must differ", "the flag counts under every transformation")
@expect(lambda fw: Raises(RuntimeError, ONCE, "`MyF.backward`"))
def _(fw):
    f = reading(fw, 2, clear_saved_tensors_on_access=True)
    return fw.func_grad(f, fw.array(X))


def boxed(fw, seen, rule=None, **members):
    """A Function with two outputs that gets its gradients in a list."""

    def backward(ctx, *grads):
        seen.append((len(grads), type(grads[0]).__name__ == "list"))
        g, h = grads[0] if len(grads) == 1 else grads
        return 2 * g + 3 * h

    return fw.make(
        forward=lambda x: (1 * x, 1 * x),
        setup_context=nothing,
        backward=(rule or (lambda f: f))(backward),
        **{"boxed_grads_call": True, **members},
    ).apply


@row("NEW-06", "same", "boxed_grads_call: backward gets one list")
def _(fw):
    seen = []
    return [fw.grad(boxed(fw, seen), fw.array(X)), seen]


@row("NEW-07", "same", "boxed_grads_call is a bool")
@says("Set `MyF.boxed_grads_call`")
def _(fw):
    return fw.grad(boxed(fw, [], boxed_grads_call=1), fw.array(X))


@row("NEW-09", "must differ", "boxed_grads_call counts under every transformation")
@expect(lambda fw: [[jnp.full(2, 5.0)], [(1, True)]])
def _(fw):
    seen = []
    return [fw.func_grad(boxed(fw, seen), fw.array(X)), seen]


@row("NEW-10", "must differ", "once_differentiable looks inside the list, too")
@expect(lambda fw: [[jnp.full(2, 5.0)], Raises(RuntimeError, TWICE, "`MyF.backward`")])
def _(fw):
    f = boxed(fw, [], rule=fw.once_differentiable)
    x = fw.array(X)
    # The gradient of x F(x) depends on F's cotangents, which depend on x.
    return [
        fw.grad(f, x),
        fw.attempt(lambda: fw.grad2(lambda x: tuple(x**2 * y for y in f(x)), x)),
    ]


@row("NEW-11", "superset", "maybe_clear_saved_tensors does nothing")
@expect(lambda fw: [2 * jnp.array(X)])
def _(fw):
    def backward(ctx, g):
        before = ctx.saved_tensors[0]
        ctx.maybe_clear_saved_tensors()
        return g * (before + ctx.saved_tensors[0])

    f = fw.make(forward=saves(lambda x: x**2), backward=backward)
    return fw.grad(f.apply, fw.array(X))


@row("NEW-13", "same", "keywords of apply, and mistakes with them", own_words=True)
def _(fw):
    def forward(ctx, x, k, n=2):
        return x * k * n

    f = fw.make(forward=forward, backward=lambda ctx, g: (g, None)).apply
    x = fw.array(X)
    return {
        "good": fw.call(lambda x: f(k=3, x=x), x),
        "gap": fw.attempt(lambda: f(x, n=3)),
        "unknown": fw.attempt(lambda: f(x, 3, zz=1)),
        "first twice": fw.attempt(lambda: f(x, 3, x=x)),
        "second twice": fw.attempt(lambda: f(x, 3, k=3)),
    }


def renamed(fw):
    """A forward that is decorated, under other names."""

    def forward(ctx, x, k, n=2):
        return x * k * n

    @functools.wraps(forward)
    def decorated(ctx, a, b=5, *rest, **named):
        return forward(ctx, a, b, *rest, **named)

    return fw.make(forward=decorated, backward=lambda ctx, g, *_: (g, None)).apply


@row("NEW-18", "same", "keywords are the decorated forward's own", own_words=True)
def _(fw):
    f, x = renamed(fw), fw.array(X)
    return {
        "own": fw.call(lambda x: f(b=3, a=x), x),
        "default": fw.call(lambda x: f(a=x), x),
        "rest": fw.call(lambda x: f(x, 3, 4), x),
        "of what it wraps": fw.attempt(lambda: f(x, k=3)),
        "twice": fw.attempt(lambda: f(x, a=x)),
    }


@row("NEW-19", "superset", "one without names has those of what it wraps")
@expect(lambda fw: 6 * jnp.array(X))
def _(fw):
    def forward(ctx, x, k, n=2):
        return x * k * n

    @functools.wraps(forward)
    def decorated(*args, **named):
        return forward(*args, **named)

    f = fw.make(forward=decorated, backward=lambda ctx, g, *_: (g, None)).apply
    return fw.call(lambda x: f(k=3, x=x), fw.array(X))


def signed(forward, *names):
    """`forward` with another signature, whose last parameter has the default 7."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    *first, last = [inspect.Parameter(name, kind) for name in names]
    forward.__signature__ = inspect.Signature([*first, last.replace(default=7)])
    return forward


def by_keyword(fw, **rules):
    """What happens to each keyword of such a forward, and without any."""
    f = fw.make(backward=lambda ctx, g, *_: (g, None), **rules).apply
    x, given = fw.array(X), ({}, {"factor": 6}, {"scale": 6})
    return [fw.attempt(lambda kw=kw: fw.call(lambda x: f(x, **kw), x)) for kw in given]


@row("NEW-46", "same", "a signature set by hand names no keywords", own_words=True)
def _(fw):
    def forward(ctx, x, factor=2):
        return x * factor

    return by_keyword(fw, forward=signed(forward, "ctx", "x", "scale"))


@row("NEW-47", "same", "in the separate style it does", own_words=True)
def _(fw):
    def forward(x, factor=2):
        return x * factor

    forward = signed(forward, "x", "scale")
    # Python's words for an unknown keyword differ.
    return by_keyword(fw, forward=forward, setup_context=nothing)[::2]


@row("NEW-48", "superset", "it names those of a forward without names")
@expect(lambda fw: 6 * jnp.array(X))
def _(fw):
    def forward(ctx, *args):
        return args[0] * args[-1]

    return by_keyword(fw, forward=signed(forward, "ctx", "x", "scale"))[2]


HOOKS = ["disable_saved_tensors_hooks", "save_on_cpu", "saved_tensors_hooks"]


@row("NEW-16", "must differ", "of autograd.graph there are the saved-tensor hooks")
@expect(lambda fw: ["Node", *HOOKS])
def _(fw):
    return sorted(name for name in fw.graph.__all__ if name != "save_compressed")
