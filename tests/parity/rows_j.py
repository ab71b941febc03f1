"""Second derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.test_util import check_grads

from .core import Raises, row


def two(fw):
    return fw.array([2.0])


def saving_input(ctx, x):
    ctx.save_for_backward(x)
    return x**3


def by_input(ctx, g):
    (x,) = ctx.saved_tensors
    return 3 * x**2 * g


def saving_intermediate(ctx, x):
    w = x**2
    ctx.save_for_backward(w)
    return x * w


def by_intermediate(ctx, g):
    (w,) = ctx.saved_tensors
    return 3 * w * g


@row("DBL-01", "same", "backward by operations on a saved input")
def _(fw):
    f = fw.make(forward=saving_input, backward=by_input)
    return [fw.grad(f.apply, two(fw)), fw.grad2(f.apply, two(fw))]


@row("DBL-02", "superset", "a saved intermediate keeps its derivative")
def dbl_02(fw):
    f = fw.make(forward=saving_intermediate, backward=by_intermediate)
    return fw.grad2(f.apply, two(fw))


dbl_02.expect(lambda fw: [6 * two(fw)])


@row("DBL-02b", "superset", "also inside of an expression: 48, where torch gives 24")
def dbl_02b(fw):
    f = fw.make(forward=saving_intermediate, backward=by_intermediate)
    return fw.grad2(lambda x: f.apply(x) * x, two(fw))


dbl_02b.expect(lambda fw: [12 * two(fw) ** 2])


@row("DBL-02c", "superset", "finite differences find no mistake in it")
def dbl_02c(fw):
    f = fw.make(forward=saving_intermediate, backward=by_intermediate)
    return fw.torch.autograd.gradgradcheck(f.apply, fw.leaf(fw.array([2.0], "float64")))


@dbl_02c.jaxfn
def _(fw):
    f = fw.make(forward=saving_intermediate, backward=by_intermediate)

    def run(x):
        return fw.call(f.apply, x)

    # Steps of 1e-2 and the rounding of float32 give errors of about 1e-4 each.
    check_grads(run, (two(fw),), 2, modes=["rev"], eps=1e-2, atol=1e-2, rtol=1e-2)
    return True


dbl_02c.expect(lambda fw: True)


@row("DBL-05", "same", "an input kept as an attribute of ctx")
def _(fw):
    def forward(ctx, x):
        ctx.x = x
        return x**3

    f = fw.make(forward=forward, backward=lambda ctx, g: 3 * ctx.x**2 * g)
    return [fw.grad(f.apply, two(fw)), fw.grad2(f.apply, two(fw))]


@row("DBL-06", "same", "an output kept as an attribute of ctx")
def _(fw):
    def forward(ctx, x):
        ctx.out = fw.np.exp(x)
        return ctx.out

    f = fw.make(forward=forward, backward=lambda ctx, g: ctx.out * g)
    return [fw.grad(f.apply, two(fw)), fw.grad2(f.apply, two(fw))]


@row("DBL-07", "same", "a backward that calls Functions, itself among them")
def _(fw):
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return mul(g, y), mul(g, x)

    mul = fw.make("Mul", forward=forward, backward=backward).apply

    def f(x):
        return mul(mul(x, x), x)

    return [fw.grad(f, two(fw)), fw.grad2(f, two(fw))]


def seconds(fw, forward, *rules):
    """Second derivatives with each of these backward rules, or what went wrong."""
    functions = [fw.make(forward=forward, backward=rule).apply for rule in rules]
    return [fw.attempt(lambda f=f: fw.grad2(f, two(fw))) for f in functions]


@row(
    "DBL-08", "must differ", "a constant backward is zero further on; NumPy is refused"
)
def dbl_08(fw):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    def stopped(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x.detach() * g

    def in_numpy(ctx, g):
        (x,) = ctx.saved_tensors
        return fw.array((2 * x.detach().numpy() * g.detach().numpy()).tolist())

    return seconds(fw, forward, stopped, in_numpy)


@dbl_08.jaxfn
def _(fw):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    def stopped(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * jax.lax.stop_gradient(x) * g

    def in_numpy(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * np.asarray(x) * g

    return seconds(fw, forward, stopped, in_numpy)


@dbl_08.expect
def _(fw):
    return [
        [jnp.zeros(1)],
        Raises(TypeError, "method __array__() was called on traced array"),
    ]
