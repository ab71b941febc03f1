"""FunctionCtx: marks, materialised gradients and needs_input_grad."""

from __future__ import annotations

import jax.numpy as jnp

from .core import Raises, Warns, row

X = [1.0, 2.0]


def dirty(fw, change):
    """A Function that marks its input dirty and returns `change(x)`."""

    def forward(ctx, x):
        out = change(x)
        ctx.mark_dirty(x)
        return out

    return fw.make(forward=forward, backward=lambda ctx, g: 5 * g).apply


@row("CTX-27", "must differ", "a dirty input is consumed; the new value is returned")
def ctx_27(fw):
    f = dirty(fw, lambda x: fw.add(x, 1))
    x = fw.array(X)
    old = x.clone() if fw.name == "torch" else x + 0
    new = fw.call(f, old) if fw.name == "torch" else f(old)
    return {
        "value": new,
        "old": fw.attempt(lambda: old + 0),
        "grad": fw.grad(lambda x: f(3 * x), x),
    }


@ctx_27.expect
def _(fw):
    return {
        "value": jnp.array(X) + 1,
        "old": Raises(RuntimeError, "deleted"),
        "grad": [jnp.full(2, 15.0)],
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
def ctx_28(fw):
    return dirty_output(fw, lambda x: 2 * x)


@ctx_28.expect
def _(fw):
    return Raises(ValueError, *NOT_AN_INPUT)


@row("CTX-28b", "same", "so is a part of any other array")
def _(fw):
    return dirty_output(fw, lambda x: (1 * x).reshape(2))


@row("CTX-30", "superset", "an argument of grad may be marked dirty")
def ctx_30(fw):
    return fw.grad(dirty(fw, lambda x: fw.add(x, 1)), fw.array(X))


@ctx_30.expect
def _(fw):
    return [jnp.full(2, 5.0)]


@row("CTX-31", "superset", "a part of an array may be marked, with two outputs")
def ctx_31(fw):
    def forward(ctx, x):
        twice = 2 * x
        out = fw.add(x, 1)
        ctx.mark_dirty(x)
        return out, twice

    f = fw.make(forward=forward, backward=lambda ctx, g, h: g + 2 * h).apply
    return fw.grad(lambda x: f((3 * x)[:1]), fw.array(X))


@ctx_31.expect
def _(fw):
    return [jnp.array([9.0, 0.0])]


@row("CTX-32", "same", "mark_dirty refuses what is no array")
def _(fw):
    f = fw.make(forward=lambda ctx, x: ctx.mark_dirty(3)).apply
    return fw.call(f, fw.array(X))


@row("CTX-33", "must differ", "an input can't be written to without a mark")
def ctx_33(fw):
    def forward(ctx, x):
        x[0] = 5.0
        return 2 * x

    f = fw.make(forward=forward, backward=lambda ctx, g: g).apply
    return fw.call(f, fw.array(X))


@ctx_33.expect
def _(fw):
    return Raises(TypeError, "immutable")


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


def gradient_of_marked(fw, mark, *, use):
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
    return [fw.grad(lambda x: use(*f(x)), fw.array(X)), seen]


@row("CTX-35", "same", "a marked output has no derivative; its gradient is zeros")
def _(fw):
    return gradient_of_marked(
        fw, lambda ctx, x, a, b: ctx.mark_non_differentiable(b), use=lambda a, b: (a, b)
    )


@row("CTX-36", "must differ", "marking what is not an output is refused")
def ctx_36(fw):
    return gradient_of_marked(
        fw,
        lambda ctx, x, a, b: ctx.mark_non_differentiable(3 * x),
        use=lambda a, b: (a, b),
    )


@ctx_36.expect
def _(fw):
    return Raises(
        ValueError,
        "`MyF.forward` (or setup_context) called ctx.mark_non_differentiable with a "
        "value that is not an output",
        "Mark what you return",
    )


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
def ctx_39(fw):
    x = fw.leaf(fw.array(X))
    only_marked(fw)(x).sum().backward()
    return [x.grad]


@ctx_39.jaxfn
def _(fw):
    return fw.grad(only_marked(fw), fw.array(X))


@ctx_39.expect
def _(fw):
    return [jnp.zeros(2)]


@row("CTX-41", "same", "mark_non_differentiable refuses what is no array")
def _(fw):
    f = fw.make(forward=lambda ctx, x: ctx.mark_non_differentiable(3)).apply
    return fw.call(f, fw.array(X))


@row("CTX-42", "superset", "of two calls the last counts; jaxfn warns of it")
def ctx_42(fw):
    def mark(ctx, x, a, b):
        ctx.mark_non_differentiable(a)
        ctx.mark_non_differentiable(b)

    return gradient_of_marked(fw, mark, use=lambda a, b: (a, b))


@ctx_42.expect
def _(fw):
    return Warns(
        [[jnp.ones(2)], {"given": [(2,), (2,)]}],
        UserWarning,
        "`MyF.forward` (or setup_context) called ctx.mark_non_differentiable more than",
    )


@row("CTX-44", "same", "without materialised gradients, unused outputs give None")
def _(fw):
    return gradient_of_marked(
        fw,
        lambda ctx, *_: ctx.set_materialize_grads(False),
        use=lambda a, b: a,
    )


@row("CTX-45", "same", "by default they give zeros of their shape and dtype")
def _(fw):
    seen = []

    def backward(ctx, g, unused):
        seen.append((str(unused.dtype).split(".")[-1], tuple(unused.shape)))
        return g + 100 * fw.cast(unused.sum(), "float32")

    def forward(ctx, x):
        return 1 * x, fw.cast(x.reshape(2, 1), "float16")

    f = fw.make(forward=forward, backward=backward).apply
    return [fw.grad(lambda x: f(x)[0], fw.array(X)), seen]


@row("CTX-47", "must differ", "set_materialize_grads takes a bool, and says so")
def ctx_47(fw):
    f = fw.make(forward=lambda ctx, x: ctx.set_materialize_grads(0)).apply
    return fw.call(f, fw.array(X))


@ctx_47.expect
def _(fw):
    return Raises(
        TypeError, "set_materialize_grads in `MyF.forward`", "expected a bool", "got 0"
    )


@row("CTX-48", "same", "tangents are materialised too, or not")
def _(fw):
    def tangents(flag):
        def forward(ctx, x, y):
            ctx.set_materialize_grads(flag)
            return x + y

        def jvp(ctx, s, t):
            seen.append(t is None)
            return s if t is None else s + 100 * t

        f = fw.make(forward=forward, jvp=jvp).apply
        x = fw.array(X)
        return fw.jvp(f, [x, fw.array(X)], [3 * fw.np.ones_like(x), None])

    seen = []
    return [tangents(True), tangents(False), seen]


@row("CTX-49", "superset", "ctx.materialize_grads can be read")
def ctx_49(fw):
    seen = []

    def forward(ctx, x):
        seen.append(ctx.materialize_grads)
        ctx.set_materialize_grads(False)
        seen.append(ctx.materialize_grads)
        return 2 * x

    fw.call(fw.make(forward=forward).apply, fw.array(X))
    return seen


@ctx_49.expect
def _(fw):
    return [True, False]


@row("CTX-51", "same", "a private flag: None for what has no derivative, zeros else")
def _(fw):
    seen = []

    def forward(ctx, x):
        ctx._materialize_non_diff_grads = False
        marked = 3 * x
        ctx.mark_non_differentiable(marked)
        return 1 * x, 2 * x, marked, fw.cast(x, "int32")

    def backward(ctx, g, unused, marked, integer):
        seen[:] = [marked, integer]
        return g + 100 * unused

    f = fw.make(forward=forward, backward=backward).apply
    return [fw.grad(lambda x: f(x)[0], fw.array(X)), seen]


def needs(fw, call, *xs):
    """What ctx.needs_input_grad is in forward and backward."""
    seen = {}

    def forward(ctx, x, *rest):
        # The first time: jaxfn may trace forward again, to see how much it can save.
        seen.setdefault("forward", ctx.needs_input_grad)
        return 2 * x

    def backward(ctx, g):
        seen["backward"] = ctx.needs_input_grad
        return 2 * g, *[None] * (len(ctx.needs_input_grad) - 1)

    f = fw.make(forward=forward, backward=backward).apply
    fw.grad(lambda *xs: call(f, *xs), *xs)
    return seen


@row("CTX-52", "superset", "one flag for each argument; also for one that holds arrays")
def ctx_52(fw):
    y = fw.array([7.0])
    return needs(fw, lambda f, x: f(x, 3, y, None, [x], [y]), fw.array(X))


@ctx_52.expect
def _(fw):
    flags = (True, False, False, False, True, False)
    return {"forward": flags, "backward": flags}


@row("CTX-53", "must differ", "the flags say what is being differentiated by")
def ctx_53(fw):
    seen = []

    def forward(ctx, x, y):
        seen.append(ctx.needs_input_grad)
        return x * y

    f = fw.make(forward=forward, backward=lambda ctx, g: (g, g)).apply
    x, y = fw.leaf(fw.array(X)), fw.leaf(fw.array(X))
    fw.torch.autograd.grad(f(x, y).sum(), [x])
    return seen


@ctx_53.jaxfn
def _(fw):
    seen = needs(fw, lambda f, x: f(x, fw.array(X)), fw.array(X))
    return [seen["forward"]]


@ctx_53.expect
def _(fw):
    return [(True, False)]


@row(
    "CTX-54",
    "must differ",
    "there is no grad mode: a plain call needs no gradient",
)
def ctx_54(fw):
    seen = []

    def forward(ctx, x):
        seen.append(ctx.needs_input_grad)
        return 2 * x

    f = fw.make(forward=forward, backward=lambda ctx, g: 2 * g).apply
    if fw.name == "torch":
        with fw.torch.no_grad():
            f(fw.leaf(fw.array(X)))
    else:
        fw.call(f, fw.array(X))
    return seen


@ctx_54.expect
def _(fw):
    return [(False,)]


@row("CTX-55", "same", "the flag of an integer argument is False")
def _(fw):
    seen = {}

    def setup_context(ctx, inputs, output):
        seen["setup_context"] = ctx.needs_input_grad

    def backward(ctx, g):
        seen["backward"] = ctx.needs_input_grad
        return 2 * g, None

    f = fw.make(
        forward=lambda x, i: 2 * x, setup_context=setup_context, backward=backward
    )
    return [fw.grad(f.apply, fw.array(X), fw.array([0, 1], "int32")), seen]


@row("CTX-56", "same", "ctx.needs_input_grad may be assigned, for backward too")
def _(fw):
    seen = []

    def forward(ctx, x):
        ctx.needs_input_grad = (False, "x")
        seen.append(ctx.needs_input_grad)
        return 2 * x

    def backward(ctx, g):
        seen.append(ctx.needs_input_grad)
        return 2 * g

    f = fw.make(forward=forward, backward=backward).apply
    fw.grad(f, fw.array(X))
    return seen
