"""Fourier transforms."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxfn.torch._ops.row import row

_SCALES = ("backward", "ortho", "forward")
"""JAX's names for torch's scales of a forward transform: 1, by root, by size."""


@row("aten._fft_c2c")
def fft_c2c(x: Any, dim: Any, normalization: int, forward: bool) -> Any:
    """Transform complex numbers to complex numbers."""
    if not dim:
        return x
    if forward:
        return jnp.fft.fftn(x, axes=dim, norm=_SCALES[normalization])
    return jnp.fft.ifftn(x, axes=dim, norm=_SCALES[2 - normalization])


@row("aten._fft_r2c")
def fft_r2c(x: Any, dim: Any, normalization: int, onesided: bool) -> Any:
    """Transform real numbers to complex numbers."""
    fn = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return fn(x, axes=dim, norm=_SCALES[normalization])


@row("aten._fft_c2r")
def fft_c2r(x: Any, dim: Any, normalization: int, last: int) -> Any:
    """Transform half of the complex numbers to real numbers."""
    sizes = [*[x.shape[d] for d in dim[:-1]], last]
    return jnp.fft.irfftn(x, s=sizes, axes=dim, norm=_SCALES[2 - normalization])
