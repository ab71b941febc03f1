"""Which values were computed from which, while JAX records a jaxpr."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from jax._src.core import Literal, internal_mutable_array_effect
from jax._src.interpreters.partial_eval import DynamicJaxprTracer, JaxprTracer

from jaxfn._base.compat.flow import results
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
    """A look at the equations that JAX records from the moment when this is made.

    There are some only where JAX traces a function whose jaxpr it keeps.

    Attributes:
        active: whether it does so here.
    """

    def __init__(self) -> None:
        trace = staging()
        self.active = trace is not None
        self._equations = [] if trace is None else trace.frame.tracing_eqns
        self._constants = {} if trace is None else trace.frame.constvar_to_val
        self._known = len(self._constants)
        self._begin = len(self._equations)
        self._start = self._begin  # of those that were not looked at yet
        self._recorded: dict[int, Any] = {}  # by identity

    def covers(self, outs: Sequence[Any], inputs: Sequence[Any]) -> list[bool]:
        """Say for each output whether it is surely batched wherever an input is.

        A vmap at work shows on the values. One that comes later batches some of the
        traced inputs, and all that is computed from them.
        """
        axes = frozenset[int]().union(*map(batch_axes, inputs))
        made: dict[int, int] = {}  # which inputs each variable was made of, by identity
        for j, x in enumerate(map(known_value, inputs)):
            if isinstance(x, DynamicJaxprTracer):
                made[id(x.val)] = made.get(id(x.val), 0) | 1 << j
            elif is_tracer(x):
                return [False] * len(outs)  # of a transformation that shows nothing
        whole = sum(set(made.values()))
        for eqn in map(_equation, self._equations[self._begin :] if whole else ()):
            operands = [made.get(id(x.val), 0) for x in eqn.in_tracers] if eqn else ()
            if any(operands):
                made.update(
                    zip(map(id, eqn.outvars), results(eqn, operands), strict=True)
                )

        def is_made_of_all(x: Any) -> bool:
            return isinstance(x, DynamicJaxprTracer) and made.get(id(x.val)) == whole

        return [
            axes <= batch_axes(x) and (not whole or is_made_of_all(known_value(x)))
            for x in outs
        ]

    def _holds(self, eqn: Any) -> bool:
        """Was this equation recorded since this was made?"""
        new, self._start = self._equations[self._start :], len(self._equations)
        self._recorded.update((id(found), found) for found in map(_equation, new))
        return id(eqn) in self._recorded

    def closed_over(self, values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Find the traced values, other than inputs, from which `values` came."""
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
            elif x.parent is not None and self._holds(x.parent):
                todo += x.parent.in_tracers
            elif is_tracer(_constant(x)):
                found.append(x)
        return found

    def loses_derivative(self, inputs: Sequence[Any]) -> bool:
        """Has a value that can only go wrong (`is_lost`) been used since, but inputs?

        JAX finds out late, when it compiles, and not if nobody uses what came of it.
        """
        if len(self._constants) == self._known:  # as mostly: this is asked at each call
            return False
        new = itertools.islice(self._constants.values(), self._known, None)
        lost = [x for x in map(inside, new) if is_lost(x)]
        known = {id(inside(x)) for x in inputs}
        return any(id(x) not in known for x in lost)

    @property
    def makes_references(self) -> bool:
        """Has a reference (jax.new_ref) been made since?"""
        for eqn in map(_equation, self._equations[self._begin :]):
            if eqn and eqn.effects and internal_mutable_array_effect in eqn.effects:
                return True
        return False

    def outside(self, values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Find what has come since from elsewhere than `inputs`.

        These are the values from outside that equations used, and what they read from
        references that were made outside; not these references.

        Args:
            values: the results, which may have been read too.
            inputs: the inputs.
        """
        known, found = {id(inside(x)) for x in inputs}, {}
        eqns = filter(None, map(_equation, self._equations[self._begin :]))
        used = [x for eqn in eqns for x in eqn.in_tracers]

        def is_outside(x: Any) -> bool:
            made_here = x.parent is not None and self._holds(x.parent)
            return not made_here and id(x) not in known

        for x in (*used, *filter(is_tracer, map(inside, values))):
            read = () if x.parent is None else filter(is_reference, x.parent.in_tracers)
            if not is_reference(x) and (is_outside(x) or any(map(is_outside, read))):
                found[id(x)] = x
        return list(found.values())


def _equation(entry: Any) -> Any:
    """Return an equation that was recorded, or None where nothing uses it any more."""
    # Some entries are weak references, which JAX calls to get the equation; in JAX
    # 0.10.0 others are functions that return it.
    return entry() if callable(entry) else entry


def _constant(x: Any) -> Any:
    """Return the value that a traced constant stands for; `x` where it is none."""
    if not isinstance(x, DynamicJaxprTracer):
        return x
    if isinstance(x.val, Literal):
        return x.val.val
    return x._trace.frame.constvar_to_val.get(x.val, x)


def is_constant(x: Any) -> bool:
    """Is `x` the same whatever is transformed: an array, or a tracer for a constant?"""
    while is_tracer(x):
        value = _constant(x)
        if value is x:
            return False
        x = value
    return True
