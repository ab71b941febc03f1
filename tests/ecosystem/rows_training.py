"""Places in optax, orbax and chex."""

from __future__ import annotations

import tempfile
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp

from .catalogue import KEY, X, row

# ---- optax


def descend(f, optimizer, *, extra=False, n=2):
    """Parameters after steps of an optimizer."""
    params = {"x": X, "y": 2 * X}

    def loss(params):
        return f(params["x"]).sum() + (f(params["y"]) ** 2).sum()

    def step(held, _):
        params, state = held
        value, gradients = jax.value_and_grad(loss)(params)
        more = {"value": value, "grad": gradients, "value_fn": loss} if extra else {}
        updates, state = optimizer.update(gradients, state, params, **more)
        return (optax.apply_updates(params, updates), state), None

    first = params, optimizer.init(params)
    params, state = jax.lax.scan(step, first, length=n)[0]
    return params if not extra else (params, optax.tree.get(state, "grad"))


@row("optax", "`sgd` with momentum, steps in a scan")
def _(f):
    return descend(f, optax.sgd(0.1, momentum=0.9))


@row("optax", "`chain` of `clip_by_global_norm` and `adamw`, in `MultiSteps`")
def _(f):
    inner = optax.chain(optax.clip_by_global_norm(4.0), optax.adamw(0.1, eps=1.0))
    return descend(f, optax.MultiSteps(inner, 2))


@row("optax", "`lbfgs` with its zoom line search")
def _(f):
    return descend(f, optax.lbfgs(0.1), extra=True)


@row("optax", "`value_and_grad_from_state` with `scale_by_backtracking_linesearch`")
def _(f):
    search = optax.scale_by_backtracking_linesearch(4, store_grad=True)
    optimizer = optax.chain(optax.sgd(0.3), search)
    loss = lambda x: f(x).sum()  # noqa: E731
    state = optimizer.init(X)
    value, gradient = optax.value_and_grad_from_state(loss)(X, state=state)
    more = {"value": value, "grad": gradient, "value_fn": loss}
    updates, _ = optimizer.update(gradient, state, X, **more)
    return gradient, updates


@row("optax", "`contrib.sam`, opaque mode")
def _(f):
    sam = optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.05), opaque_mode=True)
    slope = jax.grad(lambda x: f(x).sum())
    updates, _ = sam.update(slope(X), sam.init(X), X, grad_fn=lambda x, _: slope(x))
    return updates


@row("optax", "`perturbations.make_perturbed_fun`")
def _(f):
    smooth = optax.perturbations.make_perturbed_fun(lambda x: x, 8, 0.1)
    return jax.grad(lambda x: f(smooth(KEY, x)).sum())(X)


@row("optax", "a hypergradient through the steps")
def _(f):
    def last(rate):
        return f(descend(f, optax.sgd(rate))["x"]).sum()

    return jax.grad(last)(0.1)


@row("optax", "`jvp` of an update, by the learning rate", forward=True)
def _(f):
    def last(rate):
        optimizer = optax.sgd(rate, momentum=0.9)
        updates, _ = optimizer.update(f(rate * X), optimizer.init(X))
        return updates

    return jax.jvp(last, (0.1,), (1.0,))


# ---- orbax, chex


@row("orbax", "parameters and gradients, written and read again")
def _(f):
    state = {"x": X, "slope": jax.jit(jax.grad(lambda x: f(x).sum()))(X)}
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as keeper:
        path = Path(folder) / "state"
        keeper.save(path, state)
        keeper.wait_until_finished()
        held = keeper.restore(path, jax.tree.map(jnp.zeros_like, state))
    return held["slope"], jax.grad(lambda x: f(x).sum())(held["x"])


@row("chex", "`chexify`, with assertions about values beside it")
def _(f):
    def slope(x):
        gradient = jax.grad(lambda x: f(x).sum())(x)
        chex.assert_tree_all_finite(gradient)
        return gradient

    checked = chex.chexify(jax.jit(slope), async_check=False)
    found = checked(X)
    chex.block_until_chexify_assertions_complete()
    return found


@row("chex", "`with_jittable_assertions`, forward mode", forward=True)
def _(f):
    def slope(x):
        tangent = jax.jvp(f, (x,), (x,))[1]
        chex.assert_tree_all_finite(tangent)
        return tangent

    found = chex.with_jittable_assertions(jax.jit(slope), async_check=False)(X)
    chex.block_until_chexify_assertions_complete()
    return found


@row("chex", "`assert_max_traces` of one")
def _(f):
    chex.clear_trace_counter()
    once = jax.jit(chex.assert_max_traces(lambda x: f(x).sum(), n=1))
    slope = jax.jit(jax.grad(once))
    return slope(X), slope(2 * X)


@row("chex", "`chex.dataclass` as parameters")
def _(f):
    @chex.dataclass
    class Params:
        w: chex.Array
        b: chex.Array

    params = Params(w=X, b=2 * X)
    return jax.jit(jax.grad(lambda p: (f(p.w) * f(p.b)).sum()))(params)


@row("chex", "`fake_jit` and `fake_pmap`", batched=True)
def _(f):
    with chex.fake_pmap_and_jit():
        each = jax.jit(jax.pmap(jax.value_and_grad(lambda x: f(x).sum())))
        return each(jnp.stack([X, 2 * X]))
