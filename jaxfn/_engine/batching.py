"""A user's batch rule into `jax.custom_batching.custom_vmap`.

JAX asserts, without a message, that a custom_vmap closes over no batched value. But if
JAX computes both branches of a cond, it batches constants too. And a user who closes
over a value that differs among examples needs a message. Therefore jaxfn traces the
function first, and the closed-over values become the first arguments of the
custom_vmap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from jaxfn._base import Outputs, OutSpec, compat, errors, is_inexact
from jaxfn._engine.attachment import attach
from jaxfn._engine.gate import without_derivative
from jaxfn._engine.rules import Arrays, Batch, Fun, jvp_along


def with_batch_rule(fun: Fun, batch: Batch | None, *, name: str) -> Fun:
    """Return `fun(*arrays)` with a batch rule, for code that JAX never differentiates.

    If no argument is a tracer, nothing can be batched, and `fun` runs as it is.
    custom_vmap would trace it, which a NumPy body does not allow.
    """
    if batch is None:
        return fun

    def call(*arrays: Any) -> Outputs:
        if not any(compat.is_tracer(x) for x in arrays):
            return fun(*arrays)
        closed_over, traced = _trace(fun, batch, arrays, name)
        return traced.batching(*closed_over, *arrays)

    return call


def differentiable(fun: Fun, batch: Batch, *, name: str) -> Fun:
    """Return `fun(*arrays)` with a batch rule, and with the derivative of `fun`.

    JAX has no reverse mode for a custom_vmap. So a custom_jvp surrounds it, whose rule
    differentiates the trace of `fun`. The rule leaves out effects: they happen with the
    value.
    """

    def call(*arrays: Any) -> Outputs:
        if not any(compat.is_tracer(x) for x in arrays):
            return fun(*arrays)
        closed_over, traced = _trace(fun, batch, arrays, name)
        if compat.is_staging() and any(map(compat.is_reference, closed_over)):
            raise NotImplementedError(errors.REFERENCE.format(name=name))
        value = traced.for_scans if compat.SCAN_DROPS_JVP else traced.batching

        def rule(primals: Arrays, tangents: Arrays) -> tuple[Outputs, Outputs]:
            outs = f(*primals)
            args = list(map(compat.as_array, primals))
            in_tangents = list(map(compat.as_tangent, tangents))
            out_tangents = traced.tangents(args, outs.arrays, in_tangents)
            found = compat.with_zeros(out_tangents, outs.arrays)
            return outs, Outputs(found, outs.static)

        f = jax.custom_jvp(value)
        f.defjvp(rule, symbolic_zeros=compat.SYMBOLIC_ZEROS)
        try:
            return f(*closed_over, *arrays)
        except jax.errors.UnexpectedTracerError as error:
            # The batch rule closes over a value that is being differentiated.
            said = errors.CLOSED_OVER.format(name=name)
            raise errors.ClosedOverError(said) from error

    return call


def _trace(fun: Fun, batch: Batch, arrays: Arrays, name: str) -> tuple[Arrays, _Traced]:
    """Trace `fun(*arrays)`; return the closed-over values and the traced function."""
    if compat.in_kernel():
        raise NotImplementedError(errors.BATCHED_IN_KERNEL.format(name=name))
    static: list[OutSpec] = []

    def flat(*arrays: Any) -> list[Any]:
        outs = fun(*arrays)
        static[:] = [outs.static]
        return outs.arrays

    closed_over, staged = compat.Staged.trace(flat, (), *arrays)
    fixed = tuple(map(compat.is_constant, closed_over))
    return closed_over, _Traced(name, staged, static[0], batch, fixed)


@dataclasses.dataclass(frozen=True)
class _Traced:
    """A traced function with a batch rule.

    It outlives its trace, so it holds no tracer. The closed-over values come first
    among the arguments of `batching`, `for_scans` and `tangents`.

    Attributes:
        name: Name of the function, for messages and jaxprs.
        staged: The traced function.
        static: Structure of its outputs.
        batch: The user's batch rule.
        fixed: For each closed-over value, whether it is a constant.
    """

    name: str
    staged: compat.Staged
    static: OutSpec
    batch: Batch
    fixed: tuple[bool, ...]

    @property
    def batching(self) -> Fun:
        """The function with its batch rule, without a derivative."""
        f = jax.custom_batching.custom_vmap(_named(self._value, self.name))
        f.def_vmap(lambda size, batched, *values: self._rule(size, batched, values))
        return f

    def _value(self, *values: Any) -> Outputs:
        return Outputs(self.staged(*values), self.static)

    def _rule(
        self, size: int, batched: Sequence[bool], values: Arrays
    ) -> tuple[Outputs, Outputs]:
        """Call the user's rule, which gets the arguments but no closed-over values.

        No closed-over value may differ among examples; a constant never does.
        """
        n = len(self.fixed)
        if any(b and not f for b, f in zip(batched, self.fixed, strict=False)):
            raise errors.ClosedOverError(errors.BATCHED_CLOSURE.format(name=self.name))
        if any(batched[n:]):
            return self.batch(size, batched[n:], list(values[n:]))
        # A constant that is batched has the same value for all examples.
        pairs = zip(values, batched, strict=True)
        outs = self._value(*[x[0] if b else x for x, b in pairs])
        return outs, Outputs([False] * len(outs.arrays), outs.static)

    @property
    def for_scans(self) -> Fun:
        """The function with its batch rule, and with a derivative that a scan keeps."""

        def call(*values: Any) -> Outputs:
            outs, rule = self.batching(*without_derivative(values)), self.tangents
            kept = attach(rule, values, outs.arrays, name=self.name, spreads=True)
            return Outputs(kept, outs.static)

        return _named(call, self.name)

    def tangents(self, inputs: Arrays, outs: Arrays, tangents: Arrays) -> list[Any]:
        """Differentiate the trace of the function, whose effects have happened."""
        if any(t is not None for t in tangents[: len(self.fixed)]):
            raise errors.ClosedOverError(errors.CLOSED_OVER.format(name=self.name))
        if any(map(compat.is_reference, inputs)):
            raise NotImplementedError(errors.REFERENCE.format(name=self.name))
        again = self.staged.repeated()
        if again is None:
            raise NotImplementedError(errors.NOT_REPEATABLE.format(name=self.name))
        return jvp_along(again, inputs, tangents, [is_inexact(x) for x in outs])


def _named(fun: Fun, name: str) -> Fun:
    """Return a function that calls `fun`, under the name that jaxprs show."""

    def call(*values: Any) -> Outputs:
        return fun(*values)

    call.__name__ = name
    return call
