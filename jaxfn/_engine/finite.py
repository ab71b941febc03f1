"""Tests for NaN and infinity, and NaN in the place of a result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfn._base import compat


def of_finite(eqn: Any) -> bool | None:
    """Say what a test for NaN or infinity gives for finite numbers.

    These are `isfinite(x)`, `x != x` and the comparison with an infinity, of which
    `isnan` and `isinf` are made.

    Returns:
        True or False; None for any other operation.
    """
    name = eqn.primitive.name
    if name == "is_finite":
        return True
    if name in ("eq", "ne") and _is_inexact(eqn.invars[0]):
        x, y = eqn.invars
        if x is y:
            return name == "eq"
        if _is_infinity(x) or _is_infinity(y):
            return name == "ne"
    return None


def _is_inexact(x: Any) -> bool:
    return jnp.issubdtype(x.aval.dtype, jnp.inexact)


def _is_infinity(x: Any) -> bool:
    """Is it written in the program as an infinity?"""
    value = getattr(x, "val", None)
    return value is not None and jnp.ndim(value) == 0 and math.isinf(abs(value))


# Of NaN these make NaN again. JAX writes `jnp.full(shape, jnp.nan)` as one NaN that is
# broadcast.
_FILLING = frozenset(
    ("broadcast_in_dim", "convert_element_type", "reshape", "copy", "pvary")
)


def is_filling(eqn: Any) -> bool:
    """Is its result NaN where its first operand is nothing else?"""
    return eqn.primitive.name in _FILLING and _is_inexact(eqn.outvars[0])


def is_nan(x: Any) -> bool:
    """Is it written in the program as NaN?"""
    value = getattr(x, "val", None)
    return value is not None and _is_inexact(x) and bool(np.all(np.isnan(value)))


def with_nan(
    which: Any, cases: Sequence[Any], nans: Sequence[bool], moves: Sequence[bool]
) -> Any:
    """Choose between cases of which some are NaN, by an operation that is linear.

    That a result is NaN, whatever is transposed, says that there is none. This is
    `where(which, y, nan)` as `y * where(which, 1, nan)`; so its transpose is NaN there
    too.

    Args:
        which: says which case to take, as for `lax.select_n`.
        cases: these.
        nans: which of them are NaN.
        moves: which depend on what is transposed.
    """
    instead = next(x for x, moved in zip(cases, moves, strict=True) if moved)
    zeros = compat.zeros(jax.typeof(instead))
    pairs = zip(cases, nans, strict=True)
    y = lax.select_n(which, *[instead if nan else x for x, nan in pairs])
    factors = [zeros + (math.nan if nan else 1) for nan in nans]
    return y * lax.select_n(which, *factors)
