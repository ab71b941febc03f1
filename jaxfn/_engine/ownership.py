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
JAX. For that the derivative is traced and looked at (`sharing`), under the vmaps that
are at work, and for those that may come where JAX records a jaxpr.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfn._base import compat, is_inexact
from jaxfn._engine.attachment import attach
from jaxfn._engine.engines import has_forward_mode, pull_back
from jaxfn._engine.rules import Arrays, Residuals, Rules
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
    now = _at_work(outs, inputs, missing)
    later = _to_come(outs, inputs, missing, recording) if maps else []
    traced = _traced(maps, outs) if maps and (now or later) else None
    shared = _shared(now, traced, outs)
    free = _shared([*now, *later], traced, outs) if later else set()
    # An output that is not shared depends on all inputs from here on. One that is must
    # not depend on an input with a batch axis that it lacks, but on the rest, which
    # another vmap may batch later, unless it is seen that those share it too.
    ties: dict[tuple[int, ...], list[int]] = {}
    for k, js in enumerate(missing):
        on = range(len(inputs))
        if k in shared:
            own = compat.batch_axes(outs[k])
            on = [j for j in on if compat.batch_axes(inputs[j]) <= own]
        if k not in free and not js.isdisjoint(on):
            ties.setdefault(tuple(on), []).append(k)
    owned = list(outs)
    for on, ks in ties.items():
        tied = _tied([outs[k] for k in ks], [inputs[j] for j in on], name)
        for k, out in zip(ks, tied, strict=True):
            owned[k] = out
    return owned


def derivatives(
    rules: Rules,
    saved: Callable[[Arrays], Residuals],
    inputs: Arrays,
    outs: Arrays,
) -> list[Map]:
    """Return the derivatives that a Function defines, for `belonging` to look at.

    Args:
        rules: of the Function.
        saved: `saved(outs)` returns what was saved of a run that gave these outputs.
        inputs: of the Function.
        outs: its outputs.
    """

    def pull(outs: Arrays, *cts: Any) -> Arrays:
        residuals = saved(outs)
        pairs = zip(cts, residuals.smooth, strict=True)
        return pull_back(rules, residuals, [ct if s else None for ct, s in pairs])

    def push(outs: Arrays, *ts: Any) -> Arrays:
        assert rules.jvp is not None
        pairs = zip(ts, inputs, strict=True)
        given = [t if is_inexact(x) else None for t, x in pairs]
        return rules.jvp(saved(outs), given)

    # Arguments to trace the maps with. What stands in the place of an integer is not
    # read, but it must be something that can be traced.
    def examples(arrays: Arrays) -> list[Any]:
        zeros = [compat.zeros(jax.typeof(x)) for x in arrays if is_inexact(x)]
        rest = iter(zeros)
        return [next(rest) if is_inexact(x) else np.zeros(()) for x in arrays]

    found: list[Map] = []
    if rules.bwd is not None:
        by_jax = not has_forward_mode(rules)
        found.append(Map(pull, examples(outs), backwards=True, by_jax=by_jax))
    if rules.jvp is not None:
        found.append(Map(push, examples(inputs), backwards=False))
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Vmap:
    """A vmap that is at work, or one that may come.

    Attributes:
        batched: indices of the inputs that it batches.
        lacking: indices of the outputs that it does not batch, but might.
        batches: does it batch this value?
    """

    batched: frozenset[int]
    lacking: set[int]
    batches: Callable[[Any], bool]


def _at_work(outs: Arrays, inputs: Arrays, missing: Sequence[set[int]]) -> list[_Vmap]:
    """Find the vmaps at work that do not batch all of the outputs."""
    lacking: dict[int, set[int]] = {}
    for k, js in enumerate(missing):
        of_inputs = frozenset[int]().union(*[compat.batch_axes(inputs[j]) for j in js])
        for axis in of_inputs - compat.batch_axes(outs[k]):
            lacking.setdefault(axis, set()).add(k)

    def made(axis: int, ks: set[int]) -> _Vmap:
        def batches(x: Any) -> bool:
            return axis in compat.batch_axes(x)

        batched = frozenset(j for j, x in enumerate(inputs) if batches(x))
        return _Vmap(batched, ks, batches)

    return [made(axis, ks) for axis, ks in lacking.items()]


# A vmap that comes later batches some of the inputs, B, and all that was computed from
# them. It does not batch an output k if B is among the inputs M(k) that k surely does
# not depend on. If all examples share k where all of M(k) are batched, they do where
# some are: then fewer of the values are batched that its derivative uses. Only what JAX
# refuses to sum (`compat.REFUSES_SHARED`) may be more where an input is not batched. A
# cotangent is batched for some B only if it is for one of the inputs in B alone. So
# these are enough to look at: each M(k), and each of its inputs alone.
def _to_come(
    outs: Arrays,
    inputs: Arrays,
    missing: Sequence[set[int]],
    recording: compat.Recording,
) -> list[_Vmap]:
    """Return the vmaps to look at for those that may batch, later, what is recorded."""
    if not recording.active:
        return []
    apart = {
        k: frozenset(js)
        for k, js in enumerate(missing)
        if js and js.isdisjoint(recording.maybe_used(outs[k], inputs))
    }

    def made(batched: frozenset[int]) -> _Vmap:
        ks = {k for k, js in apart.items() if batched <= js}
        return _Vmap(
            batched,
            ks,
            lambda x: not batched.isdisjoint(recording.maybe_used(x, inputs)),
        )

    alone = [frozenset([j]) for js in apart.values() for j in js]
    return [made(batched) for batched in dict.fromkeys([*apart.values(), *alone])]


def _traced(maps: Maps, outs: Arrays) -> list[Traced] | None:
    """Trace the derivatives; None if they can't be."""
    try:
        return [Traced.trace(derivative, outs) for derivative in maps()]
    except Exception:  # noqa: BLE001  (whatever a rule raises, it will raise again)
        return None


def _shared(
    vmaps: Sequence[_Vmap], traced: list[Traced] | None, outs: Arrays
) -> set[int]:
    """Find the outputs whose derivatives are the same in all examples of these vmaps.

    Args:
        vmaps: those at work, or to come.
        traced: the derivatives; None if nothing is known of them.
        outs: of the Function.
    """
    if traced is None:
        return set()
    shared = set[int]().union(*[vmap.lacking for vmap in vmaps])
    while True:
        # One that is shared by the examples of one vmap alone is shared by none, since
        # it can't depend on an input in one of its batch axes and not in the other.
        kept = set(shared)
        for vmap in vmaps:
            # One that is not shared will depend on all inputs. So where the rules read
            # it they read something batched, although its value here is not.
            read = [
                vmap.batches(out) or (k not in shared and is_inexact(out))
                for k, out in enumerate(outs)
            ]
            ks = vmap.lacking & shared
            for found in traced:
                kept -= ks - found.shared(ks, vmap.batched, vmap.batches, read)
        if kept == shared:
            return shared
        shared = kept


def _missing(out: Any, inputs: Arrays, recording: compat.Recording) -> set[int]:
    """Find the inputs that could be batched where the output is not."""
    missing: set[int] = set()
    if recording.active:  # what is traced here may be batched later; no constant is
        traced = {j for j, x in enumerate(inputs) if compat.is_tracer(x)}
        missing = traced - recording.used(out, inputs)
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
