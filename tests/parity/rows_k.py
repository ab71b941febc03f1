"""Contexts made by hand, and InplaceFunction."""

from __future__ import annotations

import contextlib
import warnings

import jax.numpy as jnp

import jaxfn
from tests.build import nothing

from .core import EAGER, Raises, expect, row
from .transforms import func


@contextlib.contextmanager
def quiet():
    """Without the warning that an instance of a Function is made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def ten(fw):
    return fw.array([10.0])


@row("BC-01", "same", "a context of no Function has no rules", own_words=True)
def _(fw):
    ctx = fw.BackwardCFunction()
    return [fw.attempt(lambda: ctx.apply(1)), fw.attempt(lambda: ctx.apply_jvp(1))]


@row("BC-02", "same", "apply of a context made by hand calls backward")
def _(fw):
    f = fw.make(backward=lambda ctx, g: (ctx.k * g, None))

    def run(g):
        ctx = f._backward_cls()
        ctx.k = 3
        return ctx.apply(g)[0]

    return fw.call(run, ten(fw))


def by_hand(fw, method, **rules):
    """What a method of a context does that is made by hand, and holds 4 as k."""
    ctx = fw.make(**rules)._backward_cls()
    ctx.k = 4
    return fw.attempt(lambda: fw.call(lambda x: getattr(ctx, method)(x), ten(fw)))


@row("BC-03", "same", "or vjp, but not both of them")
def _(fw):
    vjp, backward = {"vjp": lambda ctx, g: 7 * g}, {"backward": lambda ctx, g: 5 * g}
    rules = {"vjp": vjp, "backward": backward, "both": vjp | backward, "neither": {}}
    return {key: by_hand(fw, "apply", **x) for key, x in rules.items()}


@row("BC-04", "same", "apply_jvp calls jvp")
def _(fw):
    jvp = {"jvp": lambda ctx, t: ctx.k * t}
    return {
        "jvp": by_hand(fw, "apply_jvp", **jvp),
        "none": by_hand(fw, "apply_jvp"),
    }


@row("BC-05", "superset", "a context made by hand remembers what is saved in it")
@expect(
    lambda fw: {
        key: [[ten(fw), None], [ten(fw), None], "MyFBackward"]
        for key in ("backward", "jvp")
    }
)
def _(fw):
    def saved(ctx, g):
        return list(ctx.saved_tensors)

    def run(save, rule):
        ctx = fw.make(backward=saved, jvp=saved)._backward_cls()
        getattr(ctx, save)(ten(fw), None)
        return [list(ctx.saved_tensors), getattr(ctx, rule)(ten(fw)), ctx.name()]

    return {
        "backward": run("save_for_backward", "apply"),
        "jvp": run("save_for_forward", "apply_jvp"),
    }


@row("BC-06", "same", "what a context can do")
def _(fw):
    names = (
        *("apply", "apply_boxed", "apply_jvp", "mark_dirty", "mark_non_differentiable"),
        *("save_for_backward", "save_for_forward", "set_materialize_grads"),
        *("saved_tensors", "mark_shared_storage"),
    )
    return {name: hasattr(fw.BackwardCFunction, name) for name in names}


@row("BC-07", "same", "apply of the class of contexts is a method")
def _(fw):
    ctx = fw.FunctionCtx()
    ctx.save_for_backward(1, 2)
    return [type(fw.BackwardCFunction.apply).__name__, ctx.to_save]


@row("BC-08", "same", "FunctionCtx on its own records what it is told")
def _(fw):
    ctx = fw.FunctionCtx()
    ctx.save_for_backward(1, "a")
    ctx.save_for_forward(None)
    ctx.mark_dirty(2)
    ctx.mark_non_differentiable(3)
    ctx.set_materialize_grads("x")
    return vars(ctx)


@row("BC-09", "same", "an InplaceFunction has a flag, and making one warns")
def _(fw):
    made = [fw.InplaceFunction(), fw.InplaceFunction(True), fw.InplaceFunction(False)]
    flags = [one.inplace for one in made]
    return [*flags, hasattr(fw.InplaceFunction, "inplace")]


def dropout(fw):
    """Zero for the first element, twice the second; in place if told so."""

    def forward(ctx, x, inplace):
        ctx.inplace = inplace
        ctx.save_for_backward(fw.array([0.0, 2.0]))
        (mask,) = ctx.to_save
        if not inplace:
            return mask * x
        ctx.mark_dirty(x)
        return x.mul_(mask) if fw.name == "torch" else mask * x

    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return mask * g, None

    return fw.make(base=fw.InplaceFunction, forward=forward, backward=backward).apply


@row("BC-10", "must differ", "in place: a new array, and the old one is consumed")
@expect(
    lambda fw: {
        "gradients": [[jnp.float32([0, 2])]] * 2,
        "result": jnp.float32([0, 8]),
        "argument": Raises(RuntimeError, "Array has been deleted"),
        "kept": jnp.float32([3, 4]),
    }
)
def _(fw):
    f = dropout(fw)
    x, kept = fw.array([3.0, 4.0]), fw.array([3.0, 4.0])
    gradients = [
        fw.grad(lambda x, inplace=inplace: f(1 * x, inplace), x)
        for inplace in (False, True)
    ]
    out = f(x, True)
    f(kept, False)
    return {
        "gradients": gradients,
        "result": out,
        "argument": fw.attempt(lambda: x + 0),
        "kept": kept,
    }


@row("BC-11", "same", "an InplaceFunction is not called as an instance")
def _(fw):
    with quiet():
        made = fw.InplaceFunction(True)
    return made(ten(fw))


@row("BC-12", "same", "an InplaceFunction is a Function")
def _(fw):
    cls = fw.InplaceFunction
    return [
        issubclass(cls, fw.Function),
        cls.backward is fw.Function.backward,
        cls._backward_cls.__name__,
    ]


@row("BC-23", "must differ", "an instance of a Function is no context", modes=EAGER)
@expect(lambda fw: {name: Raises(AttributeError, "MyF", name) for name in OF_CONTEXTS})
def _(fw):
    with quiet():
        made = fw.make(forward=lambda ctx, x: x)()
    return {n: fw.attempt(lambda n=n: getattr(made, n)) for n in OF_CONTEXTS}


OF_CONTEXTS = ("saved_tensors", "needs_input_grad", "next_functions", "metadata")


@row("BC-24", "must differ", "saved_tensors is a property")
@expect(lambda fw: "property")
def _(fw):
    return type(fw.BackwardCFunction.saved_tensors).__name__


@row("BC-26", "same", "one Function under all its names")
def bc_26(fw):
    autograd = fw.torch.autograd
    return [autograd.Function is autograd.function.Function] * 2


@bc_26.jaxfn
def _(fw):
    autograd = jaxfn.autograd
    return [
        autograd.Function is autograd.function.Function,
        jaxfn.Function is autograd.Function,
    ]


@row("BC-27", "superset", "_SingleLevelFunction works in all transformations")
@expect(lambda fw: [2 * ten(fw), jnp.float32([3])])
def _(fw):
    f = fw.make(
        base=fw.function._SingleLevelFunction,
        forward=lambda x: 2 * x,
        setup_context=nothing,
        backward=lambda ctx, g: 3 * g,
    ).apply
    return [
        fw.call(f, ten(fw)),
        fw.attempt(lambda: fw.call(func(fw).grad(lambda x: f(x).sum()), ten(fw))),
    ]


@row("BC-28", "must differ", "leftovers of old interfaces are gone")
@expect(lambda fw: {**dict.fromkeys(LEFTOVERS, False), "mark_shared_storage": True})
def _(fw):
    names = (*LEFTOVERS, "mark_shared_storage")
    return {name: hasattr(fw.Function, name) for name in names}


LEFTOVERS = (
    *("_do_forward", "_do_backward", "_register_hook", "retain_variables"),
    *("is_traceable", "previous_functions", "_get_next_functions"),
)
