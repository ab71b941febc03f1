"""More of `set_output_grad_dtype`; `input_grad_buffers`, which torch got in 2.15."""

from __future__ import annotations

import jax.numpy as jnp

from tests.build import in_style, nothing

from . import transforms
from .core import EAGER, expect, raises, row
from .rows_l2 import STYLES, X, declares, declaring, dtype
from .rules import forward_mode, times

# ---- set_output_grad_dtype


@row("NEW-32", "same", "the derivative of a gradient with a dtype", since="2.14")
def _(fw):
    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.set_output_grad_dtype(fw.np.float32)

    def run(style):
        rules = in_style(style, lambda x: fw.cast(x**2, "float16"), save)
        f = fw.make(backward=times(lambda x: 2 * x / 3), **rules).apply
        x = fw.array(X)
        return [
            fw.grad(lambda x: f(x) ** 2, x),
            fw.grad2(f, x),
            fw.grad2(lambda x: f(x) ** 2, x),
        ]

    return [run(style) for style in STYLES]


@row("NEW-33", "same", "under torch.func", since="2.14")
def _(fw):
    seen = []
    f = declaring(fw, declares(fw, "float32"), seen, style="separate")
    return [fw.func_grad(f, fw.array(X)), seen]


@row("NEW-34", "superset", "under vmap", modes=EAGER, since="2.14")
@expect(lambda fw: [jnp.full(2, 1 / 3), ["float32"]])
def _(fw):
    seen, func = [], transforms.func(fw)
    separate = {"style": "separate", "generate_vmap_rule": True}
    f = declaring(fw, declares(fw, "float32"), seen, **separate)
    grad = func.grad(lambda x: fw.cast(f(x), "float32"))
    return [func.vmap(grad)(fw.array(X)), seen]


@row("NEW-35", "same", "tangents keep the dtype of the output", since="2.14")
def _(fw):
    seen = []

    def jvp(ctx, t):
        return fw.cast(t, "float16") / 3

    f = declaring(fw, declares(fw, "float32"), seen, jvp=jvp)
    return [forward_mode(fw, f), fw.grad(f, fw.array(X)), seen]


@row("NEW-36", "must differ", "JAX's gradient has the output's dtype", since="2.14")
@expect(
    lambda fw: [
        [jnp.ones(2), ["float32"]],
        [jnp.full(2, 3 * (jnp.float16(1) / 3).astype("float32")), ["float16"]],
    ]
)
def _(fw):
    def run(dtype):
        seen = []
        f = declaring(fw, declares(fw, dtype), seen)
        exact = fw.array([1 + 2**-15] * 2)
        # JAX refuses another dtype than the output's.
        ct = exact if fw.name == "torch" else fw.cast(exact, "float16")
        return [3 * fw.vjp(f, [fw.array(X)], [ct])[0], seen]

    return [run("float32"), run(None)]


@row("NEW-37", "must differ", "a call in backward is too late", since="2.14")
@raises(RuntimeError, "`MyF.backward` called ctx.set_output_grad_dtype")
def _(fw):
    def backward(ctx, g):
        ctx.set_output_grad_dtype(fw.np.float32)
        return g / 3

    forward = lambda ctx, x: fw.cast(x, "float16")  # noqa: E731
    f = fw.make(forward=forward, backward=backward).apply
    return fw.grad(f, fw.array(X))


@row("NEW-38", "same", "a context shows the dtypes in forward", since="2.14")
def _(fw):
    shown = []

    def declare(ctx):
        shown.append(ctx.output_grad_dtypes)
        ctx.set_output_grad_dtype(None)
        shown.append(ctx.output_grad_dtypes)

    def backward(ctx, g):
        shown.append(ctx.output_grad_dtypes)
        return g

    def forward(ctx, x):
        shown.clear()
        declare(ctx)
        return 1 * x

    fw.grad(fw.make(forward=forward, backward=backward).apply, fw.array(X))
    return shown


@row("NEW-39", "same", "by hand, gradients come as they are given", since="2.14")
def _(fw):
    cls = fw.make(forward=lambda ctx, x: x, backward=lambda ctx, g: g)
    ctx = cls._backward_cls()
    ctx.set_output_grad_dtype(fw.np.float32)
    half = fw.cast(fw.array(X), "float16")
    again = fw.attempt(lambda: ctx.set_output_grad_dtype(fw.np.float32))
    return [dtype(ctx.apply(half)), len(ctx.output_grad_dtypes), again]


@row("NEW-40", "superset", "a FunctionCtx notes the dtypes", since="2.14")
@expect(lambda fw: {"output_grad_dtypes": (None, None)})
def _(fw):
    ctx = fw.FunctionCtx()
    ctx.set_output_grad_dtype(None, None)
    return vars(ctx)


# ---- input_grad_buffers


def reading(fw, seen, **members):
    """The identity, whose backward reads the buffers of three arguments."""

    def backward(ctx, g):
        found = ctx.input_grad_buffers
        seen.append([type(found).__name__, [x is None for x in found]])
        return 3 * g, None, None

    rules = {"setup_context": nothing, "backward": backward, **members}
    return fw.make(forward=lambda x, k, y: x * k, **rules)


@row("NEW-41", "same", "input_grad_buffers: None for each argument", since="2.15")
def _(fw):
    seen = []
    f = reading(fw, seen).apply
    return [fw.grad(lambda x: f(x, 2, x), fw.array(X)), seen]


@row("NEW-42", "must differ", "JAX has no buffer for the second use", since="2.15")
@expect(lambda fw: [[jnp.full(2, 6.0)], [["tuple", [True] * 3]] * 2])
def _(fw):
    seen = []
    f = reading(fw, seen).apply
    return [fw.grad(lambda x: f(x, 2, x) + f(x, 3, x), fw.array(X)), seen]


@row("NEW-43", "same", "only backward may read it", since="2.15")
def _(fw):
    def read(ctx, *_):
        return ctx.input_grad_buffers

    def attempt(run, f):
        return fw.attempt(lambda: run(lambda x: f.apply(x, 2, x), fw.array(X)))

    by_hand = reading(fw, [])._backward_cls()
    separate = reading(fw, [], setup_context=read)
    combined = fw.make(forward=read)
    return {
        "forward": [attempt(run, combined) for run in (fw.call, fw.grad)],
        "setup_context": [attempt(run, separate) for run in (fw.call, fw.grad)],
        "jvp": attempt(lambda f, x: fw.jvp(f, [x], [x]), reading(fw, [], jvp=read)),
        "by hand": fw.attempt(lambda: by_hand.input_grad_buffers),
        "apply by hand": fw.attempt(lambda: by_hand.apply(fw.array(X))),
    }


@row("NEW-44", "superset", "of a gradient that is differentiated", since="2.15")
@expect(lambda fw: [[jnp.full(2, 18.0)], [jnp.full(2, 3.0)], [["tuple", [True] * 3]]])
def _(fw):
    seen = []
    f = reading(fw, seen).apply
    return [
        fw.attempt(lambda: fw.grad2(lambda x: f(x, 2, x) ** 2, fw.array(X))),
        fw.attempt(lambda: fw.func_grad(lambda x: f(x, 2, x), fw.array(X))),
        seen[-1:],
    ]


@row("NEW-45", "same", "it can't be assigned", own_words=True, since="2.15")
def _(fw):
    def forward(ctx, x):
        ctx.input_grad_buffers = (x,)
        return x

    f = fw.make(forward=forward).apply
    return [
        fw.attempt(lambda: fw.call(f, fw.array(X))),
        hasattr(fw.FunctionCtx(), "input_grad_buffers"),
    ]
