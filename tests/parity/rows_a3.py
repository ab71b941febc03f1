"""FunctionCtx: marks."""

from __future__ import annotations

import jax.numpy as jnp

from .core import Raises, Warns, expect, raises, row, says

X = [1.0, 2.0]


def dirty(fw, change):
    """A Function that marks its input dirty and returns `change(x)`."""

    def forward(ctx, x):
        out = change(x)
        ctx.mark_dirty(x)
        return out

    return fw.make(forward=forward, backward=lambda ctx, g: 5 * g).apply


@row("CTX-27", "must differ", "a dirty input is consumed; the new value is returned")
@expect(
    lambda fw: {
        "value": jnp.array(X) + 1,
        "old": Raises(RuntimeError, "deleted"),
        "grad": [jnp.full(2, 15.0)],
    }
)
def _(fw):
    f = dirty(fw, lambda x: fw.add(x, 1))
    x = fw.array(X)
    old = x.clone() if fw.name == "torch" else x + 0
    new = fw.call(f, old) if fw.name == "torch" else f(old)
    return {
        "value": new,
        "old": fw.attempt(lambda: old + 0),
        "grad": fw.grad(lambda x: f(3 * x), x),
    }


NOT_AN_INPUT = (
    "ctx.mark_dirty() received a tensor that was not an input",
    "`MyF.forward` (or setup_context): expected arguments of forward",
    "return the new value",
)


def dirty_output(fw, change):
    def forward(ctx, x):
        out = change(x)
        ctx.mark_dirty(out)
        return out

    f = fw.make(forward=forward, backward=lambda ctx, g: g).apply
    return fw.grad(f, fw.array(X))


@row("CTX-28", "must differ", "marking an output dirty is refused, not warned of")
@expect(lambda fw: Raises(ValueError, *NOT_AN_INPUT))
def _(fw):
    return dirty_output(fw, lambda x: 2 * x)


@row("CTX-28b", "same", "so is a part of any other array")
def _(fw):
    return dirty_output(fw, lambda x: (1 * x).reshape(2))


@row("CTX-30", "superset", "an argument of grad may be marked dirty")
@expect(lambda fw: [jnp.full(2, 5.0)])
def _(fw):
    return fw.grad(dirty(fw, lambda x: fw.add(x, 1)), fw.array(X))


@row("CTX-31", "superset", "a part of an array may be marked, with two outputs")
@expect(lambda fw: [jnp.array([9.0, 0.0])])
def _(fw):
    def forward(ctx, x):
        twice = 2 * x
        out = fw.add(x, 1)
        ctx.mark_dirty(x)
        return out, twice

    f = fw.make(forward=forward, backward=lambda ctx, g, h: g + 2 * h).apply
    return fw.grad(lambda x: f((3 * x)[:1]), fw.array(X))


@row("CTX-32", "same", "mark_dirty refuses what is no array")
@says("TypeError")
def _(fw):
    f = fw.make(forward=lambda ctx, x: ctx.mark_dirty(3)).apply
    return fw.call(f, fw.array(X))


@row("CTX-33", "must differ", "an input can't be written to without a mark")
@expect(lambda fw: Raises(TypeError, "immutable"))
def _(fw):
    def forward(ctx, x):
        x[0] = 5.0
        return 2 * x

    f = fw.make(forward=forward, backward=lambda ctx, g: g).apply
    return fw.call(f, fw.array(X))


@row("CTX-34", "same", "forward sees what it has marked and saved; backward does not")
def _(fw):
    seen = {}
    names = ("dirty_tensors", "non_differentiable", "to_save", "saved_for_forward")

    def look(ctx):
        return {name: len(getattr(ctx, name) or ()) for name in names}

    def forward(ctx, x, y):
        out = fw.add(x, 1)
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        ctx.save_for_forward(x, y)
        marked = 2 * y
        ctx.mark_non_differentiable(marked)
        seen["forward"] = look(ctx)
        return out, marked

    def backward(ctx, g, _):
        seen["backward"] = look(ctx)
        return g, None

    f = fw.make(forward=forward, backward=backward).apply
    fw.grad(lambda x: f(1 * x, fw.array(X)), fw.array(X))
    return seen


