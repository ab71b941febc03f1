"""Tracers: what they are, and which transformations are at work."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from jax import core
from jax._src.array import ArrayImpl
from jax._src.core import EvalTrace, Literal, get_axis_env, no_axis_name, trace_ctx
from jax._src.interpreters.ad import LinearizeTracer
from jax._src.interpreters.batching import BatchTrace, BatchTracer
from jax._src.interpreters.partial_eval import DynamicJaxprTrace, JaxprTracer
from jax.interpreters import ad

ConcreteArray: type = ArrayImpl
"""The class of an array that is no tracer.

It is one exact type, so `type(x) is` is enough on the path that must be fast. It is
imported, not found by making an array: that would start JAX's backend when jaxfn is
imported, and jax.distributed must be set up before."""


_DIFFERENTIATED = (ad.JVPTracer, LinearizeTracer)


def is_tracer(x: Any) -> bool:
    return isinstance(x, core.Tracer)


def is_lost(x: Any) -> bool:
    """Is `x` a tracer whose use in a forward can only go wrong, if it is closed over?

    Either it is being differentiated by a transformation that is under way (the rules
    would lose its derivative), or its transformation is over. JAX raises for both, but
    far away, and in words that don't help.
    """
    return isinstance(x, _DIFFERENTIATED) or is_leaked(x)


def is_leaked(x: Any) -> bool:
    """Is `x` a tracer whose transformation is over?"""
    if not is_tracer(x) or isinstance(getattr(x, "val", None), Literal):
        return False
    if not x._trace.is_valid():
        return True
    # A trace that makes a jaxpr stays valid; at its end JAX puts an empty dict in place
    # of a WeakValueDictionary.
    frame = getattr(x._trace, "frame", None)
    return isinstance(getattr(frame, "constid_to_tracer", None), dict)


def inside(x: Any) -> Any:
    """Take off a tracer the eager vmaps, and the wrapping of a value that JAX knows."""
    while True:
        if isinstance(x, BatchTracer):
            x = x.val
        elif isinstance(x, JaxprTracer) and x.pval.is_known():
            x = x.pval.get_known()
        else:
            return x


def is_differentiated(x: Any) -> bool:
    """Is a transformation at work that differentiates `x` here and now?"""
    return isinstance(inside(x), _DIFFERENTIATED)


def in_kernel() -> bool:
    """Is the body of a Pallas kernel being traced?"""
    pallas: Any = sys.modules.get("jax._src.pallas.core")  # where somebody imported it
    if pallas is None:
        return False
    if hasattr(pallas, "_grid_context"):
        return pallas._grid_context.value is not None
    return pallas._pallas_tracing_env.grid_context is not None  # JAX 0.10


def is_final(arrays: Sequence[Any]) -> bool:
    """Is no derivative with respect to these under way, nor to come?"""
    return all(map(has_value, arrays)) and not any(map(is_differentiated, arrays))


def batch_axes(x: Any) -> frozenset[int]:
    """Return all vmaps at work that map over `x`, at whatever depth, as numbers."""
    found: set[int] = set()
    while is_tracer(x):
        if isinstance(x, BatchTracer):
            # By identity: all of JAX's tags compare equal, and two nested vmaps would
            # count as one. What a custom_vjp gave is a tracer of the vmap even where it
            # is not batched: then it has no batch dimension.
            if x.batch_dim is not None:
                found.add(id(x._trace.tag))
            x = x.val
        elif isinstance(x, _DIFFERENTIATED):
            x = x.primal
        elif inside(x) is not x:
            x = inside(x)
        else:
            break
    return frozenset(found)


def forgotten_axes() -> list[tuple[Any, int]]:
    """Return the axes with a name, and their sizes, that only the vmaps at work know.

    JAX forgets the names of a vmap when it has traced it. A jvp rule may run later; it
    runs at that vmap again, which knows its own.
    """
    known, trace = get_axis_env(), trace_ctx.trace
    found: list[tuple[Any, int]] = []
    while isinstance(trace, (BatchTrace, ad.JVPTrace)):
        if isinstance(trace, BatchTrace):
            axis = trace.axis_data
            if axis.name is not no_axis_name and not known.axis_exists(axis.name):
                found.append((axis.name, axis.size))
        trace = trace.parent_trace
    return found


def has_value(x: Any) -> bool:
    """Is the value of `x` known, if only for each example of an eager vmap?"""
    return not is_tracer(inside(x))


def is_abstract(x: Any) -> bool:
    """Is nothing known of `x` but its type, whatever transforms it?"""
    return is_tracer(known_value(x))


def known_value(x: Any) -> Any:
    """Return the value of `x`, whatever transforms it; a tracer if it is not known."""
    while is_tracer(x):
        known = x.primal if isinstance(x, _DIFFERENTIATED) else inside(x)
        if known is x:
            break
        x = known
    return x


def is_transforming() -> bool:
    """Is a transformation under way, even if no argument of the call is a tracer?"""
    return not isinstance(trace_ctx.trace, EvalTrace)


def in_jet(arrays: Sequence[Any]) -> bool:
    """Is one of these arrays traced by `jax.experimental.jet`?

    By name, since to import that module takes time that nobody else needs.
    """
    return any(type(x).__name__ == "JetTracer" for x in arrays)


def in_forward_mode(arrays: Sequence[Any]) -> bool:
    """Is one of these differentiated by the innermost jvp, under vmaps or not?

    JAX refuses that for a custom_vjp function, but under jit only when it compiles: the
    tangents may be transposed before.
    """
    trace = trace_ctx.trace
    # Vmaps inside of the jvp: go down to it, and take their wrapping off the arrays.
    while isinstance(trace, BatchTrace):
        arrays = [x.val if isinstance(x, BatchTracer) else x for x in arrays]
        trace = trace.parent_trace
    return isinstance(trace, ad.JVPTrace) and any(
        isinstance(x, ad.JVPTracer) and x._trace.tag is trace.tag for x in arrays
    )


def staging() -> Any:
    """Find the trace that makes a jaxpr which JAX keeps, under jit or in a scan."""
    trace = trace_ctx.trace
    while trace is not None and not isinstance(trace, DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace


def is_staging() -> bool:
    """Is JAX tracing a function whose jaxpr it will keep?"""
    return staging() is not None
