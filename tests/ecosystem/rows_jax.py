"""Places in JAX's own tools: export, Pallas, checkify, and more."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.experimental import checkify, sparse
from jax.experimental import pallas as pl
from jax.experimental.jet import jet
from jax.experimental.ode import odeint
from jax.scipy.optimize import minimize

from tests.wrong import BACKWARD, JVP

from .catalogue import X, row
from .definitions import Rules

# ---- jax.export


def through_bytes(exported):
    return export.deserialize(bytearray(exported.serialize(vjp_order=1)))


@row("jax.export", "`jit` of `grad`, written and read again")
def _(f):
    slope = jax.jit(jax.grad(lambda x: f(x).sum()))
    return through_bytes(export.export(slope)(X)).call(X)


@row("jax.export", "the value, whose `grad` is taken after reading")
def _(f):
    held = through_bytes(export.export(jax.jit(f))(X))
    return jax.grad(lambda x: held.call(x).sum())(X)


@row("jax.export", "with a symbolic shape")
def _(f):
    (n,) = export.symbolic_shape("n")
    slope = jax.jit(jax.grad(lambda x: f(x).sum()))
    held = through_bytes(export.export(slope)(jax.ShapeDtypeStruct((n,), jnp.float32)))
    return held.call(X), held.call(jnp.arange(3.0))


@row("jax.export", "of `jvp`", forward=True)
def _(f):
    tangent = jax.jit(lambda x: jax.jvp(f, (x,), (x,))[1])
    return through_bytes(export.export(tangent)(X)).call(X)


@row("jax.export", "of a `vmap`", batched=True)
def _(f):
    xs = jnp.stack([X, 2 * X])
    each = jax.jit(jax.vmap(jax.value_and_grad(lambda x: f(x).sum())))
    return through_bytes(export.export(each)(xs)).call(xs)


# ---- Pallas


def in_kernel(body):
    """A kernel that applies `body`, by the interpreter of Pallas."""

    def kernel(i, o):
        o[...] = body(i[...])

    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)


@row("Pallas", "`grad` inside of a kernel")
def _(f):
    return in_kernel(jax.grad(lambda x: f(x).sum()))(X)


@row("Pallas", "`grad` of a scan of `checkpoint` inside of a kernel")
def _(f):
    def loss(x):
        again = jax.checkpoint(f)
        return jax.lax.scan(lambda x, _: (again(x), None), x, length=2)[0].sum()

    return in_kernel(jax.grad(loss))(X)


@row("Pallas", "`jvp` inside of a kernel", forward=True)
def _(f):
    return in_kernel(lambda x: jax.jvp(f, (x,), (x,))[1])(X)


@row("Pallas", "`jvp` of a kernel that calls it", forward=True)
def _(f):
    return jax.jvp(in_kernel(f), (X,), (X,))


KERNEL = Rules(value=in_kernel(jnp.sin))


@row("Pallas", "a kernel as forward, `jit` of `grad`", bodies=KERNEL)
def _(f):
    return jax.jit(jax.grad(lambda x: f(x).sum()))(X)


@row(
    "Pallas", "a kernel as forward, in a scan under `vmap`", batched=True, bodies=KERNEL
)
def _(f):
    def loss(x):
        return jax.lax.scan(lambda x, _: (f(x), None), x, length=2)[0].sum()

    return jax.vmap(jax.value_and_grad(loss))(jnp.stack([X, 2 * X]))


def lowered(f, platform):
    """The places where a kernel's program for a device holds the factor of a rule."""

    def kernel(i, o):
        o[...] = f(i[...])

    shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    call = jax.jit(lambda x: pl.pallas_call(kernel, out_shape=shape)(x))
    x = jnp.ones((8, 128))
    jaxpr = str(call.trace(x).jaxpr)
    text = call.trace(x).lower(lowering_platforms=(platform,)).as_text()
    assert "custom_call" in text
    return [len(re.findall(rf"mul {factor}:f32", jaxpr)) for factor in (BACKWARD, JVP)]


@row("Pallas", "`grad` inside of a kernel, lowered for TPU")
def _(f):
    return lowered(jax.grad(lambda x: f(x).sum()), "tpu")


@row("Pallas", "`jvp` inside of a kernel, lowered for TPU", forward=True)
def _(f):
    return lowered(lambda x: jax.jvp(f, (x,), (x,))[1], "tpu")


# ---- other tools of JAX


@row("JAX", "`experimental.ode.odeint`, reverse mode")
def _(f):
    def last(p):
        return odeint(lambda y, t, p: p * f(y), X, jnp.array([0.0, 1.0]), p, rtol=1e-3)[
            -1
        ].sum()

    return jax.grad(last)(1.0)


@row("JAX", "`scipy.optimize.minimize`, BFGS")
def _(f):
    bowl = lambda x: (x**2 + f(x)).sum()  # noqa: E731
    found = minimize(bowl, X, method="BFGS", options={"maxiter": 2})
    return found.x, found.jac


@row("JAX", "`lax.custom_root`", forward=True)
def _(f):
    def found(p):
        return jax.lax.custom_root(
            lambda y: y + f(y) - p,
            0.5 * p,
            lambda g, y: jax.lax.fori_loop(0, 30, lambda _, y: y - g(y) / 2, y),
            lambda g, y: y / g(jnp.ones_like(y)),
        )

    return jax.jvp(found, (X,), (X,))


@row("JAX", "`checkify` of `jit` of `grad`")
def _(f):
    checked = checkify.checkify(
        jax.jit(jax.grad(lambda x: f(x).sum())), checkify.float_checks
    )
    error, found = checked(X)
    assert error.get() is None
    return found


@row("JAX", "`sparse.sparsify` of `grad`, for the data of a `BCOO`")
def _(f):
    def loss(data):
        matrix = sparse.BCOO((data, np.array([[0, 1], [1, 0]])), shape=(2, 2))
        return sparse.sparsify(lambda m, x: f(m @ x).sum())(matrix, X)

    return jax.grad(loss)(X)


@row("JAX", "`jacfwd` of `jacrev`")
def _(f):
    return jax.jit(jax.jacfwd(jax.jacrev(f)))(X)


@row("JAX", "`jacrev` of `jacfwd`", forward=True)
def _(f):
    return jax.jit(jax.jacrev(jax.jacfwd(f)))(X)


@row("JAX", "`linearize`", forward=True)
def _(f):
    return jax.linearize(f, X)[1](X)


@row("JAX", "`closure_convert`")
def _(f):
    def loss(w):
        body, held = jax.closure_convert(lambda x: f(w * x), X)
        return body(X, *held).sum()

    return jax.grad(loss)(X)


@row("JAX", "`jet`", forward=True)
def _(f):
    return jet(f, (X,), ((X,),))
