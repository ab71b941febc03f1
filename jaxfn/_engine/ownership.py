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

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfn._base import compat, errors, is_inexact
from jaxfn._engine import sharing
from jaxfn._engine.attachment import attach
from jaxfn._engine.engines import has_forward_mode, pull_back
from jaxfn._engine.gate import stop_gradient
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
    still: Callable[[], Arrays] | None = None,
) -> list[Any]:
    """Return the outputs, batched wherever their derivative may be.

    Args:
        outs: of a forward, raw.
        inputs: what it was called with.
        recording: begun just before.
        maps: the derivatives of the Function, to look at; None if there is no way to.
        name: of the Function.
        alone: is this a call that is not being differentiated?
        still: returns the inputs without derivative, where they have one.
    """
    # No derivative will be asked for: the outputs may be what they are.
    if alone and compat.is_final(inputs):
        return list(outs)
    if recording.covers([x for x in outs if is_inexact(x)], inputs):
        return list(outs)
    vmaps = _Vmaps(outs, inputs, recording)
    # What is no inexact number has no derivative, and stays what it is.
    now = [vmaps.lacking_now(x) if is_inexact(x) else 0 for x in outs]
    later = [vmaps.lacking_later(x) if is_inexact(x) else 0 for x in outs]
    if not any((*now, *later)):
        return list(outs)
    shared, free = _shared(maps, outs, inputs, vmaps, now, later) if maps else _NONE
    # An output that is not shared depends on all inputs from here on. One that is must
    # not depend on an input with a batch axis that it lacks, but on the rest, which
    # another vmap may batch later, unless it is seen that those share it too.
    ties: dict[tuple[int, ...], list[int]] = {}
    for k, lacking in enumerate(now):
        on = tuple(range(len(inputs)))
        if k in shared:
            on = tuple(j for j in on if not vmaps.now(inputs[j]) & lacking)
        if k not in free and (later[k] or (lacking and k not in shared)):
            ties.setdefault(on, []).append(k)
    owned = list(outs)
    sources = still() if still and ties else inputs
    for on, ks in ties.items():
        tied = _tied([outs[k] for k in ks], [sources[j] for j in on], name)
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

    # The types of the arguments to trace the maps with. What stands in the place of an
    # integer is not read, but it must be something that can be traced.
    def examples(arrays: Arrays) -> list[Any]:
        return [jax.typeof(x if is_inexact(x) else np.zeros(())) for x in arrays]

    found: list[Map] = []
    if rules.bwd is not None and not rules.refuses:
        by_jax = not has_forward_mode(rules)
        found.append(Map(pull, examples(outs), backwards=True, by_jax=by_jax))
    if rules.jvp is not None:
        found.append(Map(push, examples(inputs), backwards=False))
    return found


class _Vmaps:
    """The vmaps at work, and those that may come, as bits (see `sharing`).

    Where JAX records a jaxpr, a vmap that comes later batches some of the traced
    inputs, and all that was computed from them. For these there is a bit for each
    traced input: the vmap that batches this one alone. No others need be looked at. An
    output k is not batched by a vmap of several inputs B only if it lacks each of them.
    What could make its derivative differ among examples is that an argument or a
    coefficient is batched, or a cotangent beside its own: each of these comes from one
    of the inputs in B, and it would differ as well if that one alone were batched.
    """

    def __init__(
        self, outs: Arrays, inputs: Arrays, recording: compat.Recording
    ) -> None:
        self._n_outs, n = len(outs), len(outs) + len(inputs)
        axes = frozenset[int]().union(*map(compat.batch_axes, inputs))
        self._axes = {axis: 1 << n + i for i, axis in enumerate(sorted(axes))}
        self._all_now = sum(self._axes.values())
        # Constants are never batched later; what is traced here may be.
        later = [j for j, x in enumerate(inputs) if compat.is_tracer(x)]
        self._all_later = sum(1 << j for j in later) if recording.active else 0
        self._used = recording.used(inputs)
        self._maybe_used = recording.maybe_used(inputs)

    def __call__(self, x: Any) -> int:
        """Return those that batch this value, or may batch it later."""
        later = self._maybe_used(x) if self._all_later else 0
        return self.now(x) | later << self._n_outs

    def now(self, x: Any) -> int:
        """Return the vmaps at work that batch this value."""
        return sum(self._axes.get(axis, 0) for axis in compat.batch_axes(x))

    def lacking_now(self, out: Any) -> int:
        """Return the vmaps at work that batch an input, but not this output."""
        return self._all_now & ~self.now(out)

    def lacking_later(self, out: Any) -> int:
        """Return the vmaps to come of which it is not sure that they batch it."""
        if not self._all_later:
            return 0
        return (self._all_later & ~self._used(out)) << self._n_outs

    def may_batch(self, out: Any, vmaps: int) -> bool:
        """May some of these vmaps, which are to come, batch this output?"""
        return bool(self._maybe_used(out) << self._n_outs & vmaps)


