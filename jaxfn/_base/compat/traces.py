"""Tracers and active transformations."""

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
"""The exact type of an array that is no tracer.

An array made to find its type would start JAX's backend before jax.distributed.
"""

_DIFFERENTIATED = (ad.JVPTracer, LinearizeTracer)


def is_tracer(x: Any) -> bool:
    return isinstance(x, core.Tracer)


def is_lost(x: Any) -> bool:
    """Return whether `x` is a tracer that no forward may close over.

    Either an active transformation differentiates `x`, and the rules would lose its
    derivative; or its transformation is over. JAX raises for both, but later and less
    clearly.
    """
    return isinstance(x, _DIFFERENTIATED) or is_leaked(x)


def is_leaked(x: Any) -> bool:
    """Return whether `x` is a tracer whose transformation is over."""
    if not is_tracer(x) or isinstance(getattr(x, "val", None), Literal):
        return False
    if not x._trace.is_valid():
        return True
    # The trace of a jaxpr stays valid. At its end, JAX replaces a WeakValueDictionary
    # by an empty dict.
    frame = getattr(x._trace, "frame", None)
    return isinstance(getattr(frame, "constid_to_tracer", None), dict)


def inside(x: Any) -> Any:
    """Unwrap eager vmaps and known values."""
    while True:
        if isinstance(x, BatchTracer):
            x = x.val
        elif isinstance(x, JaxprTracer) and x.pval.is_known():
            x = x.pval.get_known()
        else:
            return x


def is_differentiated(x: Any) -> bool:
    """Return whether an active transformation differentiates `x`."""
    return isinstance(inside(x), _DIFFERENTIATED)


def in_kernel() -> bool:
    """Return whether JAX is tracing the body of a Pallas kernel."""
    pallas: Any = sys.modules.get("jax._src.pallas.core")
    if pallas is None:
        return False
    if hasattr(pallas, "_grid_context"):
        return pallas._grid_context.value is not None
    return pallas._pallas_tracing_env.grid_context is not None  # JAX 0.10


def is_final(arrays: Sequence[Any]) -> bool:
    """Return whether all values are known and none is differentiated, now or later."""
    return all(map(has_value, arrays)) and not any(map(is_differentiated, arrays))


def batch_axes(x: Any) -> frozenset[int]:
    """Return the ids of all active vmaps that map over `x`, at any depth."""
    found: set[int] = set()
    while is_tracer(x):
        if isinstance(x, BatchTracer):
            # By identity, because all tags of JAX compare equal. An unbatched result of
            # a custom_vjp is a BatchTracer without batch dimension.
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
    """Return the named axes of active vmaps, with sizes, that JAX's axis env lacks.

    JAX forgets the names after it has traced a vmap. A jvp rule may run later, inside
    that vmap.
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
    """Return whether the value of `x` is known, also inside an eager vmap."""
    return not is_tracer(inside(x))


def is_abstract(x: Any) -> bool:
    """Return whether only the type of `x` is known, under all transformations."""
    return is_tracer(known_value(x))


def known_value(x: Any) -> Any:
    """Return the value of `x` under all transformations; a tracer if it is unknown."""
    while is_tracer(x):
        known = x.primal if isinstance(x, _DIFFERENTIATED) else inside(x)
        if known is x:
            break
        x = known
    return x


def is_transforming() -> bool:
    """Return whether a transformation is active, even if no argument is a tracer."""
    return not isinstance(trace_ctx.trace, EvalTrace)


def in_jet(arrays: Sequence[Any]) -> bool:
    """Return whether `jax.experimental.jet` traces any of the arrays."""
    # By name, because the module is slow to import.
    return any(type(x).__name__ == "JetTracer" for x in arrays)


def in_forward_mode(arrays: Sequence[Any]) -> bool:
    """Return whether the innermost jvp, also under vmaps, differentiates an array.

    JAX refuses this for a custom_vjp function. Under jit it refuses only when it
    compiles, because it may transpose the tangents first.
    """
    trace = trace_ctx.trace
    while isinstance(trace, BatchTrace):
        arrays = [x.val if isinstance(x, BatchTracer) else x for x in arrays]
        trace = trace.parent_trace
    return isinstance(trace, ad.JVPTrace) and any(
        isinstance(x, ad.JVPTracer) and x._trace.tag is trace.tag for x in arrays
    )


def staging() -> Any:
    """Return the active trace that makes a jaxpr (jit, scan), or None."""
    trace = trace_ctx.trace
    while trace is not None and not isinstance(trace, DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace


def is_staging() -> bool:
    """Return whether JAX is tracing a jaxpr."""
    return staging() is not None
