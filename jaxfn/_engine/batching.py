"""A user's batch rule into `jax.custom_batching.custom_vmap`.

JAX asserts, without a message, that no value that such a function closes over is
batched. But it batches a constant together with everything else if it computes both
branches of a cond; and whoever closes over a value that differs among examples needs a
message. Therefore a function is traced first, and the values that it closes over become
arguments of the custom_vmap, in front of its own.
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
    """Return `fun(*arrays)` with a batch rule, for code that nobody differentiates.

    If no argument is a tracer there is nothing to batch, and `fun` runs as it is:
    custom_vmap would trace it, and a NumPy body could not run.
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
    """Return `fun(*arrays)` with a batch rule; its derivative is that of `fun`.

    A custom_vmap alone has no reverse mode in JAX. Around it stands a custom_jvp whose
    rule differentiates the trace of `fun`, without the effects, which happen with the
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
            given = list(map(compat.as_tangent, tangents))
            dots = traced.tangents(args, outs.arrays, given)
            return outs, Outputs(compat.with_zeros(dots, outs.arrays), outs.static)

        f = jax.custom_jvp(value)
        f.defjvp(rule, symbolic_zeros=compat.SYMBOLIC_ZEROS)
        try:
            return f(*closed_over, *arrays)
        except jax.errors.UnexpectedTracerError as error:
            # The batch rule closes over what is being differentiated.
            said = errors.CLOSED_OVER.format(name=name)
            raise errors.ClosedOverError(said) from error

    return call


def _trace(fun: Fun, batch: Batch, arrays: Arrays, name: str) -> tuple[Arrays, _Traced]:
    """Trace `fun(*arrays)`; return what it closes over, and the traced function."""
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
    """A function with a batch rule, traced.

    It outlives its trace, so it holds no tracer: what the function closes over comes
    first among the arguments of `batching`, `for_scans` and `tangents`.

    Attributes:
        name: Name of the function, for messages and jaxprs.
        staged: The traced function.
        static: Structure of its outputs.
        batch: The user's batch rule.
        fixed: For each value that the function closes over, whether it is a constant.
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
        """Call the user's rule, which is told of the arguments alone.

        No value that was closed over may differ among examples; a constant never does.
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

    def tangents(self, inputs: Arrays, outs: Arrays, dots: Arrays) -> list[Any]:
        """Differentiate the trace of the function, whose effects have happened."""
        if any(d is not None for d in dots[: len(self.fixed)]):
            raise errors.ClosedOverError(errors.CLOSED_OVER.format(name=self.name))
        if any(map(compat.is_reference, inputs)):
            raise NotImplementedError(errors.REFERENCE.format(name=self.name))
        again = self.staged.repeated()
        if again is None:
            raise NotImplementedError(errors.NOT_REPEATABLE.format(name=self.name))
        return jvp_along(again, inputs, dots, [is_inexact(x) for x in outs])


def _named(fun: Fun, name: str) -> Fun:
    """Return another function that does the same, under the name that jaxprs show."""

    def call(*values: Any) -> Outputs:
        return fun(*values)

    call.__name__ = name
    return call
