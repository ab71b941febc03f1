"""Tests for NaN and infinity, and NaN in the place of a result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfn._base import compat, is_inexact


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
    if name in ("eq", "ne") and has_derivative(eqn.invars[0]):
        x, y = eqn.invars
        if x is y:
            return name == "eq"
        if _is_infinity(x) or _is_infinity(y):
            return name == "ne"
    return None


def has_derivative(x: Any) -> bool:
    """Is a variable, or a literal, of float or complex type?"""
    return is_inexact(x.aval)


def _is_infinity(x: Any) -> bool:
    """Is it written in the program as an infinity?"""
    value = getattr(x, "val", None)
    return value is not None and jnp.ndim(value) == 0 and math.isinf(abs(value))


# Of NaN these make NaN again. JAX writes `jnp.full(shape, jnp.nan)` as one NaN that is
# broadcast.
_FILLING = frozenset(
    ("broadcast_in_dim", "convert_element_type", "reshape", "copy", "pvary")
)
# Where an element of an operand is NaN, something in their result is. (A slice may
# leave it out, and a choice may take another.)
_PASSING = _FILLING | frozenset(
    ("add", "add_any", "sub", "mul", "div", "neg", "real", "reduce_sum", "dot_general")
    + ("transpose", "squeeze", "concatenate", "rev")
)


def is_nan(x: Any, filled: AbstractSet[int] = frozenset()) -> bool:
    """Is it written in the program as NaN, or one of the variables `filled` with it?"""
    value = getattr(x, "val", None)
    if value is None:
        return id(x) in filled
    return has_derivative(x) and bool(np.all(np.isnan(value)))


def filled_with_nan(jaxpr: Any) -> set[int]:
    """Find the variables that are NaN and nothing else, whatever the arguments are."""
    filled: set[int] = set()
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _FILLING and is_nan(eqn.invars[0], filled):
            filled.update(map(id, filter(has_derivative, eqn.outvars)))
    return filled


def coming_out(jaxpr: Any, filled: AbstractSet[int]) -> set[int]:
    """Find the variables of which each element that is NaN makes an output NaN.

    Args:
        jaxpr: the program.
        filled: the variables that are NaN.
    """
    found = set(map(id, jaxpr.outvars))
    for eqn in reversed(jaxpr.eqns):
        if not any(id(x) in found for x in eqn.outvars):
            continue
        if eqn.primitive.name in _PASSING:
            found.update(map(id, eqn.invars))
        elif eqn.primitive.name == "select_n":
            # Where it does not take this case, it takes NaN.
            cases = eqn.invars[1:]
            others = [x for x in cases if not is_nan(x, filled)]
            found.update(map(id, others if len(others) == 1 else ()))
    return found


def with_nan(
    which: Any, cases: Sequence[Any], nans: Sequence[bool], moves: Sequence[bool]
) -> Any:
    """Choose between cases of which some are NaN, by an operation that is linear.

    That a result is NaN, whatever is transposed, says that there is none. This is
    `where(which, y, nan)` as `y * where(which, 1, nan)`; so its transpose is NaN there
    too. Where nothing of that NaN came out it would be wrong: see `coming_out`.

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
