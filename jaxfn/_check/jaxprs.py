"""Properties of jaxprs that checks use."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxfn._base import compat


def count_equations(jaxpr: Any) -> int:
    """Count the equations of a jaxpr, including nested jaxprs."""
    if isinstance(jaxpr, (tuple, list)):
        return sum(map(count_equations, jaxpr))
    eqns = getattr(compat.open_jaxpr(jaxpr)[0], "eqns", ())
    return sum(1 + count_equations(list(eqn.params.values())) for eqn in eqns)


def may_not_end(jaxpr: Any) -> bool:
    """Return whether a while_loop has a condition on floats but not on integers."""
    if isinstance(jaxpr, (tuple, list)):
        return any(map(may_not_end, jaxpr))
    for eqn in getattr(compat.open_jaxpr(jaxpr)[0], "eqns", ()):
        if eqn.primitive.name == "while":
            compared = _compared(eqn.params["cond_jaxpr"])
            if compared and not any(jnp.issubdtype(d, jnp.integer) for d in compared):
                return True
        if any(map(may_not_end, eqn.params.values())):
            return True
    return False


def _compared(jaxpr: Any) -> set[Any]:
    """Return the dtypes of the operands of comparisons."""
    if isinstance(jaxpr, (tuple, list)):
        return set().union(*map(_compared, jaxpr))
    found: set[Any] = set()
    for eqn in getattr(compat.open_jaxpr(jaxpr)[0], "eqns", ()):
        if eqn.primitive.name in ("lt", "le", "gt", "ge", "eq", "ne"):
            found |= {x.aval.dtype for x in eqn.invars}
        found |= _compared(list(eqn.params.values()))
    return found
