"""Jaxprs whose calls are put in place, where there is something in them to rewrite."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from jaxfn._base import compat
from jaxfn._engine.finite import is_nan, of_finite

# Calls that are evaluated in place: a solve inside of one may be given what is computed
# outside of it.
_CALLS = frozenset(("jit", "pjit", "closed_call"))
_CHECKPOINTS = frozenset(("remat2", "checkpoint"))
# What `rewriting` knows how to do in other operations.
_REWRITTEN = frozenset(("custom_linear_solve", "stop_gradient", "custom_vmap_call"))


def inlined(closed: Any) -> tuple[Any, Sequence[Any]]:
    """Put what calls do in their place, where there is something in them to rewrite.

    Returns:
        The jaxpr, which takes some constants first; and these.
    """
    jaxpr, _ = compat.open_jaxpr(closed)
    if not is_rewritten(closed):
        return closed, ()
    return compat.trace_flat(partial(_in_place, closed), [x.aval for x in jaxpr.invars])


def _is_inlined(eqn: Any) -> bool:
    # A checkpoint says not to keep what is inside, so it stays one where that can be.
    name = eqn.primitive.name
    return name in _CALLS or (name in _CHECKPOINTS and holds(eqn))


def _in_place(closed: Any, *args: Any) -> list[Any]:
    """Evaluate a jaxpr, and calls that are put in place equation by equation."""
    jaxpr, consts = compat.open_jaxpr(closed)
    names = [*jaxpr.constvars, *jaxpr.invars]
    env = dict(zip(map(id, names), (*consts, *args), strict=True))
    for eqn in jaxpr.eqns:
        values = [read(env, x) for x in eqn.invars]
        if _is_inlined(eqn):
            outs = _in_place(_bodies(eqn)[0], *values)
        else:
            outs = compat.evaluate_equation(eqn, values)
        env.update(zip(map(id, eqn.outvars), outs, strict=True))
    return [read(env, x) for x in jaxpr.outvars]


def read(env: dict[int, Any], x: Any) -> Any:
    return x.val if hasattr(x, "val") else env[id(x)]


def is_rewritten(closed: Any) -> bool:
    """Is there something in a jaxpr to rewrite?"""
    return any(
        eqn.primitive.name in _REWRITTEN
        or of_finite(eqn) is not None
        or any(map(is_nan, eqn.invars))
        or holds(eqn)
        for eqn in compat.open_jaxpr(closed)[0].eqns
    )


def holds(eqn: Any) -> bool:
    """Is there something to rewrite in a jaxpr that an operation holds?"""
    return any(map(is_rewritten, _bodies(eqn)))


def _bodies(eqn: Any) -> Sequence[Any]:
    """Return the jaxprs of an operation if it is one that is rebuilt here."""
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        return params["branches"]
    if name in _CALLS | _CHECKPOINTS | {"scan"}:
        return [params["jaxpr" if "jaxpr" in params else "call_jaxpr"]]
    return []
