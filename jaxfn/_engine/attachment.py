"""Attaching a derivative to values that were computed without one.

    outs = attach(rule, inputs, values, name=...)

`values` were computed from inputs behind a gate. If it is closed, they have no
derivative. If it is open, they have the derivative of forward's operations, which is
dropped. `outs` equal the values, and have the derivative by `inputs` that `rule` gives.

The calling convention of the equation  `*outs = attach[...] *inputs *closed *values`:

    inputs      The first `n_in` operands. The derivative is taken with respect to them.
    closed      The next `n_closed`: traced values that forward closed over, if the gate
                is open; else `n_closed` is None. A derivative by one of these raises,
                because the rules don't give it.
    values      The last operands, equal to the outs. If `n_closed` is None, a
                derivative of one of them raises, because forward closed over it.
    tangent_rule    rule(inputs, outs, tangents of inputs) -> tangents of the outs. None
                is a zero tangent in both. It is a Python callable, and runs only if JAX
                differentiates.
    spreads     Whether a vmap gives each example a value of its own.

The invariants: `rule` holds no array and no tracer, because it outlives the trace;
`inputs` hold all that it needs of the call. And it gets the outs with their derivative,
so derivatives of any order use the rule.

The reasons for a primitive, instead of another call of a `jax.custom_jvp`:
- forward ran once, with its ctx; calling the decorated function would run it again;
- partial evaluation of a scan's body may drop the rule of a custom_jvp in the known
  half (`compat.SCAN_DROPS_JVP`), which makes second derivatives silently wrong. A
  primitive keeps its rule;
- a tangent that reaches `values` shows that forward closed over a traced value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._base import compat, errors, is_inexact

Rule = Callable[[list[Any], list[Any], list[Any]], Sequence[Any]]


def attach(
    rule: Rule,
    inputs: Sequence[Any],
    values: Sequence[Any],
    *,
    name: str,
    closed_over: Sequence[Any] | None = None,
    spreads: bool = False,
) -> list[Any]:
    """Return the values, with the derivative that `rule` gives; see the module.

    Args:
        rule: The rule.
        inputs: Arrays.
        values: Arrays; returned as they are if nothing here is a tracer.
        name: Name of the Function or rule, for messages and in jaxprs.
        closed_over: Other traced values used to compute `values`. Pass it if the values
            have a derivative of their own, which must be dropped.
        spreads: Whether each example of a vmap gets its own value, even if the value is
            the same for all (see `tie`). If False, each value whose tangent can be
            batched must be batched already.
    """
    # If nothing is traced, JAX can't differentiate the values.
    if not any(map(compat.is_tracer, (*inputs, *values))):
        return list(values)
    return _bind(
        *inputs,
        *(closed_over or ()),
        *values,
        tangent_rule=_Rule(name, rule),
        n_in=len(inputs),
        n_closed=None if closed_over is None else len(closed_over),
        spreads=spreads,
    )


class _Rule(compat.Named):
    """The rule of one call, which runs only once for the same types.

    JAX differentiates a branch or the body of a loop several times, until it knows
    which results have a tangent. For a custom_jvp, JAX caches the result of the rule.
    This class caches a jaxpr of the rule. If values are known, the rule gets them
    instead, and runs each time.
    """

    def __init__(self, name: str, fun: Rule) -> None:
        super().__init__(name, fun)
        self._traced: dict[Any, tuple[list[Any], compat.Staged, list[bool]]] = {}

    @functools.cached_property
    def next(self) -> _Rule:
        """The same rule for the next derivative, which may come in other contexts."""
        return _Rule(self.name, self._fun)

    def along(
        self, inputs: list[Any], outs: list[Any], tangents: list[Any]
    ) -> list[Any]:
        """Return the tangents of the outs, None for zero."""
        nonzero = [t is not None for t in tangents]
        values = [*inputs, *outs, *[t for t in tangents if t is not None]]
        # A rule that gets values may need them: a rule in NumPy can't be traced.
        if not compat.is_staging() or not all(map(compat.is_abstract, values)):
            return list(self(inputs, outs, tangents))
        key = (*map(jax.typeof, values), *nonzero)
        traced = self._traced.get(key) or self._trace(nonzero, inputs, outs, values)
        closed_over, staged, present = traced
        # A tracer that the rule closed over must not outlive its trace.
        if not any(map(compat.is_tracer, closed_over)):
            self._traced[key] = traced
        found = iter(staged(*closed_over, *values))
        return [next(found) if is_there else None for is_there in present]

    def _trace(
        self, nonzero: list[bool], inputs: list[Any], outs: list[Any], values: list[Any]
    ) -> tuple[list[Any], compat.Staged, list[bool]]:
        """Trace the rule.

        Returns:
            The closed-over values; the traced rule, which gives the nonzero tangents;
            and for each output whether it has one of them.
        """
        n_in, n = len(inputs), len(inputs) + len(outs)
        present: list[bool] = []

        def flat(*values: Any) -> list[Any]:
            rest = iter(values[n:])
            tangents = [next(rest) if is_nonzero else None for is_nonzero in nonzero]
            found = self(list(values[:n_in]), list(values[n_in:n]), tangents)
            present[:] = [t is not None for t in found]
            return [t for t in found if t is not None]

        closed_over, staged = compat.Staged.trace(flat, (), *values)
        return closed_over, staged, present


def _impl(*args: Any, n_in: int, n_closed: int | None, **_: Any) -> list[Any]:
    """Return the values, which stand last among the arguments."""
    return list(args[n_in + (n_closed or 0) :])


# The outs are a function of the inputs, outs = F(inputs), whose derivative the rule
# gives: d outs = rule(inputs, outs, d inputs). The tangents of `values` have no part in
# it. The rule gets `outs`, bound anew, and not the values. So JAX differentiates all
# that it computes from them by this rule again.
def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    n_in, n_closed = params["n_in"], params["n_closed"]
    # The values were computed from inputs without derivative. If they have one, forward
    # closed over its source, and the rule would lose it. If they have the body's
    # derivative (closed_over is given), check its sources instead.
    lost = tangents[n_in:] if n_closed is None else tangents[n_in : n_in + n_closed]
    if any(d is not None for d in lost):
        name = params["tangent_rule"].name
        raise errors.ClosedOverError(errors.CLOSED_OVER.format(name=name))
    outs = _bind(*primals, **{**params, "tangent_rule": params["tangent_rule"].next})
    # Only the derivative of the body is asked for. Drop it.
    if all(t is None for t in tangents[:n_in]):
        return outs, [None] * len(outs)
    found = params["tangent_rule"].along(
        list(primals[:n_in]), outs, list(tangents[:n_in])
    )
    return outs, found


# The rule of a batch is the rule under vmap: each example's tangents come from its own
# inputs and outs. The batch axis of a value stays in its place, because JAX compares it
# with the axis in the undifferentiated function.
def _batch(axis: Any, args: Any, dims: Any, **params: Any) -> Any:
    n_in, n_closed, rule = params["n_in"], params["n_closed"], params["tangent_rule"]
    start = n_in + (n_closed or 0)
    if all(d is None for d in dims):
        outs = _bind(*args, **{**params, "tangent_rule": _within(axis, rule)})
        return outs, [None] * len(outs)
    values, in_dims, out_dims = (
        list(args[start:]),
        list(dims[:n_in]),
        list(dims[start:]),
    )
    for i, d in enumerate(out_dims):
        if d is None and params["spreads"] and is_inexact(values[i]):
            values[i], out_dims[i] = axis.to_front(values[i], None), 0

    def of_batch(inputs: Any, outs: Any, tangents: Any) -> list[Any]:
        # A tangent has the shape of its input, and the batch axis in the same place.
        found = axis.vmap(rule, (in_dims, out_dims, in_dims))(inputs, outs, tangents)
        return [
            None if t is None else _like(t, d)
            for t, d in zip(found, out_dims, strict=True)
        ]

    outs = attach(
        of_batch,
        args[:n_in],
        values,
        name=rule.name,
        closed_over=None if n_closed is None else args[n_in:start],
        spreads=params["spreads"],
    )
    return outs, out_dims


def _within(axis: Any, rule: _Rule) -> _Rule:
    """Return the rule for values that all examples share; it may use the axis."""
    return _Rule(rule.name, shared(axis, rule, rule.name))


def shared(axis: Any, fun: Callable[..., Sequence[Any]], name: str) -> Any:
    """Return `fun` for a batch whose examples share all arguments and results.

    It runs inside the vmap, so it may use the axis, for example in a collective. Its
    result is a derivative of a value that all examples share. If the result differs
    among examples, no example's part can be told apart.
    """

    def call(*args: Any) -> list[Any]:
        found, differs = axis.around(fun, *args)
        if any(differs):
            raise errors.RuleError(errors.OWN_DERIVATIVE.format(name=name))
        return [None if t is None else t[0] for t in found]

    return call


def _like(t: Any, dim: int | None) -> Any:
    """Move the batch axis of a tangent from the front to the axis `dim` of its value.

    If all examples share a value, they share its tangent: take the first.
    """
    return t[0] if dim is None else jnp.moveaxis(t, 0, dim)


# ---- transposing a call


# jax.linear_transpose may transpose a linear call as it is. As for a jax.custom_jvp, it
# transposes forward's operations; the rule has no part in it. This operation is outs =
# values, so the cotangents go to the values, none to the inputs.
def _transpose(cts: Sequence[Any], args: Any, **_: Any) -> Any:
    return [None] * (len(args) - len(cts)) + list(cts)


_bind = compat.define_primitive(
    "attach",
    impl=_impl,
    abstract_eval=_impl,
    jvp=_jvp,
    batch=_batch,
    transpose=_transpose,
    selects=True,
)
