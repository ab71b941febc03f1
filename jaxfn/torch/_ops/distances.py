"""Distances between points."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxfn.torch._ops.row import row


@row("aten._cdist_forward", typed=True)
def cdist(out: Any, x: Any, y: Any, p: float, mode: Any = None) -> Any:
    """Distances of all pairs of rows."""
    del mode
    gap = jnp.abs(x[..., :, None, :] - y[..., None, :, :])
    return _length(gap, p).astype(out.dtype)


def _length(gap: Any, p: float) -> Any:
    if p == 0:
        return jnp.sum(gap != 0, -1).astype(gap.dtype)
    if p == float("inf"):
        return jnp.max(gap, -1, initial=0)
    if p == 1:
        return jnp.sum(gap, -1)
    if p == 2:
        return jnp.sqrt(jnp.sum(gap * gap, -1))
    return jnp.sum(gap**p, -1) ** (1 / p)


@row("aten._euclidean_dist")
def euclidean(x: Any, y: Any) -> Any:
    """Distances of all pairs of rows."""
    gap = x[..., :, None, :] - y[..., None, :, :]
    return _length(jnp.abs(gap), 2)


@row("aten._cdist_backward")
def cdist_backward(g: Any, x: Any, y: Any, p: float, found: Any) -> Any:
    """The gradient of distances for the first rows; 0 where the distance is 0."""
    gap = x[..., :, None, :] - y[..., None, :, :]
    g, far = g[..., None], found[..., None]
    safe = jnp.where(far == 0, 1, far)
    if p == 0:
        part = jnp.zeros_like(gap)
    elif p == 1:
        part = jnp.sign(gap) * g
    elif p == float("inf"):
        part = jnp.where(jnp.abs(gap) == far, jnp.sign(gap), 0) * g
    else:
        slope = jnp.sign(gap) * (jnp.abs(gap) / safe) ** (p - 1)
        part = jnp.where((far == 0) | ((gap == 0) & (p < 2)), 0, slope) * g
    return jnp.sum(part, -2)


@row("aten._pdist_forward")
def pdist(x: Any, p: float = 2) -> Any:
    """Distances of the pairs of rows, each once."""
    i, j = jnp.triu_indices(x.shape[0], 1)
    return _length(jnp.abs(x[i] - x[j]), p)


def by_vjp(forward: Any, primals: Any, g: Any) -> Any:
    """The gradient of a smooth row."""
    return jax.vjp(forward, *primals)[1](g)


@row("aten._pdist_backward")
def pdist_backward(g: Any, x: Any, p: float, found: Any) -> Any:
    """The gradient of the distances of pairs: each moves both of its rows."""
    at = jnp.triu_indices(x.shape[0], 1)
    square = jnp.zeros((x.shape[0],) * 2, g.dtype)
    whole = [square.at[at].set(v) + square.at[at].set(v).T for v in (g, found)]
    return cdist_backward(whole[0], x, x, p, whole[1])
