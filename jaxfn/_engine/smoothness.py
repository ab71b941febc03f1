"""Is a traced function affine if its derivative is constant?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxfn._base import compat
from jaxfn._engine.linearity import body_of

# Their authors say what their derivatives are.
_CHOSEN = (
    *("gate", "attach", "linear"),
    *("custom_jvp_call", "custom_vjp_call", "custom_lin", "remat_opt"),
    *("call_hi_primitive", "call_hi_primitive_linearized"),
)


def is_smooth(jaxpr: Any, moving: Sequence[bool] | None = None) -> bool:
    """Is the function one whose derivative, if that is constant, proves it affine?

    It is not where an operation is constant in pieces (sign has the derivative 0), or
    has a derivative that its author chose (custom_jvp, and ours). So all operations
    that its inputs reach must be some that JAX can transpose, or scatters that set and
    sorts, which JAX differentiates but does not transpose.

    Args:
        jaxpr: of the function.
        moving: which inputs count; without it, all.
    """
    jaxpr, _ = compat.open_jaxpr(jaxpr)
    if moving is None:
        moving = [True] * len(jaxpr.invars)
    pairs = zip(jaxpr.invars, moving, strict=True)
    reached = {id(var) for var, moves in pairs if moves}
    for eqn in jaxpr.eqns:
        moves = [id(x) in reached for x in eqn.invars]
        if not any(moves):
            continue
        reached |= {id(var) for var in eqn.outvars}
        name = eqn.primitive.name
        known = name in ("scatter", "sort") or compat.has_transpose(eqn.primitive)
        if name in _CHOSEN or not known:
            return False
        if not all(is_smooth(body, given) for body, given in _bodies(eqn, moves)):
            return False
    return True


def _bodies(eqn: Any, moves: list[bool]) -> list[tuple[Any, list[bool] | None]]:
    """List the jaxprs that an equation runs, each with which of its inputs count."""
    params = eqn.params
    if "branches" in params:
        return [(branch, moves[1:]) for branch in params["branches"]]
    body = body_of(eqn)
    if body is None:
        return []
    # What a loop carries may be reached in a later step.
    return [(body, None if eqn.primitive.name == "scan" else moves)]
