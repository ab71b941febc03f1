"""`ctx.set_output_grad_dtype`, which torch got in 2.14: the dtypes of gradients."""

from __future__ import annotations

import jax.numpy as jnp

from tests.build import in_style

from .core import Raises, expect, row

X = [1.0, 2.0]
STYLES = ("combined", "separate")


def dtype(x):
    """The name of an array's dtype; None for None."""
    return None if x is None else str(x.dtype).split(".")[-1]


def declaring(fw, declare, seen=None, *, n=1, style="combined", **members):
    """A Function from floats to so many halves, which calls `declare` in forward.

    Backward notes the dtypes that it gets, and shows in its result how it rounds.
    """

    def outputs(x):
        outs = tuple([fw.cast(x, "float16") for _ in range(n)])
        return outs[0] if n == 1 else outs

    def backward(ctx, *grads):
        if seen is not None:
            seen[:] = map(dtype, grads)
        return sum(g / 3 for g in grads if g is not None)

    rules = in_style(style, outputs, lambda ctx, inputs, output: declare(ctx))
    return fw.make(backward=backward, **rules, **members).apply


def declares(fw, *dtypes, materialize=True):
    """A `declare` of these dtypes, which are None or names."""
    given = [None if x is None else getattr(fw.np, x) for x in dtypes]

    def declare(ctx):
        ctx.set_materialize_grads(materialize)
        ctx.set_output_grad_dtype(*given)

    return declare


def gradients(fw, *dtypes, use=None, materialize=True):
    """What backward gets and gives, in both styles."""

    def found(style):
        seen = []
        declare = declares(fw, *dtypes, materialize=materialize)
        f = declaring(fw, declare, seen, n=len(dtypes), style=style)
        if use is not None:
            return [fw.grad(lambda x: f(x)[use], fw.array(X)), seen]
        return [fw.grad(f, fw.array(X)), seen]

    return {style: found(style) for style in STYLES}


@row("NEW-20", "same", "set_output_grad_dtype: the dtype of a gradient", since="2.14")
def _(fw):
    names = ("float32", "float16", "bfloat16")
    return {name: gradients(fw, name) for name in names}


@row("NEW-21", "same", "None is a gradient as it comes", since="2.14")
def _(fw):
    return [gradients(fw, None), gradients(fw, "float32", None)]


@row("NEW-22", "same", "as many dtypes as outputs, in any call", since="2.14")
def _(fw):
    def attempt(run, style, *dtypes):
        f = declaring(fw, declares(fw, *dtypes), n=2, style=style)
        return fw.attempt(lambda: run(f, fw.array(X)))

    half = "float16"
    return [
        attempt(run, style, *dtypes)
        for run in (fw.call, fw.grad)
        for style in STYLES
        for dtypes in ((), (half,), (half, None, None))
    ]


@row("NEW-23", "same", "called twice", since="2.14")
def _(fw):
    def declare(ctx):
        ctx.set_output_grad_dtype()
        ctx.set_output_grad_dtype(None)

    functions = [declaring(fw, declare, style=style) for style in STYLES]
    return [fw.attempt(lambda f=f: fw.grad(f, fw.array(X))) for f in functions]


def without_derivative(fw, at, run):
    """A Function with outputs of each kind, and a dtype for one of them."""
    seen, dtypes = [], [None] * 4
    dtypes[at] = fw.np.float32

    def outputs(x):
        return fw.cast(x, "float16"), x * 2, fw.cast(x > 1, "int32"), "a"

    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.set_output_grad_dtype(*dtypes)

    def backward(ctx, g, *others):
        seen[:] = map(dtype, (g, *others))
        return g / 3

    def first(style):
        rules = in_style(style, outputs, setup_context)
        f = fw.make(backward=backward, **rules).apply
        return fw.attempt(lambda: run(lambda x: f(x)[0], fw.array(X)))

    return [[first(style), seen] for style in STYLES]


@row("NEW-24", "same", "outputs without derivative take None", since="2.14")
def _(fw):
    return without_derivative(fw, 0, fw.grad)


@row("NEW-25", "same", "a dtype for one is refused, in any call", since="2.14")
def _(fw):
    runs = (fw.call, fw.grad)
    return [without_derivative(fw, at, run) for at in (1, 2, 3) for run in runs]


@row("NEW-26", "same", "zeros of an unused output have its dtype", since="2.14")
def _(fw):
    return gradients(fw, "float32", "float32", use=0)


@row("NEW-27", "same", "an unused output may be None", since="2.14")
def _(fw):
    return [
        gradients(fw, "float32", "float32", use=1, materialize=False),
        gradients(fw, None, "bfloat16", use=0, materialize=False),
    ]


@row("NEW-28", "same", "what is no dtype is refused", since="2.14")
def _(fw):
    def attempt(value, style):
        f = declaring(fw, lambda ctx: ctx.set_output_grad_dtype(value), style=style)
        return fw.attempt(lambda: fw.call(f, fw.array(X)))

    return [attempt(x, style) for x in (1, [1], (None,)) for style in STYLES]


@row("NEW-29", "superset", "any name of a dtype will do, as in jax.numpy", since="2.14")
@expect(lambda fw: [[[jnp.full(2, 1 / 3)], ["float32"]]] * 2)
def _(fw):
    def run(value):
        seen = []
        f = declaring(fw, lambda ctx: ctx.set_output_grad_dtype(value), seen)
        return fw.attempt(lambda: [fw.grad(f, fw.array(X)), seen])

    return [run("float32"), run(jnp.dtype("float32"))]


@row("NEW-30", "superset", "an integer or complex dtype is refused early", since="2.14")
@expect(
    lambda fw: [
        Raises(
            TypeError,
            "`MyF.forward` (or setup_context)",
            f"expected a {kind} dtype",
            name,
        )
        for name, kind, _ in WRONG_KINDS
    ]
)
def _(fw):
    def attempt(name, kind):
        def forward(ctx, x):
            ctx.set_output_grad_dtype(getattr(fw.np, name))
            return 1 * x

        f = fw.make(forward=forward, backward=lambda ctx, g: g).apply
        return fw.attempt(lambda: fw.grad(f, fw.array(X, kind)))

    return [attempt(name, of) for name, _, of in WRONG_KINDS]


# The dtype that is asked for, the kind that the output has, and the output's dtype.
WRONG_KINDS = [
    ("int32", "floating", "float32"),
    ("bool", "floating", "float32"),
    ("complex64", "floating", "float32"),
    ("float32", "complexfloating", "complex64"),
]


@row("NEW-31", "same", "a complex gradient has another precision", since="2.14")
def _(fw):
    seen = []

    def forward(ctx, x):
        ctx.set_output_grad_dtype(fw.np.complex64)
        return 1 * x

    def backward(ctx, g):
        seen[:] = [dtype(g)]
        return g / 3

    f = fw.make(forward=forward, backward=backward).apply
    with fw.double():
        return [fw.grad(f, fw.array(X, "complex128")), seen]