def gradient_of_marked(fw, mark, *, use=lambda outputs: outputs):
    """Gradients of x + 2x, where the second output may be marked."""
    seen = {}

    def forward(ctx, x):
        a, b = 1 * x, 2 * x
        mark(ctx, x, a, b)
        return a, b

    def backward(ctx, ga, gb):
        seen["given"] = [None if g is None else tuple(g.shape) for g in (ga, gb)]
        zero = fw.np.zeros(2)
        return (zero if ga is None else ga) + 100 * (zero if gb is None else gb)

    f = fw.make(forward=forward, backward=backward).apply
    return [fw.grad(lambda x: use(f(x)), fw.array(X)), seen]


@row("CTX-35", "same", "a marked output has no derivative; its gradient is zeros")
def _(fw):
    return gradient_of_marked(fw, lambda ctx, x, a, b: ctx.mark_non_differentiable(b))


@row("CTX-36", "must differ", "marking what is not an output is refused")
@raises(
    ValueError,
    "`MyF.forward` (or setup_context) called ctx.mark_non_differentiable with a "
    "value that is not an output",
    "Mark the returned arrays",
)
def _(fw):
    return gradient_of_marked(fw, lambda ctx, x, *_: ctx.mark_non_differentiable(3 * x))


@row("CTX-37", "same", "an input that is returned and marked keeps its own derivative")
def _(fw):
    def forward(ctx, x):
        ctx.mark_non_differentiable(x)
        return x

    f = fw.make(forward=forward, backward=lambda ctx, g: 100 * g).apply
    x = fw.array(X)
    return [fw.call(f, x), fw.grad(lambda x: f(x) + 3 * x, x)]


@row("CTX-38", "same", "integer outputs have no derivative; their gradient is zeros")
def _(fw):
    seen = []

    def forward(ctx, x):
        return 2 * x, fw.cast(x, "int32"), x > 1

    def backward(ctx, g, *others):
        seen[:] = [(str(o.dtype).split(".")[-1], tuple(o.shape)) for o in others]
        return 2 * g + sum(fw.cast(o, "float32") for o in others)

    f = fw.make(forward=forward, backward=backward).apply
    return [fw.grad(f, fw.array(X)), seen]


def only_marked(fw):
    def forward(ctx, x):
        out = 2 * x
        ctx.mark_non_differentiable(out)
        return out

    return fw.make(forward=forward, backward=lambda ctx, g: 2 * g).apply


@row("CTX-39", "must differ", "the gradient of a marked output is zero, not an error")
@expect(lambda fw: [jnp.zeros(2)])
def ctx_39(fw):
    x = fw.leaf(fw.array(X))
    only_marked(fw)(x).sum().backward()
    return [x.grad]


ctx_39.jaxfn(lambda fw: fw.grad(only_marked(fw), fw.array(X)))


@row("CTX-41", "same", "mark_non_differentiable refuses what is no array")
@says("TypeError")
def _(fw):
    f = fw.make(forward=lambda ctx, x: ctx.mark_non_differentiable(3)).apply
    return fw.call(f, fw.array(X))


@row("CTX-42", "superset", "of two calls the last counts; jaxfn warns of it")
@expect(
    lambda fw: Warns(
        [[jnp.ones(2)], {"given": [(2,), (2,)]}],
        UserWarning,
        "`MyF.forward` (or setup_context) called ctx.mark_non_differentiable more than",
    )
)
def _(fw):
    def mark(ctx, x, a, b):
        ctx.mark_non_differentiable(a)
        ctx.mark_non_differentiable(b)

    return gradient_of_marked(fw, mark)