_looking: ContextVar[bool] = ContextVar("looking", default=False)
_NONE: tuple[set[int], set[int]] = set(), set()


def _shared(
    maps: Maps,
    outs: Arrays,
    inputs: Arrays,
    vmaps: _Vmaps,
    now: Sequence[int],
    later: Sequence[int],
) -> tuple[set[int], set[int]]:
    """Find the outputs whose derivatives are the same for all examples.

    Args:
        maps: the derivatives of the Function.
        outs: of the Function.
        inputs: of the Function.
        vmaps: those at work, and to come.
        now: for each output the vmaps at work that it lacks.
        later: for each output those to come that it may lack.

    Returns:
        The outputs that are shared by the examples of the vmaps at work; and those that
        are by the examples of all vmaps.
    """
    # Where it is not known whether a vmap will batch it, it counts as batched by all.
    both = [
        0 if vmaps.may_batch(out, b) else a | b
        for out, a, b in zip(outs, now, later, strict=True)
    ]
    if not any((*now, *both)):
        return _NONE
    # What stands for an output in the rules is made of it; integers are only read.
    pairs = enumerate(zip(map(vmaps, outs), map(is_inexact, outs), strict=True))
    marks = [bits | 1 << k if inexact else bits for k, (bits, inexact) in pairs]
    # A rule may apply its own Function, whose derivative would be looked at for ever.
    # So this ends the look that is at work. (To leave this Function out of it would not
    # do: jit keeps what it traces in a look, for the calls that come after it.)
    if _looking.get():
        raise errors.RuleError(errors.LOOK_IN_LOOK)
    before = _looking.set(True)
    try:
        traced = [Traced.trace(found, outs, marks, vmaps) for found in maps()]
    except Exception:  # noqa: BLE001  (whatever a rule raises, it will raise again)
        return _NONE
    finally:
        _looking.reset(before)
    batched = list(map(vmaps, inputs))
    free = sharing.shared(traced, both, batched)
    return sharing.shared(traced, now, batched), free


def _tied(outs: list[Any], inputs: list[Any], name: str) -> list[Any]:
    """Return the outputs, made to depend on all of the inputs too.

    For an output y and inputs a and b this is  concatenate([y, a[:0], b[:0]]),  which
    is y. JAX batches it where any of its parts is batched. What is put behind y has no
    elements, so XLA drops it again. Every operation here can be transposed, as
    `jax.linear_transpose` of a call needs it.
    """
    # In a Pallas kernel for TPU no array is empty, and nothing can be added to a sum
    # that is due. `attach` leaves outputs as they are, and so does this derivative.
    if compat.in_kernel() or any(map(compat.is_unreduced, (*outs, *inputs))):

        def alike(_: Arrays, __: Arrays, dots: Arrays) -> Arrays:
            return dots[: len(outs)]

        still = stop_gradient(outs)
        return attach(alike, [*outs, *inputs], still, name=name, reads=False)
    if any(map(compat.is_sharded, (*outs, *inputs))):
        return [_less_nothing(out, inputs) for out in outs]
    tails: dict[Any, Any] = {}
    tied = []
    for out in outs:
        kind = (out.dtype, compat.varying_axes(out))
        if kind not in tails:
            parts = [lax.reshape(_empty(x, out), (0,)) for x in inputs]
            tails[kind] = lax.concatenate(parts, 0)
        flat = lax.concatenate([lax.reshape(out, (out.size,)), tails[kind]], 0)
        tied.append(lax.reshape(flat, out.shape))
    return tied


def _less_nothing(out: Any, inputs: list[Any]) -> Any:
    """Return y - (sum(a[:0]) + sum(b[:0])), which is y, also where that is -0.0.

    On a mesh where types say how arrays are sharded, to flatten y would change its
    sharding. XLA drops a difference with zero.
    """
    empty = [_empty(x, out) for x in inputs]
    sums = [lax.reduce_sum(x, tuple(range(x.ndim))) for x in empty]
    return lax.sub(out, functools.reduce(lax.add, sums))


def _empty(x: Any, out: Any) -> Any:
    """Return an array without elements, made of `x`, that can be put behind `out`."""
    # The values of a PRNG key can't be concatenated with numbers; its bits can.
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        x = jax.random.key_data(x)
    x = lax.reshape(x, (1,)) if x.ndim == 0 else x
    x = _cast(lax.slice(x, (0,) * x.ndim, (0,) * x.ndim), out.dtype)
    # In a shard_map the output would vary over all mesh axes over which this varies.
    extra = compat.varying_axes(x) - compat.varying_axes(out)
    return lax.psum(x, tuple(extra)) if extra else x


def _cast(x: Any, dtype: Any) -> Any:
    """Cast an array that has no elements, so that no value is lost."""
    if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        x = lax.real(x)
    return x if x.dtype == dtype else lax.convert_element_type(x, dtype)
