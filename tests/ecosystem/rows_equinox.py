"""Places in equinox."""

from __future__ import annotations

import io

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from .catalogue import KEY, X, row


class Layer(eqx.Module):
    """A weight for each feature, and the function, which is static."""

    w: jax.Array
    act: object = eqx.field(static=True)

    def __call__(self, x):
        return self.act(self.w * x)


class Holder(eqx.Module):
    """The same with the function as a leaf, which filters leave out."""

    w: jax.Array
    act: object

    def __call__(self, x):
        return self.act(self.w * x)


W = jnp.array([0.9, 0.8])


def total(model, x):
    return model(x).sum()


@row("equinox", "`filter_jit` of `filter_value_and_grad`, the function static")
def _(f):
    return eqx.filter_jit(eqx.filter_value_and_grad(total))(Layer(W, f), X)


@row("equinox", "`filter_jit` of `filter_grad`, the function a leaf of the module")
def _(f):
    found = eqx.filter_jit(eqx.filter_grad(total))(Holder(W, f), X)
    return eqx.filter(found, eqx.is_array)


@row("equinox", "`nn.MLP` with the function as activation")
def _(f):
    model = eqx.nn.MLP(2, 2, 3, 1, activation=f, key=KEY)
    return eqx.filter(eqx.filter_grad(total)(model, X), eqx.is_array)


@row("equinox", "`filter_checkpoint`")
def _(f):
    again = eqx.filter_checkpoint(Layer(W, f))
    return jax.jit(jax.grad(lambda x: again(x).sum()))(X)


@row("equinox", "`filter_vmap` of an ensemble", batched=True)
def _(f):
    models = eqx.filter_vmap(lambda w: Layer(w, f))(jnp.stack([W, 2 * W]))

    def loss(models):
        each = eqx.filter_vmap(lambda m, x: m(x), in_axes=(eqx.if_array(0), None))
        return each(models, X).sum()

    return eqx.filter_value_and_grad(loss)(models)


@row("equinox", "`filter_vmap` of `filter_grad`", batched=True)
def _(f):
    slope = eqx.filter_vmap(eqx.filter_value_and_grad(lambda x: f(x).sum()))
    return slope(jnp.stack([X, 2 * X]))


@row("equinox", "`filter_vjp`")
def _(f):
    out, pull = eqx.filter_vjp(Layer(W, f), X)
    return out, pull(jnp.ones_like(out))


@row("equinox", "`filter_jvp`", forward=True)
def _(f):
    return eqx.filter_jvp(Layer(W, f), (X,), (X,))


@row("equinox", "`filter_jacrev`")
def _(f):
    return eqx.filter_jacrev(Layer(W, f))(X)


@row("equinox", "`filter_jacfwd`", forward=True)
def _(f):
    return eqx.filter_jit(eqx.filter_jacfwd(Layer(W, f)))(X)


@row("equinox", "`filter_hessian`")
def _(f):
    return eqx.filter_hessian(lambda x: f(x).sum())(X)


@row("equinox", "`filter_closure_convert`")
def _(f):
    w = W

    def loss(w):
        converted = eqx.filter_closure_convert(lambda x: f(w * x), X)
        return converted(X).sum()

    return jax.grad(loss)(w)


@row("equinox", "`filter_make_jaxpr`, evaluated")
def _(f):
    jaxpr, _, _ = eqx.filter_make_jaxpr(Layer(W, f))(X)
    again = jaxpr_as_fun(jaxpr)
    return jax.grad(lambda x: again(x)[0].sum())(X)


@row("equinox", "`error_if` beside it")
def _(f):
    def loss(x):
        out = f(x)
        return eqx.error_if(out, out.sum() > 1e6, "too big").sum()

    return eqx.filter_jit(eqx.filter_grad(loss))(X)


@row("equinox", "`nn.State` of a `nn.BatchNorm`, under `filter_vmap`", batched=True)
def _(f):
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(2, "batch", mode="batch")

    def loss(x):
        def each(x, state):
            x, state = norm(x, state)
            return f(x), state

        axes = {"in_axes": (0, None), "out_axes": (0, None), "axis_name": "batch"}
        return eqx.filter_vmap(each, **axes)(x, state)[0][0].sum()

    return jax.value_and_grad(loss)(jnp.stack([X, 2 * X**2, 0.1 + X]))


@row("equinox", "inside of `filter_custom_vjp`")
def _(f):
    @eqx.filter_custom_vjp
    def outer(x):
        return f(x)

    outer.def_fwd(lambda perturbed, x: eqx.filter_vjp(f, x))
    outer.def_bwd(lambda pull, g, perturbed, x: 10 * pull(g)[0])
    return jax.grad(lambda x: outer(x).sum())(X)


@row("equinox", "inside of `filter_custom_jvp`", forward=True)
def _(f):
    @eqx.filter_custom_jvp
    def outer(x):
        return f(x)

    outer.def_jvp(lambda p, t: eqx.filter_jvp(f, p, tuple(10 * x for x in t)))
    return jax.jvp(outer, (X,), (X,))


def twice(f, x, **options):
    """`f(f(x))`, by a loop."""
    return eqxi.while_loop(
        lambda held: held[0] < 2,
        lambda held: (held[0] + 1, f(held[1])),
        (0, x),
        **options,
    )[1]


def _looped(kind):
    def run(f):
        def loss(x):
            return twice(f, x, kind=kind, max_steps=2).sum()

        return jax.jit(jax.grad(loss))(X)

    return run


row("equinox", "`internal.while_loop`, checkpointed")(_looped("checkpointed"))
row("equinox", "`internal.while_loop`, bounded")(_looped("bounded"))


@row("equinox", "`internal.while_loop`, lax, forward mode", forward=True)
def _(f):
    return jax.jvp(lambda x: twice(f, x, kind="lax"), (X,), (X,))


@row("equinox", "`internal.noinline`")
def _(f):
    return jax.grad(lambda x: eqxi.noinline(f)(x).sum())(X)


@row("equinox", "`internal.noinline`, forward mode", forward=True)
def _(f):
    return jax.jvp(eqxi.noinline(f), (X,), (X,))


@row("equinox", "`tree_serialise_leaves` of a module with the function inside")
def _(f):
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, Layer(W, f))
    file.seek(0)
    model = eqx.tree_deserialise_leaves(file, Layer(0 * W, f))
    return eqx.filter_grad(total)(model, X)
