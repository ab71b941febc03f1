"""Second derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.test_util import check_grads

from .core import Raises, expect, row
from .rules import saves, times, two_orders


def two(fw):
    return fw.array([2.0])


def saving_intermediate(fw):
    """x**3, which saves x**2."""

    def forward(ctx, x):
        w = x**2
        ctx.save_for_backward(w)
        return x * w

    return fw.make(forward=forward, backward=times(lambda w: 3 * w)).apply


@row("DBL-01", "same", "backward by operations on a saved input")
def _(fw):
    f = fw.make(forward=saves(lambda x: x**3), backward=times(lambda x: 3 * x**2))
    return two_orders(fw, f.apply, two(fw))


@row("DBL-02", "superset", "a saved intermediate keeps its derivative")
@expect(lambda fw: [6 * two(fw)])
def _(fw):
    return fw.grad2(saving_intermediate(fw), two(fw))


@row("DBL-02b", "superset", "also inside of an expression: 48, where torch gives 24")
@expect(lambda fw: [12 * two(fw) ** 2])
def _(fw):
    f = saving_intermediate(fw)
    return fw.grad2(lambda x: f(x) * x, two(fw))


@row("DBL-02c", "superset", "finite differences find no mistake in it")
@expect(lambda fw: True)
def dbl_02c(fw):
    f, x = saving_intermediate(fw), fw.leaf(fw.array([2.0], "float64"))
    return fw.torch.autograd.gradgradcheck(f, x)


@dbl_02c.jaxfn
def _(fw):
    f = saving_intermediate(fw)

    def run(x):
        return fw.call(f, x)

    # Steps of 1e-2 and the rounding of float32 give errors of about 1e-4 each.
    check_grads(run, (two(fw),), 2, modes=["rev"], eps=1e-2, atol=1e-2, rtol=1e-2)
    return True


@row("DBL-05", "same", "an input kept as an attribute of ctx")
def _(fw):
    def forward(ctx, x):
        ctx.x = x
        return x**3

    f = fw.make(forward=forward, backward=lambda ctx, g: 3 * ctx.x**2 * g)
    return two_orders(fw, f.apply, two(fw))


@row("DBL-06", "same", "an output kept as an attribute of ctx")
def _(fw):
    def forward(ctx, x):
        ctx.out = fw.np.exp(x)
        return ctx.out

    f = fw.make(forward=forward, backward=lambda ctx, g: ctx.out * g)
    return two_orders(fw, f.apply, two(fw))


@row("DBL-07", "same", "a backward that calls Functions, itself among them")
def _(fw):
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return mul(g, y), mul(g, x)

    forward = saves(lambda x, y: x * y)
    mul = fw.make("Mul", forward=forward, backward=backward).apply
    return two_orders(fw, lambda x: mul(mul(x, x), x), two(fw))


def seconds(fw, *rules):
    """Second derivatives of x**2 by these backward rules, or what went wrong."""
    forward = saves(lambda x: x**2)
    functions = [fw.make(forward=forward, backward=rule).apply for rule in rules]
    return [fw.attempt(lambda f=f: fw.grad2(f, two(fw))) for f in functions]


@row(
    "DBL-08", "must differ", "a constant backward is zero further on; NumPy is refused"
)
@expect(
    lambda fw: [
        [jnp.zeros(1)],
        Raises(TypeError, "method __array__() was called on traced array"),
    ]
)
def dbl_08(fw):
    def in_numpy(ctx, g):
        (x,) = ctx.saved_tensors
        return fw.array((2 * x.detach().numpy() * g.detach().numpy()).tolist())

    return seconds(fw, times(lambda x: 2 * x.detach()), in_numpy)


@dbl_08.jaxfn
def _(fw):
    stopped = times(lambda x: 2 * jax.lax.stop_gradient(x))
    return seconds(fw, stopped, times(lambda x: 2 * np.asarray(x)))
