"""Dtypes that torch and JAX promote differently.

In torch, a 0-d tensor does not widen an array, and a tensor that is written to keeps
its dtype. In JAX, all arrays widen, and only Python's numbers don't.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn.torch._translate.observe import ExprType
from jaxfn.torch._translate.syntax import cst, fill


def promoted(facts: Sequence[ExprType]) -> str | None:
    """Return the dtype that JAX finds for these; None if one of them is not known."""
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
    """Return whether it was a 0-d tensor in all runs."""
    return fact.is_tensor and bool(fact.shapes) and not any(fact.shapes)


def too_wide(facts: Sequence[ExprType], result: ExprType) -> list[int]:
    """Return the 0-d tensors by which JAX would widen the result."""
    wanted = result.dtype
    if wanted in (None, "bool") or promoted(facts) in (None, wanted):
        return []
    return [i for i, f in enumerate(facts) if is_scalar(f) and f.dtype != wanted]


def widens(written: ExprType, others: Sequence[ExprType]) -> bool:
    """Return whether JAX would change the dtype of what is written to."""
    if not written.is_tensor or written.dtype in (None, "bool"):
        return False
    return promoted([written, *others]) not in (None, written.dtype)


def narrowed(
    values: Sequence[Any], facts: Sequence[ExprType], at: Sequence[int]
) -> Any:
    """Return the values, these cast to another's dtype; None if none has a name."""
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
