"""Functions of NumPy that `jax.numpy` has too, of the same name and meaning.

They are written so where all that they are given and all that they give has one dtype of
real or complex numbers: what the two libraries make of mixed and of whole numbers is not
the same. Anything else that NumPy or SciPy computes runs in `jaxfn.host_function`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

_ELEMENTWISE = """
abs absolute add arccos arcsin arctan arctan2 ceil conj conjugate cos cosh divide exp
expm1 floor log log10 log1p log2 maximum minimum multiply negative reciprocal sign sin
sinh sqrt square subtract tan tanh
"""
_REST = """
amax amin array broadcast_to clip concatenate cumsum diag dot einsum expand_dims flip fliplr
flipud hstack matmul max mean min moveaxis outer ravel reshape roll squeeze stack std sum
swapaxes tensordot tile trace transpose tril triu var vstack where
linalg.cholesky linalg.det linalg.inv linalg.norm linalg.solve
"""
KEYWORDS = {"axis", "axes", "keepdims", "ddof", "shift", "k"}
"""Keywords that mean the same to both."""

OF_SEQUENCES = {"array", "concatenate", "hstack", "stack", "vstack"}
"""The functions that take a list of arrays."""


def _found(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


SAME = {
    _found(np, name): name
    for name in (*_ELEMENTWISE.split(), *_REST.split())
    if callable(_found(jnp, name))
}
"""Their names, by the functions of NumPy themselves, however a file imports them."""

_MAKERS = """
arange array empty empty_like eye full full_like linspace ones ones_like zeros zeros_like
"""
MADE = {_found(np, name): name for name in _MAKERS.split()}
"""What makes arrays: in `jax.numpy` if they are written to later."""

METHODS = {
    "all", "any", "argmax", "argmin", "astype", "clip", "conj", "conjugate", "cumsum",
    "diagonal", "dot", "flatten", "max", "mean", "min", "prod", "ravel", "repeat",
    "reshape", "squeeze", "std", "sum", "swapaxes", "trace", "transpose", "var",
}  # fmt: skip
"""Methods of NumPy's arrays that JAX's have too."""

VIEWED = {"diagonal", "ravel", "reshape", "squeeze", "swapaxes", "transpose", "view"}
"""Those whose result may share memory with its array."""

VIEWING = {
    np.array, np.array_split, np.asanyarray, np.asarray, np.ascontiguousarray,
    np.asfortranarray, np.atleast_1d, np.atleast_2d, np.atleast_3d, np.broadcast_arrays,
    np.broadcast_to, np.diagonal, np.dsplit, np.expand_dims, np.flip, np.fliplr, np.flipud,
    np.hsplit, np.imag, np.moveaxis, np.nan_to_num, np.ravel, np.real, np.real_if_close,
    np.require, np.reshape, np.rollaxis, np.rot90, np.split, np.squeeze, np.swapaxes,
    np.transpose, np.trim_zeros, np.vsplit,
}  # fmt: skip
"""Functions whose result may share memory with an argument, or may not."""

IN_PLACE = {
    "byteswap",
    "fill",
    "itemset",
    "partition",
    "put",
    "resize",
    "setfield",
    "sort",
}
"""Those that write to their array."""

WRITING = {
    np.copyto, np.fill_diagonal, np.place, np.put, np.put_along_axis, np.putmask,
}  # fmt: skip
"""Functions that write to what they are given."""

BY_VALUE = {
    np.argwhere, np.compress, np.extract, np.flatnonzero, np.nonzero, np.unique,
    np.union1d, np.intersect1d, np.setdiff1d, np.trim_zeros,
}  # fmt: skip
"""Functions whose result has a shape that depends on values."""

ATTRIBUTES = {
    "T",
    "dtype",
    "imag",
    "itemsize",
    "nbytes",
    "ndim",
    "real",
    "shape",
    "size",
}
"""Attributes of NumPy's arrays that JAX's have too."""

KINDS = (np.ndarray, np.generic)
"""Types that JAX's arrays are none of, to be asked for by `isinstance`."""
