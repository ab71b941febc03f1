"""Under vmap, the outputs of an example belong to that example.

JAX finds out by itself which outputs of a function are batched: those that were
computed from something batched. One that was not has one value for all examples. But
its derivative may be another for each (a forward that returns x, a backward that gives
`g * scale`, and `scale` batched). Then JAX hands the sum of all cotangents to the rule,
as it does to that of a custom_vjp, and each example gets the gradients of all.

So an output is made to depend on every array argument, in a way that costs nothing when
compiled (`_tied`). Only where the derivative of an output is seen to be the same for
all examples it keeps its one value, and can be taken out of a vmap with
`out_axes=None`, as in plain JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfn._base import compat, is_inexact
from jaxfn._engine import linearity
from jaxfn._engine.attachment import attach
from jaxfn._engine.rules import Arrays

Maps = Callable[[], "Sequence[Map] | None"]
Map = tuple[Callable[..., Sequence[Any]], Arrays, bool]
"""A derivative: a linear function of arrays (None for what is zero), examples of its
arguments, and whether it goes backwards."""


def belonging(
    outs: Arrays,
    inputs: Arrays,
    recording: compat.Recording,
    maps: Maps,
    *,
    name: str,
    alone: bool = False,
) -> list[Any]:
    """The outputs, batched wherever their derivative may be.

    Args:
        outs: of a forward, raw.
        inputs: what it was called with.
        recording: begun just before.
        maps: the derivatives of the Function, to look at; None if there is no way to.
        name: of the Function.
        alone: is this a call that is not being differentiated?
    """
    if alone and compat.is_final(inputs):
        return list(outs)
    missing = [
        _missing(out, inputs, recording) if is_inexact(out) else set() for out in outs
    ]
    axes = frozenset[int]().union(*map(compat.batch_axes, inputs))
    batched = {j for j, x in enumerate(inputs) if compat.batch_axes(x)}
    once = [k for k, js in enumerate(missing) if js & batched]
    # Of one vmap alone is it asked whether its examples share a derivative.
    shared = _shared(once, batched, maps) if once and len(axes) == 1 else []
    apart = [k for k, js in enumerate(missing) if js and k not in shared]
    together = [k for k in shared if missing[k] - batched]
    owned = list(outs)
    for ks, left_out in ((apart, set[int]()), (together, batched)):
        on = [x for j, x in enumerate(inputs) if j not in left_out]
        for k, out in zip(ks, _tied([outs[k] for k in ks], on, name), strict=True):
            owned[k] = out
    return owned


def _missing(out: Any, inputs: Arrays, recording: compat.Recording) -> set[int]:
    """The inputs that could be batched where the output is not."""
    missing: set[int] = set()
    if recording.active:  # what is traced here may be batched later
        missing = set(range(len(inputs))) - recording.used(out, inputs)
    own = compat.batch_axes(out)
    return missing | {j for j, x in enumerate(inputs) if compat.batch_axes(x) - own}


def _tied(outs: Arrays, inputs: Arrays, name: str) -> list[Any]:
    """The outputs, depending on all of the inputs too.

    What is put behind each output has no elements, so XLA drops it again. Every
    operation here can be transposed, as `jax.linear_transpose` of a call needs it.
    """
    if not outs:
        return []
    axes, own = compat.varying_axes, compat.varying_axes(outs[0])
    if any(axes(x) != own or compat.is_sharded(x) for x in (*outs, *inputs)):
        # Operations on arrays of other types would change the type.
        return attach(_undifferentiated, inputs, outs, name=name)
    slices: list[Any] = []
    for x in inputs:
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            x = jax.random.key_data(x)
        slices.append(lax.slice(lax.reshape(x, (x.size,)), (0,), (0,)))
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
    if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        x = lax.real(x)
    return x if x.dtype == dtype else lax.convert_element_type(x, dtype)


def _undifferentiated(*_: Any) -> Any:
    raise AssertionError("JAX differentiated a primal, not by its rules")


# ---- which derivatives are the same for all examples?


def _shared(ks: Sequence[int], batched: set[int], maps: Maps) -> list[int]:
    """Those of the outputs whose derivatives are the same for all examples."""
    shared = set(ks)
    try:
        found = maps()
        if found is None:
            return []
        for fun, examples, backwards in found:
            shared &= _shared_in(shared, batched, fun, examples, backwards)
    except Exception:  # noqa: BLE001  (whatever a rule raises, it will raise again)
        return []
    return sorted(shared)


def _shared_in(
    ks: set[int],
    batched: set[int],
    fun: Callable[..., Sequence[Any]],
    examples: Arrays,
    backwards: bool,
) -> set[int]:
    """The same, as one derivative has it."""
    present: list[int] = []

    def flat(*args: Any) -> list[Any]:
        found = fun(*args)
        present[:] = [i for i, x in enumerate(found) if x is not None]
        return [found[i] for i in present]

    jaxpr = jax.make_jaxpr(flat)(*examples)
    flags = [bool(compat.batch_axes(x)) for x in compat.constants(jaxpr)]
    found = zip(present, linearity.uses(jaxpr, flags), strict=True)
    if not backwards:
        return ks - {k for k, (used, mixed) in found if used & batched or mixed}
    # Backwards a result belongs to an input, and an argument to an output.
    results = dict(found)
    shared = set(ks)
    for i, (used, mixed) in results.items():
        shared -= used if i in batched else mixed
    # JAX sums what is batched over the examples. The cotangent of a shared output is a
    # sum already: it must not be added to anything that is batched.
    while True:
        lost = {
            k
            for i, (used, _) in results.items()
            if i not in batched and used - shared
            for k in used & shared
        }
        if not lost:
            return shared
        shared -= lost
