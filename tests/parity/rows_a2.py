"""FunctionCtx: what is written later, and what is saved for jvp."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .core import expect, row, says
from .rows_a1 import calling, too_late
from .rules import both_ways, forward_mode, saves, times

X = [1.0, 2.0]


@row("CTX-15", "same", "saved_tensors can't be assigned")
def _(fw):
    def forward(ctx, x):
        try:
            ctx.saved_tensors = ()
        except AttributeError as error:
            seen.append("'saved_tensors'" in str(error))
        return 2 * x

    seen = []
    fw.call(fw.make(forward=forward, backward=lambda ctx, g: g).apply, fw.array(X))
    return seen


@row("CTX-17", "superset", "a later write to a saved array can't change a gradient")
@expect(lambda fw: [jnp.array(X)])
def ctx_17(fw):
    f = fw.make(forward=saves(lambda x: x**2), backward=times(lambda x: 2 * x))
    x = fw.leaf(fw.array(X))
    y = x.clone()
    out = f.apply(y)
    y.add_(1)
    return list(fw.torch.autograd.grad(out.sum(), [x]))


@ctx_17.jaxfn
def _(fw):
    def forward(ctx, x, y):
        ctx.save_for_backward(y)
        return x * y

    f = fw.make(
        forward=forward, backward=lambda ctx, g: (g * ctx.saved_tensors[0], None)
    )
    y = np.array(X, np.float32)
    _, pull = jax.vjp(lambda x: f.apply(x, y), jnp.ones(2))
    y += 1
    return list(pull(jnp.ones(2)))


@row("CTX-19", "same", "save_for_forward refuses what is no array, at the call")
@says("`MyF.forward`")
def _(fw):
    ran = []

    def forward(ctx, x):
        ctx.save_for_forward(x, 3)
        ran.append(True)
        return 2 * x

    f = fw.make(forward=forward, jvp=lambda ctx, t: t).apply
    return [fw.attempt(lambda: fw.call(f, fw.array(X))), list(ran)]


@row("CTX-20", "same", "None keeps its place for jvp, too")
def _(fw):
    seen = {}

    def forward(ctx, x):
        ctx.save_for_forward(x, None, 3 * x)
        return 2 * x

    def jvp(ctx, t):
        x, none, y = ctx.saved_tensors
        seen.update(type=type(ctx.saved_tensors).__name__, none=none)
        return t * (x + 10 * y)

    return [forward_mode(fw, fw.make(forward=forward, jvp=jvp).apply), seen]


@row("CTX-22", "same", "jvp does not see what was saved for backward")
def _(fw):
    seen = {}

    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    def jvp(ctx, t):
        seen["saved"] = ctx.saved_tensors
        return 2 * t

    x = fw.array(X)
    f = fw.make(forward=forward, backward=lambda ctx, g: g, jvp=jvp).apply
    return [fw.jvp(f, [x], [x]), seen]


@row("CTX-23", "same", "each rule sees what was saved for it")
def _(fw):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(10 * x)
        return x**2

    rule = times(lambda x: x)
    f = fw.make(forward=forward, backward=rule, jvp=rule).apply
    return {"jvp": forward_mode(fw, f), "grad": fw.grad(f, fw.array(X))}


@row("CTX-25", "must differ", "save_for_forward in backward is refused")
@expect(lambda fw: too_late("save_for_forward"))
def _(fw):
    return calling(fw, "save_for_forward")


@row("CTX-26", "same", "save_for_forward does no harm where no tangents are")
def _(fw):
    def forward(ctx, x):
        ctx.save_for_forward(x)
        return 2 * x

    f = fw.make(forward=forward, backward=lambda ctx, g: 2 * g, jvp=lambda ctx, t: t)
    return both_ways(fw, f.apply)


@row("CTX-77", "must differ", "set_materialize_grads in backward is refused")
@expect(lambda fw: too_late("set_materialize_grads"))
def _(fw):
    return calling(fw, "set_materialize_grads", False)


@row("CTX-78", "must differ", "so are mark_dirty and mark_non_differentiable")
@expect(
    lambda fw: {
        method: too_late(method) for method in ("mark_dirty", "mark_non_differentiable")
    }
)
def _(fw):
    return {
        method: fw.attempt(lambda method=method: calling(fw, method))
        for method in ("mark_dirty", "mark_non_differentiable")
    }
