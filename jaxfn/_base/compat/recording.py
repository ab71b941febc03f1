"""Which values were computed from which, while JAX records a jaxpr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src.core import Literal
from jax._src.interpreters.partial_eval import DynamicJaxprTracer, JaxprTracer

from jaxfn._base.compat.jaxprs import has_named_axes, open_jaxpr
from jaxfn._base.compat.traces import inside, is_tracer, staging


class Recording:
    """A look at the equations that JAX records from the moment when this is made.

    There are some only where JAX traces a function whose jaxpr it keeps.

    Attributes:
        active: whether it does so here.
    """

    def __init__(self) -> None:
        trace = staging()
        self.active = trace is not None
        self._equations = [] if trace is None else trace.frame.tracing_eqns
        self._start = len(self._equations)

    def _recorded(self) -> set[int]:
        """Return the identities of the equations recorded so far."""
        # Some entries are weak references, which JAX calls to get the equation; in JAX
        # 0.10.0 others are functions that return it.
        return {
            id(eqn() if callable(eqn) else eqn)
            for eqn in self._equations[self._start :]
        }

    def used(self, value: Any, inputs: Sequence[Any]) -> set[int]:
        """Find the inputs that, if they were batched, would make `value` batched.

        From the equation that made `value` the search goes back to its operands, and
        from each of these to the equation that made it.

        An equation that holds a jaxpr may keep inputs and outputs apart: what is not
        looked into counts for nothing.
        """
        return _search(value, inputs, self._recorded(), sure=True)

    def maybe_used(self, value: Any, inputs: Sequence[Any]) -> set[int]:
        """Find the inputs that `value` may depend on: all where this is not known."""
        return _search(value, inputs, self._recorded(), sure=False)

    def closed_over(self, values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Find the traced values, other than inputs, from which `values` came."""
        recorded = self._recorded()
        seen = {id(inside(x)) for x in inputs}
        found: list[Any] = []
        todo = [inside(x) for x in values]
        while todo:
            x = todo.pop()
            if id(x) in seen or not is_tracer(x):
                continue
            seen.add(id(x))
            if isinstance(x, JaxprTracer) and x.parents:
                todo += x.parents
            elif not isinstance(x, DynamicJaxprTracer):
                found.append(x)  # of a transformation that shows no equations
            elif x.parent is not None and id(x.parent) in recorded:
                todo += x.parent.in_tracers
            elif is_tracer(_constant(x)):
                found.append(x)
        return found


def is_apart(value: Any, inputs: Sequence[Any]) -> bool:
    """Does JAX record a jaxpr here in which `value` does not depend on some input?"""
    if staging() is None:
        return False
    traced = {j for j, x in enumerate(inputs) if is_tracer(x)}
    return not traced <= _search(value, inputs, None, sure=False)


def _search(
    value: Any, inputs: Sequence[Any], recorded: set[int] | None, *, sure: bool
) -> set[int]:
    """Find the inputs that `value` was computed from.

    Args:
        value: the value.
        inputs: the inputs.
        recorded: the equations to look at; None for all.
        sure: leave out what may not be used; else all inputs are found where
            something comes from elsewhere.
    """
    places: dict[int, set[int]] = {}
    for j, x in enumerate(inputs):
        places.setdefault(id(inside(x)), set()).add(j)
    found: set[int] = set()
    seen: set[int] = set()
    todo = [inside(value)]
    while todo:
        x = todo.pop()
        if id(x) in seen or not is_tracer(x):
            continue
        seen.add(id(x))
        if id(x) in places:
            found |= places[id(x)]
        elif _is_made_by(x, recorded):
            todo += _operands(x, sure=sure)
        elif not sure and is_tracer(_constant(x)):
            return set(range(len(inputs)))
    return found


def _is_made_by(x: Any, recorded: set[int] | None) -> bool:
    """Was this value made by one of the equations?"""
    if not isinstance(x, DynamicJaxprTracer) or x.parent is None:
        return False
    return recorded is None or id(x.parent) in recorded


def _constant(x: Any) -> Any:
    """Return the value that a traced constant stands for; `x` where it is none."""
    if not isinstance(x, DynamicJaxprTracer):
        return x
    if isinstance(x.val, Literal):
        return x.val.val
    return x._trace.frame.constvar_to_val.get(x.val, x)


def _operands(x: DynamicJaxprTracer, *, sure: bool) -> list[Any]:
    """Return the operands that a result of an equation was computed from.

    Those that surely make it batched, if they are; or those that may.
    """
    eqn: Any = x.parent
    index = next(i for i, var in enumerate(eqn.outvars) if var is x.val)
    if _keeps_places(eqn):
        return [eqn.in_tracers[index - len(eqn.outvars)]]
    if not _is_opaque(eqn):
        return eqn.in_tracers
    body = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
    if body is None or eqn.primitive.name not in _CALLS:
        return [] if sure else eqn.in_tracers
    used = _used_in(body, index, sure=sure)
    return [t for t, is_used in zip(eqn.in_tracers, used, strict=True) if is_used]


# Their jaxpr has the inputs and outputs of the equation, in the same order. That of a
# scan, a cond or a while_loop has not, so these are not looked into.
_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


def _used_in(jaxpr: Any, index: int, *, sure: bool) -> list[bool]:
    """Say for each input of a jaxpr whether this output was computed from it."""
    opened, _ = open_jaxpr(jaxpr)
    used = {id(opened.outvars[index])}
    for eqn in reversed(opened.eqns):
        outs = [id(var) in used for var in eqn.outvars]
        if _keeps_places(eqn):
            last = eqn.invars[len(eqn.invars) - len(outs) :]
            used |= {id(x) for x, is_used in zip(last, outs, strict=True) if is_used}
        elif any(outs) and not (sure and _is_opaque(eqn)):
            used |= {id(x) for x in eqn.invars}
    return [id(var) in used for var in opened.invars]


def _keeps_places(eqn: Any) -> bool:
    """Is each result that of the operand in its place among the last: an `attach`?

    Its other operands are those of the derivative, which does not batch a result.
    """
    return eqn.primitive.name == "attach" and eqn.params["owned"]


def _is_opaque(eqn: Any) -> bool:
    """May a result of this equation not be batched, though an operand is?

    It may where the equation holds jaxprs, or is a collective over the axis of a vmap.
    """
    params = eqn.params
    if "branches" in params or any(
        hasattr(value, "eqns") or hasattr(value, "jaxpr") for value in params.values()
    ):
        return True
    return has_named_axes(eqn)
