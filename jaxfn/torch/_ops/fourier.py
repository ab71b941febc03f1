"""Fourier transforms."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxfn.torch._ops.row import row


def _norm(x: Any, sizes: Any, how: int) -> Any:
    count = 1
    for n in sizes:
        count *= n
    # 0: nothing, 1: by the root of the count, 2: by the count.
    return x / count ** {0: 0, 1: 0.5, 2: 1}[how]


@row("aten._fft_c2c")
def fft_c2c(x: Any, dim: Any, normalization: int, forward: bool) -> Any:
    """Of complex numbers, to complex numbers."""
    if not dim:
        return x
    found = (
        jnp.fft.fftn(x, axes=dim)
        if forward
        else jnp.fft.ifftn(x, axes=dim, norm="forward")
    )
    return _norm(found, [x.shape[d] for d in dim], normalization)


@row("aten._fft_r2c")
def fft_r2c(x: Any, dim: Any, normalization: int, onesided: bool) -> Any:
    """Of real numbers, to complex numbers."""
    found = jnp.fft.rfftn(x, axes=dim) if onesided else jnp.fft.fftn(x, axes=dim)
    return _norm(found, [x.shape[d] for d in dim], normalization)


@row("aten._fft_c2r")
def fft_c2r(x: Any, dim: Any, normalization: int, last: int) -> Any:
    """Of half of the complex numbers, to real numbers."""
    sizes = [*[x.shape[d] for d in dim[:-1]], last]
    found = jnp.fft.irfftn(x, s=sizes, axes=dim, norm="forward")
    return _norm(found, sizes, normalization)
