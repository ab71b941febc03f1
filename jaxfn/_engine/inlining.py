"""Jaxprs with linear solves in them, whose calls are put in place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from jaxfn._base import compat

# Calls that are evaluated in place: a solve inside of one may be given what is computed
# outside of it.
_INLINED = frozenset(("jit", "pjit", "closed_call", "remat2", "checkpoint"))


def inlined(closed: Any) -> tuple[Any, Sequence[Any]]:
    """Put what calls do in their place, where there is a solve in them.

    Returns:
        The jaxpr, which takes some constants first; and these.
    """
    jaxpr, _ = compat.open_jaxpr(closed)
    if not any(map(_is_inlined, jaxpr.eqns)):
        return closed, ()
    return compat.trace_flat(partial(_in_place, closed), [x.aval for x in jaxpr.invars])


def _is_inlined(eqn: Any) -> bool:
    return eqn.primitive.name in _INLINED and has_solve(bodies(eqn)[0])


def _in_place(closed: Any, *args: Any) -> list[Any]:
    """Evaluate a jaxpr, and calls that hold a solve equation by equation."""
    jaxpr, consts = compat.open_jaxpr(closed)
    names = [*jaxpr.constvars, *jaxpr.invars]
    env = dict(zip(map(id, names), (*consts, *args), strict=True))
    for eqn in jaxpr.eqns:
        values = [read(env, x) for x in eqn.invars]
        if _is_inlined(eqn):
            outs = _in_place(bodies(eqn)[0], *values)
        else:
            outs = compat.evaluate_equation(eqn, values)
        env.update(zip(map(id, eqn.outvars), outs, strict=True))
    return [read(env, x) for x in jaxpr.outvars]


def read(env: dict[int, Any], x: Any) -> Any:
    return x.val if hasattr(x, "val") else env[id(x)]


def has_solve(closed: Any) -> bool:
    jaxpr, _ = compat.open_jaxpr(closed)
    return any(
        eqn.primitive.name == "custom_linear_solve" or any(map(has_solve, bodies(eqn)))
        for eqn in jaxpr.eqns
    )


def bodies(eqn: Any) -> Sequence[Any]:
    """Return the jaxprs of an operation if it is one that is rebuilt here."""
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        return params["branches"]
    if name in _INLINED or name == "scan":
        return [params["jaxpr" if "jaxpr" in params else "call_jaxpr"]]
    return []
