"""Tests for NaN and infinity."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp


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
    if name in ("eq", "ne") and jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.inexact):
        x, y = eqn.invars
        if x is y:
            return name == "eq"
        if _is_infinity(x) or _is_infinity(y):
            return name == "ne"
    return None


def _is_infinity(x: Any) -> bool:
    """Is it written in the program as an infinity?"""
    value = getattr(x, "val", None)
    return value is not None and jnp.ndim(value) == 0 and math.isinf(abs(value))
