"""Values that JAX hands on, and their types."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import core
from jax._src.lax.lax import _convert_element_type
from jax.extend.core import primal_dtype_to_tangent_dtype
from jax.interpreters import ad

from jaxfn._base.compat.traces import ConcreteArray

Aval: TypeAlias = core.AbstractValue


SymbolicZero = jax.custom_derivatives.SymbolicZero


def as_array(x: Any) -> Any:
    """Return `x` as a `jax.Array`: the boundary that every value from JAX passes.

    JAX hands constants on as what they were: Python numbers (some with a dtype:
    TypedFloat), NumPy arrays and scalars, typed NumPy arrays. A user's rule must not
    see these: they have no `.at`, and numbers have no `.shape`. The type stays what
    JAX says that it is, weak or not.
    """
    if isinstance(x, jax.Array) or not isinstance(x, _CONSTANTS):
        return x
    value: Any = x
    aval = jax.typeof(value)
    if aval.dtype == jax.dtypes.float0:
        return x  # a cotangent of integers; JAX itself keeps it in NumPy
    return _convert_element_type(value, aval.dtype, weak_type=aval.weak_type)


_CONSTANTS = (int, float, complex, np.ndarray, np.generic)


def is_zero(x: Any) -> bool:
    """Is `x` a tangent or cotangent that JAX knows to be zero?"""
    return type(x) is ad.Zero or type(x) is SymbolicZero


def as_tangent(x: Any) -> Any:
    """Return a tangent or cotangent of JAX's as a `jax.Array`; None if it is zero."""
    return None if is_zero(x) else as_array(x)


def with_zeros(tangents: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    """Return the tangents of outputs, with zeros that JAX can see in place of None.

    JAX computes nothing with such a zero, and an integer has no other tangent.
    """
    return [
        SymbolicZero(tangent_aval(out)) if t is None else t
        for t, out in zip(tangents, outs, strict=True)
    ]


def type_of(x: Any) -> Any:
    """Return the type of a value, or what is a type already."""
    return x if isinstance(x, Aval) else jax.typeof(x)


def tangent_dtype(dtype: Any) -> Any:
    """Return the dtype of tangents of arrays of a dtype: float0 if they have none."""
    return primal_dtype_to_tangent_dtype(dtype)


def tangent_aval(x: Any) -> Aval:
    """Return the type of a tangent of `x` (an array or a type): float0 for integers."""
    return type_of(x).to_tangent_aval()


def has_type(x: Any, aval: Any) -> bool:
    """Has `x`, an array, this type, with its sharding and varying mesh axes, if any?"""
    if type(x) is ConcreteArray and aval.sharding.mesh.empty:
        return x.shape == aval.shape and x.dtype == aval.dtype
    return jax.typeof(x) == aval


def zeros(aval: Any) -> jax.Array:
    """Make zeros of exactly this type, with its sharding and varying mesh axes.

    `jnp.zeros` of the shape and dtype alone would have neither, and a `shard_map` that
    checks types would refuse it as a cotangent.
    """
    return ad.zeros_like_aval(aval)


def varying_axes(x: Any) -> frozenset[Hashable]:
    """Return the mesh axes over which `x` varies, in a `shard_map` that checks them."""
    mat = getattr(type_of(x), "mat", None)
    return frozenset() if mat is None else mat.varying


def is_sharded(x: Any) -> bool:
    """Does the type of `x` say how it is sharded, on a mesh?"""
    explicit = jax.sharding.AxisType.Explicit
    return explicit in type_of(x).sharding.mesh.axis_types


def is_unreduced(x: Any) -> bool:
    """Does the type of `x` say that a sum over devices is due, of it or its cotangent?

    JAX adds it to nothing whose type does not say the same.
    """
    aval = type_of(x)
    types = (aval.sharding.spec, getattr(aval, "mat", None))
    return any(getattr(t, "unreduced", ()) or getattr(t, "reduced", ()) for t in types)


def is_sharded_otherwise(x: Any, aval: Any) -> bool:
    """Have the types other shardings, on a mesh where a type says its sharding?"""
    have, want = type_of(x).sharding, aval.sharding
    explicit = jax.sharding.AxisType.Explicit
    return have != want and all(explicit in s.mesh.axis_types for s in (have, want))


def match_varying(x: Any, like: Any) -> Any:
    """Say of `x` that it varies over all mesh axes over which `like` does.

    In a `shard_map` that checks types, the same value on every device has another type
    than one that varies, and JAX wants a cotangent of the type of its argument.
    """
    missing = tuple(varying_axes(like) - varying_axes(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x
