"""A user's batch rule into `jax.custom_batching.custom_vmap`.

JAX asserts that no value that such a function closes over is batched, and says no more.
But it batches a constant together with everything else if it computes both branches of
a cond; and whoever closes over a value that differs among examples is to be told so.
Therefore a function is traced first, and what it closes over becomes arguments of the
custom_vmap, in front of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._base import Outputs, OutSpec, compat, errors, is_inexact
from jaxfn._engine.attachment import attach
from jaxfn._engine.gate import stop_gradient
from jaxfn._engine.rules import Arrays, Batch, Fun

Own = Callable[[Outputs, Arrays, compat.Recording], list[Any]]


def with_batch_rule(
    fun: Fun, batch: Batch | None, own: Own | None = None, *, name: str
) -> Fun:
    """Return `fun`, of this name, with this batch rule.

    Where no argument is a tracer there is nothing to batch, and `fun` runs as it is:
    custom_vmap would trace it, and a NumPy body could not run.

    `own(outs, arrays, recording)` batches the outputs of an example wherever they must
    be, though the rule did not (`ownership`). It is asked after the rule has run, where
    it is known which vmap is at work; `recording` began before.
    """
    if batch is None:
        return fun

    def rule(size: int, batched: Sequence[bool], arrays: list[Any]) -> Any:
        recording = compat.Recording()
        outs, flags = batch(size, batched, arrays)
        if own is None:
            return outs, flags
        return _owned(own, recording, size, batched, arrays, outs, flags)

    def call(*arrays: Any) -> Outputs:
        if not any(compat.is_tracer(x) for x in arrays):
            return fun(*arrays)
        return custom_vmap(fun, rule, name=name)(*arrays)

    return call


def custom_vmap(fun: Fun, batch: Batch, *, name: str) -> Fun:
    """Return `fun(*arrays)` with a batch rule, for code that nobody differentiates."""

    def call(*arrays: Any) -> Outputs:
        closed_over, traced = _trace(fun, batch, arrays, name)
        return traced.batching(*closed_over, *arrays)

    return call


def differentiable(fun: Fun, batch: Batch, *, name: str) -> Fun:
    """Return `fun(*arrays)` with a batch rule; its derivative is that of `fun`.

    A custom_vmap alone has no reverse mode in JAX. Around it stands a custom_jvp whose
    rule differentiates what `fun` did: the trace, without its effects, which the value
    has had.
    """

    def call(*arrays: Any) -> Outputs:
        if not any(compat.is_tracer(x) for x in arrays):
            return fun(*arrays)
        closed_over, traced = _trace(fun, batch, arrays, name)
        f = jax.custom_jvp(traced.kept if compat.SCAN_DROPS_JVP else traced.batching)

        def rule(primals: Arrays, tangents: Arrays) -> tuple[Outputs, Outputs]:
            outs = f(*primals)
            given = [None if compat.is_zero(t) else t for t in tangents]
            dots = traced.tangents(list(primals), outs.arrays, given)
            zeros = [compat.SymbolicZero(compat.tangent_aval(o)) for o in outs.arrays]
            pairs = zip(dots, zeros, strict=True)
            found = [zero if dot is None else dot for dot, zero in pairs]
            return outs, Outputs(found, outs.static)

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
    first among the arguments of `batching`, `kept` and `tangents`.

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
    def kept(self) -> Fun:
        """The function with its batch rule, and with a derivative that a scan keeps."""

        def call(*values: Any) -> Outputs:
            outs = self.batching(*stop_gradient(values))
            rule = self.tangents
            return Outputs(
                attach(rule, values, outs.arrays, name=self.name), outs.static
            )

        return _named(call, self.name)

    def tangents(self, inputs: Arrays, outs: Arrays, dots: Arrays) -> list[Any]:
        """Differentiate what the function did, which had its effects already."""
        if any(d is not None for d in dots[: len(self.fixed)]):
            raise errors.ClosedOverError(errors.CLOSED_OVER.format(name=self.name))
        still = self.staged.without_effects()
        if not still.is_repeatable_after(self.staged):
            raise NotImplementedError(errors.NOT_REPEATABLE.format(name=self.name))
        moving = [i for i, d in enumerate(dots) if d is not None]
        smooth = [is_inexact(o) for o in outs]

        def along(*some: Any) -> list[Any]:
            at = list(inputs)
            for i, x in zip(moving, some, strict=True):
                at[i] = x
            return [x for x, s in zip(still(*at), smooth, strict=True) if s]

        primals = tuple(inputs[i] for i in moving)
        found = iter(jax.jvp(along, primals, tuple(dots[i] for i in moving))[1])
        return [next(found) if s else None for s in smooth]


def _named(fun: Fun, name: str) -> Fun:
    """Return another function that does the same, under the name that jaxprs show."""

    def call(*values: Any) -> Outputs:
        return fun(*values)

    call.__name__ = name
    return call


def _owned(
    own: Own,
    recording: compat.Recording,
    size: int,
    batched: Sequence[bool],
    arrays: Arrays,
    outs: Outputs,
    flags: Outputs,
) -> tuple[Outputs, Outputs]:
    """Return what a batch rule did, with `own` called for an example of it."""
    others = recording.active or any(map(compat.batch_axes, arrays))
    if all(flags.arrays) and not others:  # no other vmap is at work or can come
        return outs, flags
    differs: list[bool] = []

    def example(witness: Any, outs_: Arrays, arrays_: Arrays) -> list[Any]:
        found = own(Outputs(list(outs_), outs.static), arrays_, recording)
        (here,) = compat.batch_axes(witness)
        differs[:] = [here in compat.batch_axes(x) for x in found]
        return found

    # The witness is batched over this axis and no other.
    witness = jnp.zeros(size)
    axes = [[0 if b else None for b in bs] for bs in (flags.arrays, batched)]
    found = jax.vmap(example, (0, *axes))(witness, list(outs.arrays), list(arrays))
    owned = [x if d else x[0] for x, d in zip(found, differs, strict=True)]
    return Outputs(owned, outs.static), Outputs(differs, flags.static)
