"""The transformations of torch.func, and JAX's, on first and second derivatives."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp

from tests.build import saving

from .core import expect, raises, row
from .rules import saves, times
from .transforms import func


def plain_cube(x):
    return x**3


RULE = times(lambda x: 3 * x**2)
REVERSE = {"forward": plain_cube, "setup_context": saving(), "backward": RULE}


def cube(fw, **members):
    """x**3 with all rules, in the separate style."""
    return fw.make("Cube", **REVERSE, jvp=RULE, **members).apply


def reverse_cube(fw):
    """x**3 without a jvp."""
    return fw.make("Cube", **REVERSE).apply


def old_cube(fw):
    """x**3 in the combined style."""
    forward = saves(plain_cube)
    return fw.make("OldCube", forward=forward, backward=RULE, jvp=RULE).apply


def scalar(fw):
    return fw.array(2.0)


def vector(fw):
    return fw.array([2.0, 3.0])


ONE = jnp.float32(1)


@row("FUNC-01", "superset", "the combined style works in all transformations")
def func_01(fw):
    f, t = old_cube(fw), func(fw)
    x, one = scalar(fw), fw.array(1.0)
    return {
        "grad": fw.attempt(lambda: fw.call(t.grad(f), x)),
        "vmap": fw.attempt(lambda: fw.call(t.vmap(f), vector(fw))),
        "jvp": fw.attempt(lambda: fw.call(lambda x: t.jvp(f, (x,), (one,)), x)),
        "jacrev": fw.attempt(lambda: fw.call(t.jacrev(f), vector(fw))),
    }


@func_01.expect
def _(fw):
    x, xs = scalar(fw), vector(fw)
    return {
        "grad": jax.grad(plain_cube)(x),
        "vmap": xs**3,
        "jvp": jax.jvp(plain_cube, (x,), (ONE,)),
        "jacrev": jax.jacrev(plain_cube)(xs),
    }


@row("FUNC-02", "same", "grad")
def _(fw):
    return fw.call(func(fw).grad(cube(fw)), scalar(fw))


@row("FUNC-03", "same", "vjp")
def _(fw):
    def run(x, ct):
        out, pull = func(fw).vjp(cube(fw), x)
        return out, pull(ct)

    return fw.call(run, vector(fw), fw.array([1.0, 10.0]))


@row("FUNC-04", "same", "jvp")
def _(fw):
    def run(x, t):
        return func(fw).jvp(cube(fw), (x,), (t,))

    return fw.call(run, vector(fw), fw.array([1.0, 10.0]))


def tangent(fw, f):
    """The tangent for 1: a derivative in forward mode."""

    def run(x):
        return func(fw).jvp(f, (x,), (fw.np.ones_like(x),))[1]

    return run


@row(
    "FUNC-05", "must differ", "without a jvp JAX refuses, with torch's words in a note"
)
@raises(
    TypeError,
    "can't apply forward-mode autodiff (jvp) to a custom_vjp function",
    "You must implement the jvp function for custom autograd.Function to use it "
    "with forward mode AD.",
    "`Cube` has no jvp",
)
def _(fw):
    return fw.call(tangent(fw, reverse_cube(fw)), scalar(fw))


@row("FUNC-06", "same", "grad of grad")
def _(fw):
    t = func(fw)
    return [fw.call(t.grad(t.grad(f(fw))), scalar(fw)) for f in (cube, reverse_cube)]


@row("FUNC-07", "same", "vmap with generate_vmap_rule")
def _(fw):
    return fw.call(func(fw).vmap(cube(fw, generate_vmap_rule=True)), vector(fw))


@row("FUNC-08", "superset", "gradients of each example, also without a vmap rule")
@expect(lambda fw: [jax.vmap(jax.grad(plain_cube))(vector(fw))] * 2)
def _(fw):
    t = func(fw)

    def each(f):
        return fw.attempt(lambda: fw.call(t.vmap(t.grad(f)), vector(fw)))

    return [each(cube(fw, generate_vmap_rule=True)), each(cube(fw))]


@row("FUNC-09", "same", "jacrev, which batches backward")
def _(fw):
    return fw.call(func(fw).jacrev(reverse_cube(fw)), vector(fw))


@row("FUNC-10", "superset", "jacfwd, also without a vmap rule")
@expect(lambda fw: [jax.jacfwd(plain_cube)(vector(fw))] * 2)
def _(fw):
    def jacobian(f):
        return fw.attempt(lambda: fw.call(func(fw).jacfwd(f), vector(fw)))

    return [jacobian(cube(fw, generate_vmap_rule=True)), jacobian(cube(fw))]


@row("FUNC-11", "superset", "hessian, also without a vmap rule or a jvp")
@expect(lambda fw: [jax.hessian(lambda x: (x**3).sum())(vector(fw))] * 3)
def _(fw):
    def hessian(f):
        run = func(fw).hessian(lambda x: f(x).sum())
        return fw.attempt(lambda: fw.call(run, vector(fw)))

    return [
        hessian(cube(fw, generate_vmap_rule=True)),
        hessian(cube(fw)),
        hessian(reverse_cube(fw)),
    ]


def nested(fw, f, outer, inner):
    t = func(fw)
    run = getattr(t, outer)(getattr(t, inner)(lambda x: f(x).sum()))
    return fw.attempt(lambda: fw.call(run, vector(fw)))


ORDERS = ["jacrev of jacrev", "jacfwd of jacfwd", "jacrev of jacfwd"]


@row("FUNC-12", "superset", "jacfwd of jacfwd is right; torch's is zero")
@expect(lambda fw: dict.fromkeys(ORDERS, jnp.diag(6 * vector(fw))))
def _(fw):
    f = cube(fw, generate_vmap_rule=True)
    return {order: nested(fw, f, *order.split(" of ")) for order in ORDERS}


@row("FUNC-12b", "superset", "jvp of jvp is right; torch's is zero")
@expect(lambda fw: tangent(fw, tangent(fw, plain_cube))(scalar(fw)))
def _(fw):
    f = cube(fw)
    return fw.call(tangent(fw, tangent(fw, f)), scalar(fw))


@row("FUNC-13", "same", "jvp of grad")
def _(fw):
    return fw.call(tangent(fw, func(fw).grad(cube(fw))), scalar(fw))


@row("FUNC-14", "same", "grad of jvp")
def _(fw):
    return fw.call(func(fw).grad(tangent(fw, cube(fw))), scalar(fw))


@row("FUNC-15", "same", "linearize")
def _(fw):
    def run(x, t):
        with warnings.catch_warnings():
            if fw.name == "torch":  # of the graph that it records
                warnings.simplefilter("ignore")
            out, push = func(fw).linearize(cube(fw), x)
        return out, push(t)

    return fw.call(run, vector(fw), fw.array([1.0, 10.0]))


@row("FUNC-16", "same", "the gradient of a gradient from another engine: nested grad")
def func_16(fw):
    x = fw.leaf(scalar(fw))
    return fw.torch.autograd.grad(func(fw).grad(cube(fw))(x), [x])[0]


func_16.jaxfn(lambda fw: fw.call(jax.grad(jax.grad(cube(fw))), scalar(fw)))


def double_backward_jvp(f, x, t):
    """As torch.autograd.functional does it: the derivative of the pullback."""
    out, pull = jax.vjp(f, x)
    _, push = jax.vjp(lambda ct: pull(ct)[0], jnp.zeros_like(out))
    return out, push(t)[0]


@row("FUNC-28", "same", "jacobian and hessian of the combined style")
def func_28(fw):
    functional = fw.torch.autograd.functional
    f, x = old_cube(fw), vector(fw)
    return [
        functional.jacobian(f, x),
        functional.jacobian(f, x, vectorize=True),
        functional.hessian(lambda x: f(x).sum(), x),
    ]


@func_28.jaxfn
def _(fw):
    f, x = old_cube(fw), vector(fw)

    def one_by_one(x):
        return jnp.stack([jax.vjp(f, x)[1](e)[0] for e in jnp.eye(2)])

    return [
        fw.call(one_by_one, x),
        fw.call(jax.jacrev(f), x),
        fw.call(jax.hessian(lambda x: f(x).sum()), x),
    ]


@row("FUNC-29", "same", "one vjp for a batch of cotangents")
def func_29(fw):
    x = fw.leaf(vector(fw))
    out = old_cube(fw)(x)
    cts = fw.np.eye(2)
    return fw.torch.autograd.grad(out, [x], cts, is_grads_batched=True)


@func_29.jaxfn
def _(fw):
    def run(x, cts):
        return jax.vmap(jax.vjp(old_cube(fw), x)[1])(cts)

    return fw.call(run, vector(fw), jnp.eye(2))


@row("FUNC-35", "same", "jvp and hvp by differentiating backward twice")
def func_35(fw):
    functional = fw.torch.autograd.functional
    f, x, t = reverse_cube(fw), vector(fw), fw.array([1.0, 10.0])

    def total(x):
        return f(x).sum()

    return [
        functional.jvp(f, x, t),
        functional.hvp(total, x, t)[1],
        functional.hessian(total, x),
    ]


@func_35.jaxfn
def _(fw):
    f, x, t = reverse_cube(fw), vector(fw), fw.array([1.0, 10.0])
    gradient = jax.grad(lambda x: f(x).sum())
    return [
        fw.call(lambda x, t: double_backward_jvp(f, x, t), x, t),
        fw.call(lambda x, t: jax.jvp(gradient, (x,), (t,))[1], x, t),
        fw.call(jax.jacrev(gradient), x),
    ]
