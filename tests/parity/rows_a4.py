"""FunctionCtx: materialised gradients and needs_input_grad."""

from __future__ import annotations

from .core import expect, raises, row
from .rows_a3 import gradient_of_marked

X = [1.0, 2.0]


@row("CTX-44", "same", "without materialised gradients, unused outputs give None")
def _(fw):
    return gradient_of_marked(
        fw, lambda ctx, *_: ctx.set_materialize_grads(False), use=lambda outs: outs[0]
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
@raises(TypeError, "set_materialize_grads in `MyF.forward`", "expected a bool", "got 0")
def _(fw):
    f = fw.make(forward=lambda ctx, x: ctx.set_materialize_grads(0)).apply
    return fw.call(f, fw.array(X))


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
@expect(lambda fw: [True, False])
def _(fw):
    seen = []

    def forward(ctx, x):
        seen.append(ctx.materialize_grads)
        ctx.set_materialize_grads(False)
        seen.append(ctx.materialize_grads)
        return 2 * x

    fw.call(fw.make(forward=forward).apply, fw.array(X))
    return seen


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
@expect(
    lambda fw: dict.fromkeys(
        ("forward", "backward"), (True, False, False, False, True, False)
    )
)
def _(fw):
    y = fw.array([7.0])
    return needs(fw, lambda f, x: f(x, 3, y, None, [x], [y]), fw.array(X))


@row("CTX-53", "must differ", "the flags say what is being differentiated by")
@expect(lambda fw: [(True, False)])
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


@row(
    "CTX-54",
    "must differ",
    "there is no grad mode: a plain call needs no gradient",
)
@expect(lambda fw: [(False,)])
def _(fw):
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


@row("CTX-55", "same", "the flag of an integer argument is False")
def _(fw):
    seen = {}

    def setup_context(ctx, inputs, output):
        seen["setup_context"] = ctx.needs_input_grad

    def backward(ctx, g):
        seen["backward"] = ctx.needs_input_grad
        return 2 * g, None

    f = fw.separate(lambda x, i: 2 * x, setup_context, backward=backward)
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

    fw.grad(fw.make(forward=forward, backward=backward).apply, fw.array(X))
    return seen
