"""Dependencies between values while JAX traces a jaxpr."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from types import NoneType
from typing import Any

from jax._src.core import Literal, internal_mutable_array_effect
from jax._src.interpreters.partial_eval import DynamicJaxprTracer

from jaxfn._base.compat.jaxprs import open_jaxpr
from jaxfn._base.compat.staged import is_reference
from jaxfn._base.compat.traces import (
    batch_axes,
    inside,
    is_lost,
    is_tracer,
    known_value,
    staging,
)


class Recording:
    """The equations that JAX traces from now on.

    Attributes:
        active: Whether JAX is tracing a jaxpr, so equations exist.
    """

    def __init__(self) -> None:
        trace = staging()
        self.active = trace is not None
        self._equations = [] if trace is None else trace.frame.tracing_eqns
        self._constants = {} if trace is None else trace.frame.constvar_to_val
        self._known = len(self._constants)
        self._begin = len(self._equations)

    def covers(self, outs: Sequence[Any], inputs: Sequence[Any]) -> list[bool]:
        """Return for each output whether it is certainly batched if any input is.

        Values show whether a vmap is active. A later vmap batches some of the traced
        inputs, and all values computed from them.
        """
        axes = frozenset[int]().union(*map(batch_axes, inputs))
        made: dict[int, int] = {}  # bits of the inputs of each variable, by identity
        for j, x in enumerate(map(known_value, inputs)):
            if isinstance(x, DynamicJaxprTracer):
                made[id(x.val)] = made.get(id(x.val), 0) | 1 << j
            elif is_tracer(x):
                return [False] * len(outs)  # of another transformation
        whole = sum(set(made.values()))
        for eqn in map(_equation, self._equations[self._begin :] if whole else ()):
            operands = [made.get(id(x.val), 0) for x in eqn.in_tracers] if eqn else ()
            if any(operands):
                made.update(
                    zip(map(id, eqn.outvars), _results(eqn, operands), strict=True)
                )

        def is_made_of_all(x: Any) -> bool:
            return isinstance(x, DynamicJaxprTracer) and made.get(id(x.val)) == whole

        return [
            axes <= batch_axes(x) and (not whole or is_made_of_all(known_value(x)))
            for x in outs
        ]

    def closed_over(self, values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Find the tracers from outside, other than `inputs`, that have been used.

        References (jax.new_ref) from outside don't count, but the values read from them
        do. `values`, the results, count as used.
        """
        known = {id(inside(x)) for x in inputs}
        eqns = list(filter(None, map(_equation, self._equations[self._begin :])))
        made = set(map(id, eqns))

        def is_outside(x: Any) -> bool:
            parent = getattr(x, "parent", None)
            return id(x) not in known and (parent is None or id(parent) not in made)

        found: dict[int, Any] = {}
        for x in [*[x for eqn in eqns for x in eqn.in_tracers], *map(inside, values)]:
            if not is_tracer(_constant(x)) or is_reference(x):
                continue
            parent = getattr(x, "parent", None)
            read = () if parent is None else filter(is_reference, parent.in_tracers)
            if is_outside(x) or any(map(is_outside, read)):
                found[id(x)] = x
        return list(found.values())

    def loses_derivative(self, inputs: Sequence[Any]) -> bool:
        """Return whether a value that loses its derivative (`is_lost`) was used.

        `inputs` don't count. JAX raises only when it compiles, and only if the result
        is used.
        """
        if len(self._constants) == self._known:  # fast path
            return False
        new = itertools.islice(self._constants.values(), self._known, None)
        lost = [x for x in map(inside, new) if is_lost(x)]
        known = {id(inside(x)) for x in inputs}
        return any(id(x) not in known for x in lost)

    @property
    def makes_references(self) -> bool:
        """Whether an equation makes a reference (jax.new_ref)."""
        for eqn in map(_equation, self._equations[self._begin :]):
            if eqn and eqn.effects and internal_mutable_array_effect in eqn.effects:
                return True
        return False


def _equation(entry: Any) -> Any:
    """Return the equation of an entry, or None if it is unused."""
    # Some entries are weak references. In JAX 0.10.0 others are functions.
    return entry() if callable(entry) else entry


def _constant(x: Any) -> Any:
    """Return the value of a traced constant; `x` if it is none."""
    if not isinstance(x, DynamicJaxprTracer):
        return x
    if isinstance(x.val, Literal):
        return x.val.val
    return x._trace.frame.constvar_to_val.get(x.val, x)


def is_constant(x: Any) -> bool:
    """Return whether `x` is an array, or a tracer of a constant."""
    while is_tracer(x):
        value = _constant(x)
        if value is x:
            return False
        x = value
    return True


# ---- the operands that reach each result of an equation

PAIRED = frozenset(("device_put", "optimization_barrier"))
"""Operations of many operands, with a result for each."""

# Their jaxpr has the inputs and outputs of the equation, in the same order.
_CALLS = frozenset(
    ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")
    + ("remat2", "checkpoint")
)


def _results(eqn: Any, operands: Sequence[int]) -> list[int]:
    """Return for each result the bits of the operands that certainly reach it.

    The result is batched if one of these operands is. Calls are followed. The results
    of loops and branches have no bits, because they may not mix their operands. Neither
    have those of a collective, which removes the axis of a vmap.
    """
    n, name, params = len(eqn.outvars), eqn.primitive.name, eqn.params
    if name in PAIRED:
        return list(operands)
    # The other operands belong to the derivative, which doesn't batch a result.
    if name == "attach":
        return list(operands[len(operands) - n :])
    if name in _CALLS:
        return _through(params.get("jaxpr") or params["call_jaxpr"], operands)
    if name != "linear" and (_holds_jaxpr(params) or _has_named_axes(eqn)):
        return [0] * n
    return [functools.reduce(operator.or_, operands, 0)] * n


def _through(jaxpr: Any, inputs: Sequence[int]) -> list[int]:
    """Return for each output of a jaxpr the bits of the inputs that reach it."""
    opened, _ = open_jaxpr(jaxpr)
    # By identity, because a literal has no hash.
    env = {id(var): bits for var, bits in zip(opened.invars, inputs, strict=True)}
    for eqn in opened.eqns:
        found = _results(eqn, [env.get(id(x), 0) for x in eqn.invars])
        env.update(zip(map(id, eqn.outvars), found, strict=True))
    return [env.get(id(x), 0) for x in opened.outvars]


def _holds_jaxpr(params: dict[str, Any]) -> bool:
    """Return whether the parameters of an equation hold jaxprs."""
    if "branches" in params or "jaxprs" in params:
        return True
    return any(hasattr(x, "eqns") or hasattr(x, "jaxpr") for x in params.values())


def _has_named_axes(eqn: Any) -> bool:
    """Return whether an equation uses a named axis: a collective or an axis_index."""
    # Reductions have `axes` too, but these are integers.
    axes = eqn.params.get("axis_name", eqn.params.get("axes"))
    named = axes if isinstance(axes, (tuple, list)) else (axes,)
    return any(not isinstance(x, (int, NoneType)) for x in named)
