"""Which operands of an equation reach which of its results."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from jaxfn._base.compat.jaxprs import has_named_axes, open_jaxpr

PAIRED = frozenset(("device_put", "optimization_barrier"))
"""Operations of many operands, with a result for each."""

# Their jaxpr has the inputs and outputs of the equation, in the same order.
_CALLS = frozenset(
    ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")
    + ("remat2", "checkpoint")
)


def results(eqn: Any, operands: Sequence[int]) -> list[int]:
    """Return for each result the bits of the operands that surely reach it.

    The result is batched if such an operand is batched. Calls are followed. Loops and
    branches may not mix their operands, and a collective removes the axis of a vmap, so
    their results have no bits.
    """
    n, name, params = len(eqn.outvars), eqn.primitive.name, eqn.params
    if name in PAIRED:
        return list(operands)
    # The other operands belong to the derivative, which doesn't batch a result.
    if name == "attach":
        return list(operands[len(operands) - n :])
    if name in _CALLS:
        return _through(params.get("jaxpr") or params["call_jaxpr"], operands)
    if name != "linear" and (_holds_jaxpr(params) or has_named_axes(eqn)):
        return [0] * n
    return [functools.reduce(operator.or_, operands, 0)] * n


def _through(jaxpr: Any, inputs: Sequence[int]) -> list[int]:
    """Return for each output of a jaxpr the bits of the inputs that reach it."""
    opened, _ = open_jaxpr(jaxpr)
    # By identity, because a literal has no hash.
    env = {id(var): bits for var, bits in zip(opened.invars, inputs, strict=True)}
    for eqn in opened.eqns:
        found = results(eqn, [env.get(id(x), 0) for x in eqn.invars])
        env.update(zip(map(id, eqn.outvars), found, strict=True))
    return [env.get(id(x), 0) for x in opened.outvars]


def _holds_jaxpr(params: dict[str, Any]) -> bool:
    """Do the parameters of an equation hold jaxprs?"""
    return (
        "branches" in params
        or "jaxprs" in params
        or any(hasattr(x, "eqns") or hasattr(x, "jaxpr") for x in params.values())
    )
