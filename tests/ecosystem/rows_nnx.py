"""Places in flax.nnx."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from .catalogue import X, row


class Cell(nnx.Module):
    """The same layer for nnx."""

    def __init__(self, act, w=0.9):
        self.w = nnx.Param(jnp.full(2, w))
        self.act = act

    def __call__(self, x):
        return self.act(self.w * x)


def total(model, x):
    return model(x).sum()


@row("flax.nnx", "`nnx.jit` of `nnx.value_and_grad`")
def _(f):
    return nnx.jit(nnx.value_and_grad(total))(Cell(f), X)


@row("flax.nnx", "`nnx.remat`")
def _(f):
    again = nnx.remat(lambda m, x: m(x))
    return nnx.grad(lambda m, x: again(m, x).sum())(Cell(f), X)


@row("flax.nnx", "`nnx.scan` over layers")
def _(f):
    @nnx.vmap(in_axes=0, out_axes=0)
    def layers(w):
        return Cell(f, w)

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def stack(layer, x):
        return layer(x)

    model = layers(jnp.array([0.8, 0.9]))
    return nnx.jit(nnx.grad(lambda m, x: stack(m, x).sum()))(model, X)


@row("flax.nnx", "`nnx.vmap`", batched=True)
def _(f):
    each = nnx.vmap(lambda m, x: m(x), in_axes=(None, 0))
    x = jnp.stack([X, 2 * X])
    return nnx.value_and_grad(lambda m, x: each(m, x).sum())(Cell(f), x)


@row("flax.nnx", "`nnx.vjp`")
def _(f):
    out, pull = nnx.vjp(total, Cell(f), X, graph=False)
    return out, pull(jnp.ones(()))


@row("flax.nnx", "`nnx.jvp`", forward=True)
def _(f):
    return nnx.jvp(lambda x: Cell(f)(x), (X,), (X,), graph=False)


@row("flax.nnx", "`nnx.cond`, `nnx.switch` and `nnx.fori_loop`")
def _(f):
    def loss(model, x):
        x = nnx.cond(x.sum() > 0, lambda m, x: m(x), lambda m, x: x, model, x)
        x = nnx.switch(1, [lambda m, x: x, lambda m, x: m(x)], model, x)
        turn = lambda i, held: (held[0], held[0](held[1]))  # noqa: E731
        return nnx.fori_loop(0, 2, turn, (model, x))[1].sum()

    return nnx.grad(loss)(Cell(f), X)


@row("flax.nnx", "inside of `nnx.custom_vjp`")
def _(f):
    @nnx.custom_vjp
    def inner(model, x):
        return total(model, x)

    def save(model, x):
        return nnx.vjp(total, model, x, graph=False)

    def pull(saved, g):
        _, g = g
        model, x = saved(g)
        return jax.tree.map(lambda t: 10 * t, nnx.state(model)), 10 * x

    inner.defvjp(save, pull)
    return nnx.grad(inner)(Cell(f), X)


@row("flax.nnx", "`nnx.Optimizer` with `optax.sgd`, under `nnx.jit`")
def _(f):
    model = Cell(f)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(total)(model, X))

    step(model, optimizer)
    return nnx.state(model)


@row("flax.nnx", "`nnx.shard_map` over eight devices")
def _(f):
    mesh = jax.sharding.Mesh(jax.devices(), "d")
    spec = jax.sharding.PartitionSpec("d")
    each = nnx.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)
    x = jnp.linspace(0.1, 0.8, jax.device_count())
    return jax.jit(jax.grad(lambda x: each(x).sum()))(x)
