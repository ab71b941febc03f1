"""Places in blackjax."""

from __future__ import annotations

import blackjax
import jax
import jax.numpy as jnp
import optax

from .catalogue import KEY, X, row


def density(f):
    return lambda x: (-(x**2) + f(x)).sum()


def stepped(sampler, n=4, x=X):
    """States after steps of a sampler."""
    state = sampler.init(x)
    step = lambda state, key: (sampler.step(key, state)[0],) * 2  # noqa: E731
    return jax.lax.scan(step, state, jax.random.split(KEY, n))[1].position


METRIC = jnp.ones(2)


@row("blackjax", "`nuts`")
def _(f):
    sampler = blackjax.nuts(density(f), 0.3, METRIC, max_num_doublings=3)
    return stepped(sampler)


@row("blackjax", "`hmc`, chains by `vmap`", batched=True)
def _(f):
    sampler = blackjax.hmc(density(f), 0.3, METRIC, num_integration_steps=2)
    states = jax.vmap(sampler.init)(jnp.stack([X, 2 * X]))
    found = jax.jit(jax.vmap(sampler.step))(jax.random.split(KEY, 2), states)[0]
    return found.position, found.logdensity


@row("blackjax", "`hmc` after `window_adaptation`")
def _(f):
    adaptation = blackjax.window_adaptation(
        blackjax.hmc, density(f), num_integration_steps=3
    )
    (state, parameters), _ = adaptation.run(KEY, X, num_steps=6)
    return state.position, parameters["step_size"]


@row("blackjax", "`mala`")
def _(f):
    return stepped(blackjax.mala(density(f), 0.1))


@row("blackjax", "`mclmc`")
def _(f):
    sampler = blackjax.mclmc(density(f), L=1.0, step_size=0.2)
    state = sampler.init(X, KEY)
    return sampler.step(KEY, state)[0].position


@row("blackjax", "`sgld`")
def _(f):
    slope = jax.grad(lambda x, batch: (f(x) * batch).sum())
    return blackjax.sgld(slope).step(KEY, X, X, 0.1)


@row("blackjax", "`rmhmc` with a metric that the function makes")
def _(f):
    metric = lambda x: jnp.diag(2 + f(x))  # noqa: E731
    sampler = blackjax.rmhmc(density(jnp.sin), 0.2, metric, 2)
    return stepped(sampler, 2)


@row("blackjax", "`meanfield_vi`")
def _(f):
    sampler = blackjax.meanfield_vi(density(f), optax.sgd(0.1), 2)
    return sampler.step(KEY, sampler.init(X))[0].mu
