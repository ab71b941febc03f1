"""Under vmap, an output whose derivative differs among examples is batched too.

JAX finds out by itself which outputs of a function are batched: those that were
computed from something batched. One that was not has one value y for all examples. But
its derivative may be another for each (a forward that returns x, a backward that gives
`g * scale`, and `scale` batched). JAX sums the cotangents g_i of a shared y before it
calls the rule, which then gives  scale_i * sum(g)  for each example i, where
`scale_i * g_i` is right. The same happens to a custom_vjp.

So an output is made to depend on every array argument, in a way that costs nothing when
compiled (`_tied`). An output whose derivative is seen to be the same for all examples
keeps its one value, and can be taken out of a vmap with `out_axes=None`, as in plain
JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfn._base import compat, is_inexact
from jaxfn._engine.attachment import attach
from jaxfn._engine.rules import Arrays
from jaxfn._engine.sharing import Map, Traced

Maps = Callable[[], "Sequence[Map]"]


def belonging(
    outs: Arrays,
    inputs: Arrays,
    recording: compat.Recording,
    maps: Maps | None,
    *,
    name: str,
    alone: bool = False,
) -> list[Any]:
    """Return the outputs, batched wherever their derivative may be.

    Args:
        outs: of a forward, raw.
        inputs: what it was called with.
        recording: begun just before.
        maps: the derivatives of the Function, to look at; None if there is no way to.
        name: of the Function.
        alone: is this a call that is not being differentiated?
    """
    # No derivative will be asked for: the outputs may be what they are.
    if alone and compat.is_final(inputs):
        return list(outs)
    missing = [
        _missing(out, inputs, recording) if is_inexact(out) else set() for out in outs
    ]
    lacking = _lacking(outs, inputs, missing)
    shared = _shared(lacking, inputs, maps) if lacking and maps else set()
    # An output that is not shared depends on all inputs from here on. One that is must
    # not depend on an input with a batch axis that it lacks, but on the rest, which
    # another vmap may batch later.
    ties: dict[tuple[int, ...], list[int]] = {}
    for k, js in enumerate(missing):
        on = range(len(inputs))
        if k in shared:
            own = compat.batch_axes(outs[k])
            on = [j for j in on if compat.batch_axes(inputs[j]) <= own]
        if not js.isdisjoint(on):
            ties.setdefault(tuple(on), []).append(k)
    owned = list(outs)
    for on, ks in ties.items():
        tied = _tied([outs[k] for k in ks], [inputs[j] for j in on], name)
        for k, out in zip(ks, tied, strict=True):
            owned[k] = out
    return owned


def _lacking(
    outs: Arrays, inputs: Arrays, missing: Sequence[set[int]]
) -> dict[int, set[int]]:
    """Find for each vmap at work the outputs that it does not batch, but might."""
    found: dict[int, set[int]] = {}
    for k, js in enumerate(missing):
        of_inputs = frozenset[int]().union(*[compat.batch_axes(inputs[j]) for j in js])
        for axis in of_inputs - compat.batch_axes(outs[k]):
            found.setdefault(axis, set()).add(k)
    return found


def _shared(lacking: dict[int, set[int]], inputs: Arrays, maps: Maps) -> set[int]:
    """Find the outputs whose derivatives are the same in all examples of these vmaps.

    Args:
        lacking: for each vmap, the outputs that it does not batch.
        inputs: of the Function.
        maps: see `belonging`.
    """
    shared = set[int]().union(*lacking.values())
    try:
        traced = [Traced.trace(*found) for found in maps()]
    except Exception:  # noqa: BLE001  (whatever a rule raises, it will raise again)
        return set()
    batched = {
        axis: {j for j, x in enumerate(inputs) if axis in compat.batch_axes(x)}
        for axis in lacking
    }
    while True:
        # One that is shared by the examples of one vmap alone is shared by none, since
        # it can't depend on an input in one of its batch axes and not in the other.
        lost = {
            k
            for axis, ks in lacking.items()
            for found in traced
            for k in ks & shared - found.shared(ks & shared, batched[axis], axis)
        }
        if not lost:
            return shared
        shared -= lost


def _missing(out: Any, inputs: Arrays, recording: compat.Recording) -> set[int]:
    """Find the inputs that could be batched where the output is not."""
    missing: set[int] = set()
    if recording.active:  # what is traced here may be batched later
        missing = set(range(len(inputs))) - recording.used(out, inputs)
    # The vmaps that are at work here show on the values themselves.
    own = compat.batch_axes(out)
    return missing | {j for j, x in enumerate(inputs) if compat.batch_axes(x) - own}


def _tied(outs: Arrays, inputs: Arrays, name: str) -> list[Any]:
    """Return the outputs, made to depend on all of the inputs too.

    For an output y and inputs a and b this is  concatenate([y, a[:0], b[:0]]),  which
    is y. JAX batches it where any of its parts is batched. What is put behind y has no
    elements, so XLA drops it again. Every operation here can be transposed, as
    `jax.linear_transpose` of a call needs it.
    """
    if not outs:
        return []
    axes, own = compat.varying_axes, compat.varying_axes(outs[0])
    if any(axes(x) != own or compat.is_sharded(x) for x in (*outs, *inputs)):
        # To concatenate arrays that are sharded, or vary over mesh axes, in different
        # ways would change the type of the output. `attach` leaves it as it is.
        return attach(_undifferentiated, inputs, outs, name=name)
    slices: list[Any] = []
    for x in inputs:
        # The values of a PRNG key can't be concatenated with numbers; its bits can.
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            x = jax.random.key_data(x)
        slices.append(lax.slice(lax.reshape(x, (x.size,)), (0,), (0,)))
    # JAX concatenates arrays of one dtype: the inputs' ends are cast to the output's.
    tails: dict[Any, Any] = {}
    tied = []
    for out in outs:
        if out.dtype not in tails:
            parts = [_cast(x, out.dtype) for x in slices]
            tails[out.dtype] = lax.concatenate(parts, 0)
        flat = lax.concatenate([lax.reshape(out, (out.size,)), tails[out.dtype]], 0)
        tied.append(lax.reshape(flat, out.shape))
    return tied


def _cast(x: Any, dtype: Any) -> Any:
    """Cast an array that has no elements, so that no value is lost."""
    if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        x = lax.real(x)
    return x if x.dtype == dtype else lax.convert_element_type(x, dtype)


def _undifferentiated(*_: Any) -> Any:
    """Stand for the derivative of a primal, which has that of its rules instead."""
    raise AssertionError("JAX differentiated a primal, not by its rules")
