"""A user's batch rule into `jax.custom_batching.custom_vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._base import Outputs, compat
from jaxfn._engine.batched import differentiable
from jaxfn._engine.closures import are_constants, beside, traced
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
    """Return `fun(*arrays)`, with a batch rule, for what JAX does not differentiate."""

    def call(*arrays: Any) -> Outputs:
        # Pallas compiles no custom_vmap. An operation of ours it does.
        if compat.in_kernel():
            return differentiable(fun, batch, name=name)(*arrays)
        held, staged, static = traced(fun, arrays)

        def whole(*values: Any) -> Outputs:
            return Outputs(staged(*values), static)

        whole.__name__ = name
        rule = beside(are_constants(held), whole, batch, name)
        f = jax.custom_batching.custom_vmap(whole)
        f.def_vmap(lambda size, batched, *values: rule(size, batched, list(values)))
        return f(*held, *arrays)

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
