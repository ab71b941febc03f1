"""Dtypes that torch and JAX find differently.

A 0-d tensor does not widen what it meets in torch, and what is written to keeps its
dtype. In JAX all arrays count, and only Python's numbers do not widen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn.torch._translate.observe import ExprType
from jaxfn.torch._translate.syntax import cst, fill


def promoted(facts: Sequence[ExprType]) -> str | None:
    """The dtype that JAX finds for these; None if one of them is not known."""
    dtypes: list[Any] = [f.dtype for f in facts if f.is_tensor or f.kind == "array"]
    if not dtypes or None in dtypes:
        return None
    with jax.enable_x64(True):
        found = dtypes[0]
        for dtype in dtypes[1:]:
            found = jnp.promote_types(found, dtype)
        if any(f.kind == "float" for f in facts):
            found = jnp.result_type(jnp.dtype(found), 1.0)
    return str(found)


def is_scalar(fact: ExprType) -> bool:
    """Was it a 0-d tensor in all runs?"""
    return fact.is_tensor and bool(fact.shapes) and not any(fact.shapes)


def too_wide(facts: Sequence[ExprType], result: ExprType) -> list[int]:
    """The 0-d tensors by which JAX would widen the result."""
    wanted = result.dtype
    if wanted in (None, "bool") or promoted(facts) in (None, wanted):
        return []
    return [i for i, f in enumerate(facts) if is_scalar(f) and f.dtype != wanted]


def widens(written: ExprType, others: Sequence[ExprType]) -> bool:
    """Would JAX give what is written to another dtype than it has?"""
    if not written.is_tensor or written.dtype in (None, "bool"):
        return False
    return promoted([written, *others]) not in (None, written.dtype)


def narrowed(
    values: Sequence[Any], facts: Sequence[ExprType], at: Sequence[int]
) -> Any:
    """The values, these cast to the dtype of another; None if none has a name."""
    others = [
        v
        for i, (v, f) in enumerate(zip(values, facts, strict=True))
        if f.is_tensor and i not in at and isinstance(v, cst.Name)
    ]
    if not others:
        return None
    made = list(values)
    for i in at:
        made[i] = fill("x.astype(y.dtype)", {"x": values[i], "y": others[0]})
    return made
