"""Places in flax.linen."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from .catalogue import KEY, X, row, slopes


class Layer(nn.Module):
    """A weight for each feature, and the function."""

    act: object

    @nn.compact
    def __call__(self, x):
        w = self.param("w", nn.initializers.constant(0.9), x.shape[-1:])
        return self.act(w * x)


@row("flax.linen", "a layer, `jit` of `value_and_grad`")
def _(f):
    return slopes(Layer(f))


@row("flax.linen", "`nn.remat`")
def _(f):
    return slopes(nn.remat(Layer)(f))


@row("flax.linen", "`nn.remat` with a policy, over `nn.scan`")
def _(f):
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return Layer(f)(x), None

    policy = jax.checkpoint_policies.dots_saveable
    kind = nn.scan(
        nn.remat(Block, policy=policy),
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=2,
    )

    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x):
            return kind()(x, None)[0]

    return slopes(Stack())


@row("flax.linen", "`nn.remat_scan`")
def _(f):
    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.remat_scan(Layer, lengths=(2, 2))(f)(x)

    return slopes(Stack())


@row("flax.linen", "`nn.vmap`", batched=True)
def _(f):
    kind = nn.vmap(Layer, variable_axes={"params": 0}, split_rngs={"params": True})
    return slopes(kind(f), jnp.stack([X, 2 * X]))


@row("flax.linen", "`nn.jit`")
def _(f):
    return slopes(nn.jit(Layer)(f))


@row("flax.linen", "`nn.cond` and `nn.switch`")
def _(f):
    class Choice(nn.Module):
        @nn.compact
        def __call__(self, x):
            layer = Layer(f)
            x = layer(x)  # a branch can't make its parameter
            x = nn.cond(x.sum() > 0, lambda m, x: m(x), lambda m, x: x, layer, x)
            return nn.switch(1, [lambda m, x: x, lambda m, x: m(x)], layer, x)

    return slopes(Choice())


@row("flax.linen", "`nn.vjp`")
def _(f):
    class Pulled(nn.Module):
        @nn.compact
        def __call__(self, x):
            out, pull = nn.vjp(lambda m, x: m(x), Layer(f), x)
            return pull(jnp.ones_like(out))[1]

    return Pulled().init_with_output(KEY, X)[0]


@row("flax.linen", "`nn.jvp`", forward=True)
def _(f):
    class Pushed(nn.Module):
        @nn.compact
        def __call__(self, x):
            layer = Layer(f)
            layer(x)
            return nn.jvp(lambda m, x: m(x), layer, (x,), (x,), {})[1]

    return Pushed().init_with_output(KEY, X)[0]


@row("flax.linen", "in the `forward_fn` of `nn.custom_vjp`")
def _(f):
    def pull(saved, g):
        inner, x = saved
        params, x = inner(g)[:2]
        return jax.tree.map(lambda t: 10 * t, params), 10 * x

    class Custom(nn.Module):
        @nn.compact
        def __call__(self, x):
            def save(m, x):
                out, inner = nn.vjp(lambda m, x: m(x), m, x)
                return out, (inner, x)

            return nn.custom_vjp(lambda m, x: m(x), save, pull)(Layer(f), x)

    return slopes(Custom())


@row("flax.linen", "`nn.RNN` of a `SimpleCell` with the function as activation")
def _(f):
    cell = nn.SimpleCell(2, activation_fn=f)
    return slopes(nn.RNN(cell), X.reshape(1, 2, 1))


@row("flax.linen", "`nn.BatchNorm` beside it, `mutable` statistics")
def _(f):
    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Layer(f)(nn.BatchNorm(use_running_average=False)(x))

    module = Normed()
    x = jnp.stack([X, 2 * X**2])
    variables = module.init(KEY, x)

    @jax.jit
    @jax.grad
    def gradient(params):
        held = {"params": params, "batch_stats": variables["batch_stats"]}
        return module.apply(held, x, mutable=["batch_stats"])[0].sum()

    return gradient(variables["params"])


@row("flax.linen", "`TrainState` with `optax.sgd`, two steps in a scan")
def _(f):
    module = Layer(f)
    state = TrainState.create(
        apply_fn=module.apply, params=module.init(KEY, X), tx=optax.sgd(0.1)
    )

    def step(state, _):
        gradients = jax.grad(lambda p: state.apply_fn(p, X).sum())(state.params)
        return state.apply_gradients(grads=gradients), None

    return jax.lax.scan(step, state, length=2)[0].params
