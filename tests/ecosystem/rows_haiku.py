"""Places in haiku."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp

from .catalogue import KEY, X, row, slopes


def haiku_slopes(network, x=X):
    """The value and the gradients of a function that has modules inside."""
    return slopes(hk.without_apply_rng(hk.transform(network)), x)


def layer(f, x):
    w = hk.get_parameter("w", x.shape[-1:], init=hk.initializers.Constant(0.9))
    return f(w * x)


@row("haiku", "`hk.transform`, `jit` of `value_and_grad`")
def _(f):
    return haiku_slopes(lambda x: layer(f, x))


@row("haiku", "`hk.nets.MLP` with the function as activation")
def _(f):
    init = {"w_init": hk.initializers.Constant(0.4)}
    return haiku_slopes(lambda x: hk.nets.MLP([2, 1], activation=f, **init)(x))


@row("haiku", "`hk.remat`")
def _(f):
    return haiku_slopes(lambda x: hk.remat(lambda x: layer(f, x))(x))


@row("haiku", "`hk.scan`")
def _(f):
    def network(x):
        return hk.scan(lambda x, _: (layer(f, x), None), x, None, length=2)[0]

    return haiku_slopes(network)


@row("haiku", "`hk.layer_stack`")
def _(f):
    return haiku_slopes(lambda x: hk.layer_stack(2)(lambda x: layer(f, x))(x))


@row("haiku", "`hk.vmap`", batched=True)
def _(f):
    def network(x):
        return hk.vmap(lambda x: layer(f, x), split_rng=False)(x)

    return haiku_slopes(network, jnp.stack([X, 2 * X]))


@row("haiku", "`hk.cond`, `hk.switch` and `hk.fori_loop`")
def _(f):
    def network(x):
        x = layer(f, x)
        x = hk.cond(x.sum() > 0, f, lambda x: x, x)
        x = hk.switch(1, [lambda x: x, f], x)
        return hk.fori_loop(0, 2, lambda i, x: f(x), x)

    return haiku_slopes(network)


@row("haiku", "`hk.grad` inside of a module")
def _(f):
    slope = lambda x: hk.grad(lambda x: layer(f, x).sum())(x)  # noqa: E731
    return haiku_slopes(lambda x: layer(slope, x))


@row("haiku", "`hk.transform_with_state`, `hk.dynamic_unroll` of a core")
def _(f):
    class Core(hk.RNNCore):
        def __call__(self, x, state):
            hk.set_state("seen", x)
            state = layer(f, x + state)
            return state, state

        def initial_state(self, batch_size):
            return jnp.zeros(2)

    def network(x):
        core = Core()
        return hk.dynamic_unroll(core, x, core.initial_state(None))[0]

    network = hk.transform_with_state(network)
    x = jnp.stack([X, X])
    params, state = network.init(KEY, x)
    return jax.grad(lambda p: network.apply(p, state, KEY, x)[0].sum())(params)
