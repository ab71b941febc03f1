"""Which operands of an equation get to which of its results."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from jaxfn._base.compat.jaxprs import has_named_axes, open_jaxpr

PAIRED = frozenset(("device_put", "optimization_barrier"))
"""Operations of many operands, each with a result of its own."""

# Their jaxpr has the inputs and outputs of the equation, in the same order.
_CALLS = frozenset(
    ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")
    + ("remat2", "checkpoint")
)


def results(eqn: Any, operands: Sequence[int]) -> list[int]:
    """Say for each result of an equation which bits of its operands surely get to it.

    A result is batched wherever such an operand is. Calls are followed. Loops and
    branches may keep their operands apart, and a collective takes the axis of a vmap
    away: they count for nothing.
    """
    n, name, params = len(eqn.outvars), eqn.primitive.name, eqn.params
    if name in PAIRED:
        return list(operands)
    # Its other operands are those of the derivative, which does not batch a result.
    if name == "attach":
        return list(operands[len(operands) - n :])
    if name in _CALLS:
        return _through(params.get("jaxpr") or params["call_jaxpr"], operands)
    if name != "linear" and (_holds_jaxpr(params) or has_named_axes(eqn)):
        return [0] * n
    return [functools.reduce(operator.or_, operands, 0)] * n


def _through(jaxpr: Any, inputs: Sequence[int]) -> list[int]:
    """Say for each output of a jaxpr which bits of its inputs get to it."""
    opened, _ = open_jaxpr(jaxpr)
    # By identity: a literal, which has no bits, can't be looked up by value.
    env = {id(var): bits for var, bits in zip(opened.invars, inputs, strict=True)}
    for eqn in opened.eqns:
        found = results(eqn, [env.get(id(x), 0) for x in eqn.invars])
        env.update(zip(map(id, eqn.outvars), found, strict=True))
    return [env.get(id(x), 0) for x in opened.outvars]


def _holds_jaxpr(params: dict[str, Any]) -> bool:
    """Does an equation with these parameters evaluate jaxprs?"""
    return (
        "branches" in params
        or "jaxprs" in params
        or any(hasattr(x, "eqns") or hasattr(x, "jaxpr") for x in params.values())
    )
