"""Under vmap, the outputs of an example belong to that example.

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
    axes = frozenset[int]().union(*map(compat.batch_axes, inputs))
    batched = {j for j, x in enumerate(inputs) if compat.batch_axes(x)}
    once = [k for k, js in enumerate(missing) if js & batched]
    # Of one vmap alone is it asked whether its examples share a derivative.
    shared = _shared(once, batched, maps) if once and len(axes) == 1 else []
    # Those apart depend on all inputs from here on. Those together must not depend on
    # a batched one, but on the rest, which another vmap may batch later.
    apart = [k for k, js in enumerate(missing) if js and k not in shared]
    together = [k for k in shared if missing[k] - batched]
    owned = list(outs)
    for ks, left_out in ((apart, set[int]()), (together, batched)):
        on = [x for j, x in enumerate(inputs) if j not in left_out]
        for k, out in zip(ks, _tied([outs[k] for k in ks], on, name), strict=True):
            owned[k] = out
    return owned


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


# ---- which derivatives are the same for all examples?


def _shared(ks: Sequence[int], batched: set[int], maps: Maps) -> list[int]:
    """Find those of the outputs whose derivatives are the same for all examples."""
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
    """Find those of the outputs `ks` that one derivative treats alike in all examples.

    Args:
        ks: indices of outputs that are not batched.
        batched: indices of the inputs that are.
        fun: the derivative, see `Map`.
        examples: of its arguments.
        backwards: whether it maps cotangents of outputs to those of inputs.
    """
    present: list[int] = []

    def flat(*args: Any) -> list[Any]:
        found = fun(*args)
        present[:] = [i for i, x in enumerate(found) if x is not None]
        return [found[i] for i in present]

    jaxpr = jax.make_jaxpr(flat)(*examples)
    flags = [bool(compat.batch_axes(x)) for x in compat.constants(jaxpr)]
    found = zip(present, linearity.uses(jaxpr, flags), strict=True)
    # Forwards, t -> J t: tangent k is shared if it depends on no tangent of a batched
    # input, and all its coefficients are shared.
    if not backwards:
        return ks - {k for k, (used, mixed) in found if used & batched or mixed}
    # Backwards, ct -> J^T ct, a result belongs to an input, and an argument to an
    # output. In the cotangent of a batched input each example needs its own ct. In that
    # of a shared input JAX sums over the examples:  sum(c ct_i) = c sum(ct_i),  but
    # only if the coefficient c is shared.
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
