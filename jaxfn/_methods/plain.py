"""The plain call: no argument is traced, so forward runs without JAX definitions.

This path must be fast.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._base import Kwargs, OutSpec, compat, pytree
from jaxfn._methods.node import STATE, BackwardCFunction
from jaxfn._methods.rule_errors import explain
from jaxfn._methods.styles import closes_over_lost, note_outputs, setup

CLOSED_OVER_TRACER = object()
"""Result of `run` if forward closed over a tracer."""


def run(cls: Any, args: tuple[Any, ...], kwargs: Kwargs, separate: bool) -> Any:
    """Run forward, and setup_context in the separate style; delete dirty inputs.

    If forward closed over a tracer, JAX would differentiate the body, not the rules.
    Then `run` drops the result and returns `CLOSED_OVER_TRACER`. A tracer in the result
    is the sign, unless forward computed it from constants of a function being traced.
    If the body has a zero derivative (round), the result has no tracer, so `run`
    searches the closure and the arguments too, but no globals and no classes.
    """
    # The call may be inside a traced function. The recording distinguishes tracers that
    # forward made from constants, and tracers that it closed over. If no transformation
    # is active, forward closed over each tracer in its result.
    recording = compat.Recording() if compat.is_transforming() else None
    ctx = cls._backward_cls()
    ctx._jaxfn_needs = (False,) * len(args)
    rule, function, given = "forward", cls.forward, args if separate else (ctx, *args)
    try:
        out = cls.forward(*given, **kwargs)
        if separate:
            if type(out) is not compat.ConcreteArray:
                out = _as_jax(out)
            rule, function, given = "setup_context", cls.setup_context, (ctx, args, out)
            setup(cls.forward, function, *given)
    except Exception as error:
        explain(error, cls.__name__, rule, function, given)
        raise
    is_one_array = type(out) is compat.ConcreteArray
    if not (is_one_array or _is_concrete(out)) and (
        recording is None or recording.closed_over(pytree.split(out)[0], ()) != []
    ):
        return CLOSED_OVER_TRACER
    if recording is not None and closes_over_lost(
        cls.forward, [x for x in args if type(x) not in _SIMPLE]
    ):
        return CLOSED_OVER_TRACER
    is_marked = ctx.non_differentiable or ctx.dirty_tensors
    if is_marked or ctx.output_grad_dtypes is not None:
        outs, spec = OutSpec.split(out)
        note_outputs(ctx, pytree.split(args)[0], spec, outs)
    if not is_one_array:
        out = _as_jax(out)
    if ctx.dirty_tensors:
        _consume(ctx, out)
    return out


_SIMPLE = frozenset((compat.ConcreteArray, int, float, bool, str, type(None)))


def _is_concrete(value: Any) -> bool:
    """Return whether no array in `value` is a tracer."""
    # JAX's flattening is slow, so check the usual types first.
    kind = type(value)
    if kind in _SIMPLE:
        return True
    if kind is tuple or kind is list:
        for x in value:  # noqa: SIM110  (a generator costs half as much again)
            if type(x) not in _SIMPLE and not _is_concrete(x):
                return False
        return True
    return not any(compat.is_tracer(x) for x in pytree.split(value)[0])


def _as_jax(out: Any) -> Any:
    """Convert NumPy arrays to JAX arrays, as in transformed code."""
    arrays, spec = pytree.split(out)
    if all(isinstance(x, jax.Array) for x in arrays):
        return out
    return spec.join([jnp.asarray(x) for x in arrays])


def _consume(ctx: BackwardCFunction, out: Any) -> None:
    """Delete the dirty inputs that the call neither returned nor saved."""
    user = [x for name, x in ctx.__dict__.items() if name not in STATE]
    kept = pytree.split([out, ctx.to_save, ctx.saved_for_forward, user])[0]
    buffers = {b for x in kept for b in _buffers(x)}
    for x in ctx.dirty_tensors:
        mine = _buffers(x)
        if mine and not mine & buffers:
            x.delete()


def _buffers(x: Any) -> set[Any]:
    """Return identifiers of the buffers of `x`; none if JAX can't delete it."""
    # Of the extended dtypes, JAX can delete only PRNG keys.
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    if not isinstance(x, jax.Array) or not (isinstance(x.dtype, np.dtype) or is_key):
        return set()
    if x.is_deleted():
        return set()
    # Compare buffers, because arrays may share one (as after device_put).
    shards = [(s.device, s.data.unsafe_buffer_pointer()) for s in x.addressable_shards]
    return {id(x), *shards}
