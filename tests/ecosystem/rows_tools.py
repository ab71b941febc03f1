"""Places in jaxtyping with beartype, and in folx."""

from __future__ import annotations

import folx
import jax
import jax.numpy as jnp
from beartype import beartype
from jaxtyping import Array, Float, jaxtyped

from tests.wrong import BACKWARD, JVP

from .catalogue import X, row
from .definitions import Rules

# ---- jaxtyping with beartype

typed = jaxtyped(typechecker=beartype)
Row = Float[Array, "n"]
Scalar = Float[Array, ""]


@typed
def value(x: Row) -> Row:
    return jnp.sin(x)


@typed
def pull(x: Row, g: Row) -> Row:
    return BACKWARD * jnp.cos(x) * g


@typed
def push(x: Row, t: Row) -> Row:
    return JVP * jnp.cos(x) * t


TYPED = Rules(value, pull, push)


@row("jaxtyping", "rules checked by beartype, `jit` of `grad`", bodies=TYPED)
def _(f):
    return jax.jit(jax.grad(lambda x: f(x).sum()))(X)


@row("jaxtyping", "the same, `jvp`", forward=True, bodies=TYPED)
def _(f):
    return jax.jvp(f, (X,), (X,))


@row("jaxtyping", "the same under `vmap`", batched=True, bodies=TYPED)
def _(f):
    each = jax.vmap(jax.value_and_grad(lambda x: f(x).sum()))
    return each(jnp.stack([X, 2 * X]))


@row("jaxtyping", "the same in a scan, `hessian`", bodies=TYPED)
def _(f):
    def loss(x):
        return jax.lax.scan(lambda x, _: (f(x), None), x, length=1)[0].sum()

    return jax.hessian(loss)(X)


@row("jaxtyping", "a caller checked by beartype")
def _(f):
    @typed
    def layer(w: Row, x: Row) -> Scalar:
        return f(w * x).sum()

    return jax.jit(jax.grad(layer))(X, X)


W = jnp.array([1.0, 2.0])

# ---- folx: the Laplacian in one forward pass


def wave(f):
    return lambda x: (f(x) * x).sum()


@row("folx", "`forward_laplacian`", forward=True)
def _(f):
    found = folx.forward_laplacian(wave(f))(X)
    return found.x, found.jacobian.dense_array, found.laplacian


@row("folx", "`forward_laplacian` under `jit` and `vmap`", forward=True, batched=True)
def _(f):
    lap = jax.jit(jax.vmap(lambda x: folx.forward_laplacian(wave(f))(x).laplacian))
    return lap(jnp.stack([X, 2 * X]))


@row("folx", "the gradient of a `forward_laplacian`", mixed=True)
def _(f):
    def energy(p):
        return folx.forward_laplacian(lambda x: wave(f)(p * x))(X).laplacian

    return jax.grad(energy)(2.0)


@row("folx", "`LoopLaplacianOperator`, forward over reverse")
def _(f):
    return folx.LoopLaplacianOperator()(lambda x: (f(x) * W).sum())(X)
