"""gradcheck and gradgradcheck."""

from __future__ import annotations

import inspect

import numpy as np

from .core import EAGER, row
from .rules import saves, times

X = [1.0, 2.0]


def scaled(fw, factor, **members):
    """x * x, with a backward that is scaled."""
    backward = times(lambda x: factor * x)
    return fw.make(forward=saves(lambda x: x * x), backward=backward, **members).apply


def leaf(fw, value=X, dtype="float64"):
    return fw.leaf(fw.array(value, dtype))


def check(fw, f, *xs, **options):
    return fw.gradcheck(f, xs, **options)


@row("GC-01", "same", "right rules pass", modes=EAGER)
def _(fw):
    with fw.double():
        x = leaf(fw)
        return [fw.gradcheck(scaled(fw, 2), x), fw.gradgradcheck(scaled(fw, 2), x)]


@row("GC-02", "same", "a wrong backward is a mismatch of Jacobians", modes=EAGER)
def _(fw):
    with fw.double():
        return check(fw, scaled(fw, 3), leaf(fw))


@row("GC-03", "same", "raise_exception=False returns False", modes=EAGER)
def _(fw):
    with fw.double():
        return check(fw, scaled(fw, 3), leaf(fw), raise_exception=False)


@row("GC-04", "same", "no input that can be differentiated", modes=EAGER)
def _(fw):
    return check(fw, scaled(fw, 2), fw.array([1, 2], "int32"))


@row("GC-05", "same", "single precision warns, and fails", modes=EAGER)
def _(fw):
    with fw.double():
        x = leaf(fw, X, "float32")
        return check(fw, scaled(fw, 2), x, raise_exception=False)


@row("GC-06", "same", "an undefined gradient of an output", modes=EAGER, own_words=True)
def _(fw):
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x + x, x + x + x

    def backward(ctx, g, h):
        return g * 2 + h * 3

    with fw.double():
        f = fw.make(forward=forward, backward=backward).apply
        return [
            check(fw, f, leaf(fw), check_undefined_grad=False),
            fw.attempt(lambda: check(fw, f, leaf(fw))),
        ]


@row("GC-07", "same", "a backward that is not the same twice", modes=EAGER)
def _(fw):
    generator = np.random.default_rng(0)

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x + 1e-6 * float(generator.random())

    with fw.double():
        f = fw.make(forward=saves(lambda x: x * x), backward=backward).apply
        return [
            fw.attempt(lambda: check(fw, f, leaf(fw))),
            # Zero cotangents don't give zeros here either: torch says so next.
            fw.attempt(lambda: check(fw, f, leaf(fw), nondet_tol=1e-5)),
        ]


@row("GC-08", "same", "check_forward_ad", modes=EAGER)
def _(fw):
    def jvp(factor):
        return times(lambda x: factor * x)

    def run(f):
        return fw.attempt(lambda: check(fw, f, leaf(fw), check_forward_ad=True))

    alone = {"check_forward_ad": True, "check_backward_ad": False}
    with fw.double():
        return {
            "right": run(scaled(fw, 2, jvp=jvp(2))),
            "wrong": run(scaled(fw, 2, jvp=jvp(3))),
            "none": run(scaled(fw, 2)),
            "only": fw.gradcheck(scaled(fw, 3, jvp=jvp(2)), leaf(fw), **alone),
        }


@row("GC-09", "same", "check_batched_grad", modes=EAGER)
def _(fw):
    def backward(ctx, g):
        return fw.from_numpy(2 * np.asarray(g))

    with fw.double():
        f = fw.make(forward=lambda ctx, x: 2 * x, backward=backward).apply
        return [
            check(fw, scaled(fw, 2), leaf(fw), check_batched_grad=True),
            check(fw, f, leaf(fw)),
            check(fw, f, leaf(fw), check_batched_grad=True, raise_exception=False),
        ]


@row("GC-10", "same", "fast_mode", modes=EAGER)
def _(fw):
    with fw.double():
        return check(fw, scaled(fw, 2), leaf(fw), fast_mode=True)


@row("GC-11", "same", "the signatures", modes=EAGER)
def _(fw):
    def signature(f):
        return {
            p.name: [str(p.kind), "none" if p.default is p.empty else p.default]
            for p in inspect.signature(f).parameters.values()
        }

    return [signature(fw.gradcheck), signature(fw.gradgradcheck)]


@row("GC-12", "same", "an output that is no array", modes=EAGER)
def _(fw):
    f = fw.make(
        forward=lambda ctx, x: (x * 2, "a"), backward=lambda ctx, g, h: g * 2
    ).apply
    with fw.double():
        return check(fw, f, leaf(fw))


@row("GC-13", "same", "integer outputs are constants", modes=EAGER)
def _(fw):
    f = fw.make(
        forward=lambda ctx, x: fw.cast(x > 0, "int32"), backward=lambda ctx, g: None
    ).apply
    with fw.double():
        return check(fw, f, leaf(fw))


def refused(run):
    """How an output of another kind is refused: shapes print in different ways."""
    try:
        return run()
    except AssertionError as error:
        return str(error).partition(", but got: ")[0]


def changing(fw, to):
    """How the identity is refused, whose output is of another kind from 1 on."""

    def forward(ctx, x):
        return to(x) if (np.asarray(x) >= 1).all() else x * 1

    f = fw.make(forward=forward, backward=lambda ctx, g: g.sum()[None]).apply
    with fw.double():
        x = leaf(fw, [1.0])
        return {
            "slow": refused(lambda: check(fw, f, x)),
            "quiet": refused(lambda: check(fw, f, x, raise_exception=False)),
        }


@row("GC-14", "same", "an output whose shape changes", modes=EAGER)
def _(fw):
    return changing(fw, lambda x: fw.np.stack([x, x]))


@row("GC-15", "same", "an output whose dtype changes", modes=EAGER)
def _(fw):
    return changing(fw, lambda x: fw.cast(x, "float32"))
