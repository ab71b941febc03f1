"""The plain call: no argument is traced, so forward runs as it is.

No JAX definition is built or traced. This is the path that must be fast.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._base import Kwargs, compat, pytree, search
from jaxfn._methods.node import STATE, BackwardCFunction
from jaxfn._methods.running import explain, without_ctx
from jaxfn._methods.styles import check_dirty, marks, setup

CLOSED_OVER_TRACER = object()
"""What `run` returns where forward closed over a tracer."""


def run(cls: Any, args: tuple[Any, ...], kwargs: Kwargs, separate: bool) -> Any:
    """Run forward, and setup_context in the separate style; consume what is dirty.

    If a tracer comes out, forward closed over one, unless it only made constants of a
    function that is being traced. To differentiate the body would give a gradient that
    no rule knows of, so the result is dropped, and `CLOSED_OVER_TRACER` says that JAX's
    definitions must decide. Where the derivative of the body is zero, as that of round,
    no tracer comes out, and the closure itself tells.
    """
    # Though no argument is traced, the call may be inside a function that is. What JAX
    # records from here on tells a tracer that forward made, of constants alone, from
    # one that came from outside.
    recording = compat.Recording()
    ctx = cls._backward_cls()
    held = ctx.__dict__
    held["_jaxfn_needs"] = (False,) * len(args)
    try:
        if separate:
            out = _as_jax(cls.forward(*args, **kwargs))
        else:
            out = cls.forward(ctx, *args, **kwargs)
    except Exception as error:
        given = args if separate else (ctx, *args)
        about = cls.__name__, "forward", cls.forward, given
        explain(error, *about, *((without_ctx,) if separate else ()))
        raise
    if separate:
        setup(cls.__name__, cls.forward, cls.setup_context, ctx, args, out)
    if not _is_concrete(out) and recording.closed_over(pytree.split(out)[0], ()) != []:
        return CLOSED_OVER_TRACER
    if _closes_over_lost(cls.forward, args):
        return CLOSED_OVER_TRACER
    if ctx.non_differentiable:
        marks(ctx, pytree.split(out)[0])
    out = _as_jax(out)
    if ctx.dirty_tensors:
        check_dirty(ctx, pytree.split(args)[0])
        _consume(ctx, out)
    return out


_SIMPLE = frozenset((compat.ConcreteArray, int, float, bool, str, type(None)))


def _is_concrete(value: Any) -> bool:
    """Is no array in `value` a tracer?"""
    # The usual outputs are looked at by their type; JAX's flattening is the slow way.
    kind = type(value)
    if kind in _SIMPLE:
        return True
    if kind is tuple or kind is list:
        for x in value:  # noqa: SIM110  (a generator costs half as much again)
            if type(x) not in _SIMPLE and not _is_concrete(x):
                return False
        return True
    return not any(compat.is_tracer(x) for x in pytree.split(value)[0])


def _closes_over_lost(forward: Any, args: tuple[Any, ...]) -> bool:
    """Does forward, or a callable that it gets, hold a value being differentiated?"""
    if not compat.is_transforming():  # the search takes time, and nothing could be lost
        return False
    held = [getattr(forward, "__closure__", None), *filter(callable, args)]
    return search.find(held, compat.is_lost) is not None


def _as_jax(out: Any) -> Any:
    """Put JAX arrays in place of NumPy ones, as transformed code would give them."""
    if type(out) is compat.ConcreteArray:
        return out
    arrays, spec = pytree.split(out)
    if all(isinstance(x, jax.Array) for x in arrays):
        return out
    return spec.join([jnp.asarray(x) for x in arrays])


def _consume(ctx: BackwardCFunction, out: Any) -> None:
    """Delete the inputs marked dirty, but for those that the call gives out."""
    # Deleting frees the buffer, which another array may share (device_put of the input
    # does). What the call returned or saved must stay readable.
    user = [x for name, x in ctx.__dict__.items() if name not in STATE]
    kept = pytree.split([out, ctx.to_save, ctx.saved_for_forward, user])[0]
    buffers = {id(x) for x in kept} | {b for x in kept for b in _buffers(x)}
    for x in ctx.dirty_tensors:
        mine = {id(x), *_buffers(x)}
        if _has_buffers(x) and not mine & buffers and not x.is_deleted():
            x.delete()


def _buffers(x: Any) -> set[Any]:
    """Say where the data of an array lies: two arrays may share it."""
    if not _has_buffers(x) or x.is_deleted():
        return set()
    return {
        (shard.device, shard.data.unsafe_buffer_pointer())
        for shard in x.addressable_shards
    }


def _has_buffers(x: Any) -> bool:
    """Can `x` be deleted? Of the extended dtypes, JAX can delete only PRNG keys."""
    if not isinstance(x, jax.Array):
        return False
    return isinstance(x.dtype, np.dtype) or jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
