"""Values from JAX, and their types."""

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
    """Return `x` as a `jax.Array` of the same type, weak or not.

    Every value from JAX passes through here. JAX passes constants as Python numbers
    (some with a dtype: TypedFloat), NumPy arrays and scalars, or typed NumPy arrays.
    These lack `.at` or `.shape`.
    """
    if isinstance(x, jax.Array) or not isinstance(x, _CONSTANTS):
        return x
    value: Any = x
    aval = jax.typeof(value)
    if aval.dtype == jax.dtypes.float0:
        return x  # a cotangent of integers: JAX leaves it in NumPy
    return _convert_element_type(value, aval.dtype, weak_type=aval.weak_type)


_CONSTANTS = (int, float, complex, np.ndarray, np.generic)


def is_zero(x: Any) -> bool:
    """Return whether `x` is a symbolic zero of JAX."""
    return type(x) is ad.Zero or type(x) is SymbolicZero


def as_tangent(x: Any) -> Any:
    """Return a tangent or cotangent from JAX as a `jax.Array`; None for a zero."""
    return None if is_zero(x) else as_array(x)


def with_zeros(tangents: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    """Return the tangents of outputs, with symbolic zeros in place of None."""
    return [
        SymbolicZero(tangent_aval(out)) if t is None else t
        for t, out in zip(tangents, outs, strict=True)
    ]


def type_of(x: Any) -> Any:
    """Return the type of a value or type."""
    return x if isinstance(x, Aval) else jax.typeof(x)


def tangent_dtype(dtype: Any) -> Any:
    """Return the dtype of tangents: float0 for integers."""
    return primal_dtype_to_tangent_dtype(dtype)


def tangent_aval(x: Any) -> Aval:
    """Return the type of tangents of `x`, an array or a type: float0 for integers."""
    return type_of(x).to_tangent_aval()


def has_type(x: Any, aval: Any) -> bool:
    """Return whether `x` has this type, including sharding and varying mesh axes."""
    if type(x) is ConcreteArray and aval.sharding.mesh.empty:
        return x.shape == aval.shape and x.dtype == aval.dtype
    return jax.typeof(x) == aval


def zeros(aval: Any) -> jax.Array:
    """Make zeros of this type, with its sharding and varying mesh axes.

    A `shard_map` that checks types refuses `jnp.zeros`, which lacks them.
    """
    return ad.zeros_like_aval(aval)


def varying_axes(x: Any) -> frozenset[Hashable]:
    """Return the mesh axes that `x` varies over, in a `shard_map` that checks types."""
    mat = getattr(type_of(x), "mat", None)
    return frozenset() if mat is None else mat.varying


def is_sharded(x: Any) -> bool:
    """Return whether the type of `x` has an explicit sharding."""
    explicit = jax.sharding.AxisType.Explicit
    return explicit in type_of(x).sharding.mesh.axis_types


def is_unreduced(x: Any) -> bool:
    """Return whether `x` or its cotangent must still be summed (unreduced, reduced).

    JAX adds such a value only to its like.
    """
    aval = type_of(x)
    types = (aval.sharding.spec, getattr(aval, "mat", None))
    return any(getattr(t, "unreduced", ()) or getattr(t, "reduced", ()) for t in types)


def is_sharded_otherwise(x: Any, aval: Any) -> bool:
    """Return whether the types have different explicit shardings."""
    have, want = type_of(x).sharding, aval.sharding
    explicit = jax.sharding.AxisType.Explicit
    return have != want and all(explicit in s.mesh.axis_types for s in (have, want))


def match_varying(x: Any, like: Any) -> Any:
    """Cast `x` to vary over the mesh axes that `like` varies over.

    In a `shard_map` that checks types, varying and unvarying values have different
    types, and a cotangent must have the type of its argument.
    """
    missing = tuple(varying_axes(like) - varying_axes(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x
