"""Two extended dtypes with derivatives.

`MAX` is what Flax keeps the scales of 8-bit training in: an array of float32 whose
cotangents add up by their maximum. `QUANTIZED` holds integers, and has tangents of
float32.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import core, dtypes, earray
from jax._src.interpreters import pxla

QUANTIZED = dtypes.primal_tangent_dtype("int8", "float32")


FLOAT32 = np.dtype("float32")


class _Rules:
    """What JAX asks about the dtype; Flax answers in the same way."""

    @staticmethod
    def physical_element_aval(dtype):
        return core.ShapedArray((), dtype.of)

    @staticmethod
    def convert_from(dtype, other):
        return other == dtype.of

    @staticmethod
    def convert_to(other, dtype):
        return other == dtype.of

    @staticmethod
    def tangent_dtype(dtype):
        return dtype

    @staticmethod
    def add(dtype, x, y):
        return to_max(lax.max(from_max(x), from_max(y)))

    @staticmethod
    def zero(dtype):
        return to_max(np.float32(-np.inf))

    @staticmethod
    def full(shape, value, dtype):
        return to_max(lax.full(shape, lax.convert_element_type(value, dtype.of)))

    @staticmethod
    def global_sharded_result_handler(aval, sharding, committed):
        physical = core.physical_aval(aval)
        make = pxla.global_result_handlers[core.ShapedArray]
        handler = make(physical, sharding, committed)
        return lambda buffers: earray.EArray(aval, handler(buffers))


class _Scalar(dtypes.extended):
    pass


@dataclasses.dataclass(frozen=True)
class _Max(dtypes.ExtendedDType):
    of: Any = FLOAT32
    _rules: Any = _Rules
    type: Any = _Scalar

    def __repr__(self):
        return "max32"

    name = property(__repr__)


MAX = _Max()


@jax.jit
def to_max(x: Any) -> Any:
    return lax.convert_element_type(x, MAX)


def from_max(x: Any) -> Any:
    return lax.convert_element_type(x, jnp.float32)


def quantized(x: Any) -> Any:
    """Works in a trace alone: JAX has no array of such a dtype outside."""
    return lax.convert_element_type(x, QUANTIZED)


def from_quantized(x: Any) -> Any:
    return lax.convert_element_type(x, jnp.int8).astype(jnp.float32)


def readable(tree: Any) -> Any:
    """The values as lists."""

    def values(x):
        return (from_max(x) if x.dtype == MAX else x).tolist()

    return jax.tree.map(values, tree)
