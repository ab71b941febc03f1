"""Attaching a derivative to values that were computed without one.

    outs = attach(rule, inputs, values, name=...)

`values` were computed from inputs behind a gate. If it is closed they have no
derivative; if it is open they have that of forward's operations, which is dropped.
`outs` are equal to the values, and have the derivative by `inputs` that `rule` gives.

The calling convention of the equation  `*outs = attach[...] *inputs *closed *values`:

    inputs      The first `n_in` operands. The derivative is taken with respect to them.
    closed      The next `n_closed`: traced values that forward closed over, if the gate
                is open; else `n_closed` is None. A derivative by one of these raises,
                because the rules don't give it.
    values      The last operands, equal to the outs. If `n_closed` is None, a
                derivative of one of them raises, because forward closed over it.
    tangent_rule    rule(inputs, outs, tangents of inputs) -> tangents of the outs. None
                is a zero tangent in both. It is a Python callable, and runs only if
                somebody differentiates.
    spreads     Whether a vmap gives each example a value of its own.

The invariants: `rule` holds no array and no tracer, because it outlives the trace; what
it needs of the call is among `inputs`. And it gets the outs with their derivative, so a
derivative of the outs of any order meets the rule.

Why a primitive, and not a `jax.custom_jvp` that is called again:
- forward ran once, with its ctx; calling the decorated function would run it again;
- partial evaluation of a scan's body may drop the rule of a custom_jvp in the half that
  it knows (`compat.SCAN_DROPS_JVP`), so second derivatives were silently wrong.
  Ordinary primitives keep theirs, and this is one;
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
        closed_over: Other traced values used to compute `values`. Give it if the values
            have a derivative of their own, which is to be dropped.
        spreads: Give each example of a vmap a value of its own, even if the value is
            the same for all (see `tie`). If False, each value must be batched already
            if its tangent can be.
    """
    # If nothing is traced, nobody can differentiate the values.
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
    """The rule of one call, which is asked only once for the same types.

    JAX differentiates a branch or the body of a loop several times, until it knows
    which of its results have a tangent. It remembers the result of the rule of a
    custom_jvp. This class remembers a jaxpr of the rule. If values are known, the rule
    gets them instead, and runs each time.
    """

    def __init__(self, name: str, fun: Rule) -> None:
        super().__init__(name, fun)
        self._traced: dict[Any, tuple[list[Any], compat.Staged, list[bool]]] = {}

    @functools.cached_property
    def next(self) -> _Rule:
        """The same for the next derivative, which may be taken in other contexts."""
        return _Rule(self.name, self._fun)

    def along(self, inputs: list[Any], outs: list[Any], dots: list[Any]) -> list[Any]:
        """Return the tangents of the outs, None for zero."""
        nonzero = [d is not None for d in dots]
        values = [*inputs, *outs, *[d for d in dots if d is not None]]
        # A rule that is given values may need them: one in NumPy can't be traced.
        if not compat.is_staging() or not all(map(compat.is_abstract, values)):
            return list(self(inputs, outs, dots))
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
            What it closes over; the traced rule, which gives the tangents that are not
            zero; and for each output whether it has one of these.
        """
        n_in, n = len(inputs), len(inputs) + len(outs)
        present: list[bool] = []

        def flat(*values: Any) -> list[Any]:
            given = iter(values[n:])
            dots = [next(given) if is_nonzero else None for is_nonzero in nonzero]
            found = self(list(values[:n_in]), list(values[n_in:n]), dots)
            present[:] = [t is not None for t in found]
            return [t for t in found if t is not None]

        closed_over, staged = compat.Staged.trace(flat, (), *values)
        return closed_over, staged, present


def _impl(*args: Any, n_in: int, n_closed: int | None, **_: Any) -> list[Any]:
    """Return the values, which stand last among the arguments."""
    return list(args[n_in + (n_closed or 0) :])


# The values are a function of the inputs, outs = F(inputs), whose derivative the rule
# gives:  d outs = tangents(inputs, outs, d inputs).  The tangents of `values` have no
# part in it. The rule gets `outs`, bound anew, and not the values: so what it computes
# from them is differentiated by this rule again.
def _jvp(primals: Sequence[Any], dots: Sequence[Any], **params: Any) -> Any:
    n_in, n_closed = params["n_in"], params["n_closed"]
    # The values were computed from inputs without derivative. If they have one all the
    # same, forward closed over its source, and the rule would lose it. If they have
    # that of the body (closed_over is given), the sources tell.
    lost = dots[n_in:] if n_closed is None else dots[n_in : n_in + n_closed]
    if any(d is not None for d in lost):
        name = params["tangent_rule"].name
        raise errors.ClosedOverError(errors.CLOSED_OVER.format(name=name))
    outs = _bind(*primals, **{**params, "tangent_rule": params["tangent_rule"].next})
    # The derivative of the body alone, which is dropped.
    if all(d is None for d in dots[:n_in]):
        return outs, [None] * len(outs)
    found = params["tangent_rule"].along(list(primals[:n_in]), outs, list(dots[:n_in]))
    return outs, found


# The rule of a batch is the rule under vmap: each example's tangents come from its own
# inputs and outs. The batch axis of a value stays in its place, because JAX compares it
# with that of the function which was not differentiated.
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

    def tangents(inputs: Any, outs: Any, dots: Any) -> list[Any]:
        # A tangent has the shape of its input, and the batch axis in the same place.
        found = axis.vmap(rule, (in_dims, out_dims, in_dims))(inputs, outs, dots)
        return [
            None if t is None else _like(t, d)
            for t, d in zip(found, out_dims, strict=True)
        ]

    outs = attach(
        tangents,
        args[:n_in],
        values,
        name=rule.name,
        closed_over=None if n_closed is None else args[n_in:start],
        spreads=params["spreads"],
    )
    return outs, out_dims


def _within(axis: Any, rule: _Rule) -> _Rule:
    """Return the rule, for values that all examples share: it may use the axis."""
    return _Rule(rule.name, shared(axis, rule, rule.name))


def shared(axis: Any, fun: Callable[..., Sequence[Any]], name: str) -> Any:
    """Return `fun` for a whole batch that shares its arguments and its results.

    It runs inside the vmap, so it may use the axis, in a collective for example. What
    it gives is a derivative of a value that all examples share: if each example gives
    the value a factor of its own, nobody can tell its part.
    """

    def call(*args: Any) -> list[Any]:
        found, differs = axis.around(fun, *args)
        if any(differs):
            raise errors.RuleError(errors.OWN_DERIVATIVE.format(name=name))
        return [None if t is None else t[0] for t in found]

    return call


def _like(t: Any, dim: int | None) -> Any:
    """Move the batch axis of a tangent from the front to the axis `dim` of its value.

    The tangent of a value that all examples share is the same for all: take the first.
    """
    return t[0] if dim is None else jnp.moveaxis(t, 0, dim)


# ---- transposing a call


# A linear call may be transposed as it stands (jax.linear_transpose). That transposes
# what forward computes, as for a jax.custom_jvp; the rule has no part in it. As an
# operation this is outs = values: the cotangents go to the values, none to the inputs.
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
