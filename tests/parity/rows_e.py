"""What backward may return."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from .core import Raises, Warns, expect, raises, row, says


def one(fw, backward):
    """The gradient of 2 * x with this backward, at an x of shape (2,)."""
    f = fw.make(forward=lambda ctx, x: 2 * x, backward=backward)
    return fw.grad(f.apply, fw.array([1.0, 2.0]))


def two(fw, backward):
    """The gradients of x + y with this backward."""
    f = fw.make(forward=lambda ctx, x, y: x + y, backward=backward)
    return fw.grad(f.apply, fw.array([1.0]), fw.array([2.0]))


def without_gradient(fw):
    """2 * x, whose backward returns None."""
    return fw.make(forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: None).apply


def zero_with_a_warning():
    return Warns([jnp.zeros(1)], UserWarning, "`MyF.backward` returned None", "missing")


@row("BWD-01", "same", "fewer gradients than arguments")
@says("RuleValueError")
def _(fw):
    return two(fw, lambda ctx, g: g)


@row("BWD-02", "same", "one gradient too many")
def _(fw):
    return one(fw, lambda ctx, g: (g, g))


@row("BWD-03", "same", "None after the last gradient is ignored")
def _(fw):
    return one(fw, lambda ctx, g: (3 * g, None, None))


@row("BWD-04", "same", "None between gradients is not")
def _(fw):
    return one(fw, lambda ctx, g: (g, None, g))


@row("BWD-05", "must differ", "None is a zero gradient, not an undefined one")
@expect(lambda fw: zero_with_a_warning())
def bwd_05(fw):
    f, x, grad = without_gradient(fw), fw.leaf(fw.array([1.0])), fw.torch.autograd.grad
    return [
        fw.attempt(lambda: grad(f(x).sum(), [x])),
        grad(f(x).sum(), [x], allow_unused=True)[0],
    ]


bwd_05.jaxfn(lambda fw: fw.grad(without_gradient(fw), fw.array([1.0])))


@row("BWD-06", "same", "a list is not a tuple of gradients")
def _(fw):
    return {
        "two": fw.attempt(lambda: two(fw, lambda ctx, g: [g, g])),
        "one": fw.attempt(lambda: one(fw, lambda ctx, g: [g])),
    }


@row("BWD-07", "same", "a Python number is no gradient")
@says("RuleTypeError", "`x`")
def _(fw):
    return one(fw, lambda ctx, g: 1.0)


@row("BWD-08", "superset", "a NumPy array is a gradient")
@expect(lambda fw: [np.array([3.0, 4.0], np.float32)])
def _(fw):
    return one(fw, lambda ctx, g: np.array([3.0, 4.0], np.float32))


@row("BWD-09", "same", "a gradient with more dimensions is summed")
def _(fw):
    def ones(*shape):
        return lambda ctx, g: fw.np.ones(shape) * g.sum()

    return [one(fw, ones(3, 2)), one(fw, ones(4, 3, 2)), one(fw, ones(3, 1, 2))]


@row("BWD-11", "same", "a scalar gradient is not spread over a vector")
@says("RuleValueError", "`x`", "expected f32[2]")
def _(fw):
    return one(fw, lambda ctx, g: g.sum())


@row("BWD-12", "same", "nor is one of length 1")
def _(fw):
    return one(fw, lambda ctx, g: g[:1])


@row("BWD-13", "same", "a gradient whose shape can't be reduced")
@says("expected f32[2]")
def _(fw):
    return {
        "longer": fw.attempt(lambda: one(fw, lambda ctx, g: fw.np.ones(3))),
        "transposed": fw.attempt(lambda: one(fw, lambda ctx, g: fw.np.ones((2, 3)))),
    }


@row("BWD-15", "same", "float and integer dtypes are cast to the argument's")
def _(fw):
    def cast(dtype):
        # 1/3 is not the same number in half precision
        return lambda ctx, g: fw.array([1 / 3, 2.0], dtype)

    return [one(fw, cast("float16")), one(fw, cast("int32"))]


@row("BWD-17", "must differ", "a complex gradient of a real argument has own words")
@raises(
    TypeError,
    "`MyF.backward` returned a complex gradient for a real argument",
    "index 0 (`x`)",
    "f32[2]",
    "Return its real part",
)
def _(fw):
    return one(fw, lambda ctx, g: g * 1j)


@row("BWD-19", "same", "a dict or a generator is no gradient")
def _(fw):
    return {
        "dict": fw.attempt(lambda: one(fw, lambda ctx, g: {"a": g})),
        "generator": fw.attempt(lambda: one(fw, lambda ctx, g: (g for _ in "a"))),
    }


@row("BWD-20", "same", "None for the first argument, a gradient for the second")
def _(fw):
    return two(fw, lambda ctx, g: (None, 3 * g))


@row("BWD-21", "same", "an empty tuple for one argument")
def _(fw):
    return one(fw, lambda ctx, g: ())


@row("BWD-22", "must differ", "None inside a graph is zero further up, too")
@expect(lambda fw: zero_with_a_warning())
def bwd_22(fw):
    x = fw.leaf(fw.array([3.0]))
    without_gradient(fw)(x**2).sum().backward()
    return [x.grad]


bwd_22.jaxfn(lambda fw: fw.grad(lambda x: without_gradient(fw)(x**2), fw.array([3.0])))


@row("BWD-24", "same", "backward with a parameter too many", own_words=True)
def _(fw):
    def backward(ctx, a, b):
        return a

    return one(fw, backward)


@row("BWD-25", "same", "the gradient of an output has its dtype, whoever used it")
def _(fw):
    seen = []

    def backward(ctx, g):
        seen.append(str(g.dtype).split(".")[-1])
        return g

    f = fw.make(forward=lambda ctx, x: 2 * x, backward=backward)
    half = fw.np.float16

    def used(x):
        y = f.apply(x)
        return y.to(half) if fw.name == "torch" else y.astype(half)

    return [fw.grad(used, fw.array([1.0])), seen]


@row("BWD-27", "must differ", "both errors count all arguments, and name them")
def bwd_27(fw):
    wrong = fw.make(
        forward=lambda ctx, k, x: k * x, backward=lambda ctx, g: (None, fw.np.ones(3))
    )
    stray = fw.make(
        forward=lambda ctx, x, k, y: x * k + y, backward=lambda ctx, g: (g, g, g)
    )
    x = fw.array([1.0, 2.0])
    return {
        "shape": fw.attempt(lambda: fw.grad(lambda x: wrong.apply(3, x), x)),
        "static": fw.attempt(lambda: fw.grad(lambda x: stray.apply(x, 3, x), x)),
    }


@bwd_27.expect
def _(fw):
    return {
        "shape": Raises(
            ValueError,
            "Function MyFBackward returned an invalid gradient at index 1 - got [3] "
            "but expected shape compatible with [2]",
            "index 1 (`x`)",
        ),
        "static": Raises(
            RuntimeError,
            "function MyFBackward returned a gradient different than None at position "
            "2, but the corresponding forward input was not a Variable",
            "`MyF.backward`",
            "index 1 (`k`)",
        ),
    }


@row("BWD-29", "same", "one array may be the gradient of two arguments")
def _(fw):
    return two(fw, lambda ctx, g: (g, g))
