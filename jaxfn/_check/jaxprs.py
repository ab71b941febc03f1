"""Properties of jaxprs that checks use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jaxfn._core import internals


def count_equations(jaxpr: Any) -> int:
    """Count the equations of a jaxpr, including nested jaxprs."""
    if isinstance(jaxpr, (tuple, list)):
        return sum(map(count_equations, jaxpr))
    eqns = getattr(internals.open_jaxpr(jaxpr)[0], "eqns", ())
    return sum(1 + count_equations(list(eqn.params.values())) for eqn in eqns)


def least_precise(jaxpr: Any) -> list[Any]:
    """Return for each output the least precise float dtype that it is computed in.

    Of a loop or a branch, all outputs count alike. None is for an output without one.
    """
    opened, _ = internals.open_jaxpr(jaxpr)
    found: dict[int, Any] = {}
    for eqn in opened.eqns:
        before = [found.get(id(x)) for x in eqn.invars]
        n = len(eqn.outvars)
        if eqn.primitive.name == "attach":  # it returns its last operands
            found |= zip(map(id, eqn.outvars), before[-n:], strict=True)
            continue
        inner = [
            least_precise(x)
            for param in eqn.params.values()
            for x in (param if isinstance(param, (tuple, list)) else [param])
            if hasattr(internals.open_jaxpr(x)[0], "eqns")
        ]
        if [len(x) for x in inner] != [n] or eqn.primitive.name == "scan":
            inner = [[_least([d for x in inner for d in x])] * n]
        for x, own in zip(eqn.outvars, inner[0], strict=True):
            found[id(x)] = _least([*before, own, getattr(x.aval, "dtype", None)])
    return [found.get(id(x)) for x in opened.outvars]


def _least(dtypes: Sequence[Any]) -> Any:
    floats = [d for d in dtypes if d is not None and jnp.issubdtype(d, jnp.inexact)]
    return max(floats, key=lambda d: float(jnp.finfo(d).eps), default=None)


def may_not_end(jaxpr: Any) -> bool:
    """Return whether a while_loop has a condition on floats but not on integers."""
    if isinstance(jaxpr, (tuple, list)):
        return any(map(may_not_end, jaxpr))
    for eqn in getattr(internals.open_jaxpr(jaxpr)[0], "eqns", ()):
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
    for eqn in getattr(internals.open_jaxpr(jaxpr)[0], "eqns", ()):
        if eqn.primitive.name in ("lt", "le", "gt", "ge", "eq", "ne"):
            found |= {x.aval.dtype for x in eqn.invars}
        found |= _compared(list(eqn.params.values()))
    return found


_BATCHED_AS_TOLD = {
    *("custom_vmap_call", "custom_partitioning", "ffi_call"),
    *("pure_callback", "io_callback"),
}
# Looked up before any check runs, because it takes an import after which some versions
# of JAX compile anew what they have compiled.
_PUBLIC = internals.public_primitives()
_MORE = {  # more of JAX's, and ours, which JAX batches by their jaxprs
    *("stack", "unstack", "random_wrap", "random_unwrap"),
    *("attach", "gate", "linear"),
}


def is_batched_by_jax(jaxpr: Any) -> bool:
    """Return whether JAX alone decides how a jaxpr is batched."""
    if isinstance(jaxpr, (tuple, list)):
        return all(map(is_batched_by_jax, jaxpr))
    for eqn in getattr(internals.open_jaxpr(jaxpr)[0], "eqns", ()):
        name = eqn.primitive.name
        known = eqn.primitive in _PUBLIC or name in _MORE
        if not known or name in _BATCHED_AS_TOLD:
            return False
        if not all(map(is_batched_by_jax, eqn.params.values())):
            return False
    return True
