"""The transformations of `torch.func`, and JAX's under the same names."""

from __future__ import annotations

import types
from typing import Any

import jax


def func(fw: Any) -> Any:
    """`torch.func`, or its counterpart in JAX.

    What a transformation returns is passed to `fw.call`, which adds the mode.
    """
    if fw.name == "torch":
        return fw.torch.func
    return types.SimpleNamespace(
        grad=jax.grad,
        vjp=jax.vjp,
        jvp=jax.jvp,
        jacrev=jax.jacrev,
        jacfwd=jax.jacfwd,
        hessian=jax.hessian,
        linearize=jax.linearize,
        vmap=lambda f, in_dims=0: jax.vmap(f, in_axes=in_dims),
    )


def tangent(fw: Any, f: Any, x: Any, t: Any) -> Any:
    """The tangent of `f` at `x` by func's jvp."""
    return func(fw).jvp(f, (x,), (t,))[1]
