"""Functions for many devices, and their mathematics on one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.build import function, nothing, rules_of, saving

AXIS = "d"
ENGINES = ("backward", "jvp", "both", "derived")


# ---- a layer with a weight: every device has rows of x, all have the weight


def dense(x: Any, w: Any) -> Any:
    return jnp.sin(x) @ w


def _dense_backward(ctx, g):
    x, w = ctx.saved_tensors
    return g @ w.T * jnp.cos(x), jnp.sin(x).T @ g


def _dense_backward_explicit(ctx, g):
    """In explicit mode a sum over a sharded axis must say how its result is sharded."""
    x, w = ctx.saved_tensors
    like_x, like_w = jax.typeof(x).sharding, jax.typeof(w).sharding
    dx = jnp.einsum("ij,kj->ik", g, w, out_sharding=like_x)
    return dx * jnp.cos(x), jnp.einsum("ij,ik->jk", jnp.sin(x), g, out_sharding=like_w)


def _dense_jvp(ctx, t, u):
    x, w = ctx.saved_tensors
    return (t * jnp.cos(x)) @ w + jnp.sin(x) @ u


def dense_function(engine: str, *, explicit: bool = False) -> Any:
    """`dense`, whose body has no derivative of its own."""
    return function(
        "Dense",
        forward=lambda x, w: dense(lax.stop_gradient(x), lax.stop_gradient(w)),
        setup_context=saving(),
        **rules_of(
            engine,
            _dense_backward_explicit if explicit else _dense_backward,
            _dense_jvp,
        ),
    ).apply


# ---- tensor parallel: copy to all, and sum over all


def copy_function(engine: str, vma: bool) -> Any:
    """Identity forward, sum over the devices backward.

    Where varying axes are checked, the copy is a value that varies.
    """
    return function(
        "CopyToAll",
        forward=lambda x: lax.pcast(x, AXIS, to="varying") if vma else x,
        setup_context=nothing,
        **rules_of(
            engine,
            lambda ctx, g: lax.psum(g, AXIS),
            lambda ctx, t: lax.pcast(t, AXIS, to="varying") if vma else t,
        ),
    ).apply


def reduce_function(engine: str) -> Any:
    """Sum over the devices forward, identity backward."""
    return function(
        "SumOverAll",
        forward=lambda x: lax.psum(x, AXIS),
        setup_context=nothing,
        **rules_of(engine, lambda ctx, g: g, lambda ctx, t: lax.psum(t, AXIS)),
    ).apply


def mlp(x: Any, a: Any, b: Any, copy: Any = None, reduce: Any = None) -> Any:
    """Two layers: `a` is split by columns and `b` by rows."""
    x = copy(x) if copy else x
    y = jnp.sin(x @ a) @ b
    return reduce(y) if reduce else y


# ---- sequence parallel: gather, and sum and scatter


def gather_function(engine: str) -> Any:
    """All rows on every device forward; each device's own sum backward."""
    return function(
        "GatherRows",
        forward=lambda x: lax.all_gather(x, AXIS, tiled=True),
        setup_context=nothing,
        **rules_of(
            engine,
            lambda ctx, g: lax.psum_scatter(g, AXIS, tiled=True),
            lambda ctx, t: lax.all_gather(t, AXIS, tiled=True),
        ),
    ).apply


def scatter_function(engine: str) -> Any:
    """The mirror: sum, and each device its own rows, forward; all rows backward."""
    return function(
        "ScatterRows",
        forward=lambda x: lax.psum_scatter(x, AXIS, tiled=True),
        setup_context=nothing,
        **rules_of(
            engine,
            lambda ctx, g: lax.all_gather(g, AXIS, tiled=True),
            lambda ctx, t: lax.psum_scatter(t, AXIS, tiled=True),
        ),
    ).apply


# ---- batch norm whose statistics are of all devices

_EPSILON = 0.1


def batch_norm(x: Any, gamma: Any, beta: Any) -> Any:
    centred = x - x.mean(0)
    return centred * lax.rsqrt((centred**2).mean(0) + _EPSILON) * gamma + beta


def batch_norm_function(engine: str) -> Any:
    def mean(x):
        return lax.pmean(x.mean(0), AXIS)

    def normalise(x):
        centred = x - mean(x)
        r = lax.rsqrt(mean(centred**2) + _EPSILON)
        return centred * r, r

    def forward(x, gamma, beta):
        return normalise(x)[0] * gamma + beta

    def backward(ctx, g):
        x, gamma, _ = ctx.saved_tensors
        n, r = normalise(x)
        h = g * gamma
        return r * (h - mean(h) - n * mean(h * n)), (g * n).sum(0), g.sum(0)

    def jvp(ctx, t, t_gamma, t_beta):
        x, gamma, _ = ctx.saved_tensors
        n, r = normalise(x)
        return r * (t - mean(t) - n * mean(t * n)) * gamma + n * t_gamma + t_beta

    return function(
        "SyncBatchNorm",
        forward=forward,
        setup_context=saving(),
        **rules_of(engine, backward, jvp),
    ).apply


def numbers(*shape: int, shift: float = 0.0) -> jax.Array:
    """Numbers that differ."""
    x = np.sin(np.arange(np.prod(shape, dtype=int)) * 0.7 + shift).reshape(shape)
    return jnp.asarray(x, jnp.float32)
