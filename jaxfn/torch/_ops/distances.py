"""Distances between points."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxfn.torch._ops.row import row


@row("aten._cdist_forward")
def cdist(x: Any, y: Any, p: Any, mode: Any = None) -> Any:
    """Return the distances of all pairs of rows."""
    del mode
    gap = x[..., :, None, :] - y[..., None, :, :]
    return jnp.linalg.vector_norm(gap, ord=p, axis=-1)


@row("aten._cdist_backward")
def cdist_backward(g: Any, x: Any, y: Any, p: float, found: Any) -> Any:
    """Return the gradient of distances by the first rows; 0 for a distance of 0."""
    gap = x[..., :, None, :] - y[..., None, :, :]
    g, far = g[..., None], found[..., None]
    if p == 0:
        slope = jnp.zeros_like(gap)
    elif p == 1:
        slope = jnp.sign(gap)
    elif p == float("inf"):
        slope = jnp.where(jnp.abs(gap) == far, jnp.sign(gap), 0)
    else:
        part = jnp.abs(gap) / jnp.where(far == 0, 1, far)
        slope = jnp.sign(gap) * part ** (p - 1)
        slope = jnp.where((far == 0) | ((gap == 0) & (p < 2)), 0, slope)
    return jnp.sum(slope * g, -2)


@row("aten._pdist_forward")
def pdist(x: Any, p: Any = 2) -> Any:
    """Return the distances of the pairs of rows, each pair once."""
    i, j = jnp.triu_indices(x.shape[0], 1)
    return jnp.linalg.vector_norm(x[i] - x[j], ord=p, axis=-1)


@row("aten._pdist_backward")
def pdist_backward(g: Any, x: Any, p: float, found: Any) -> Any:
    """Return the gradient of the distances of pairs, by both rows of each."""
    at = jnp.triu_indices(x.shape[0], 1)
    square = jnp.zeros((x.shape[0],) * 2, g.dtype)
    g, found = (square.at[at].set(v) + square.at[at].set(v).T for v in (g, found))
    return cdist_backward(g, x, x, p, found)
