"""Batches: a user's batch rule, and an output of its own for each example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfn._core import jax_internals as internals
from jaxfn._core import messages
from jaxfn._core.primitives import attach, gate
from jaxfn._core.values import Arrays, Outputs

Fun = Callable[..., Outputs]
"""A function of flat arrays."""

Batch = Callable[[int, Sequence[bool], list[Any]], tuple[Outputs, Outputs]]
"""The batch rule of a `Fun`: `batch(size, batched, arrays) -> outs, which are batched`.

Batch axes are first, and `batched` says which arrays have one.
"""


# ---- a batch rule


def closed(fun: Fun, arrays: Arrays, *, name: str) -> tuple[Any, list[Any], Any]:
    """Trace `fun(*arrays)`.

    Returns:
        A jaxpr of the values that it closes over and then the arguments; these values;
        and the layout of the outputs.
    """
    layouts: list[Any] = []

    def flat(*arrays: Any) -> Arrays:
        outs = fun(*arrays)
        layouts[:] = [outs.layout]
        return outs.arrays

    jaxpr, consts = internals.trace(flat, arrays)
    if internals.is_staging() and any(map(internals.is_reference, consts)):
        raise messages.reference(name)
    return jaxpr, consts, layouts[0]


def with_batch_rule(
    jaxpr: Any, layout: Any, batch: Batch, fixed: Sequence[bool], *, name: str
) -> Fun:
    """Make the `jax.custom_batching.custom_vmap` of a traced function.

    The values that the function closes over come first among its arguments, because JAX
    asserts, without a message, that a custom_vmap closes over no batched value. But if
    JAX computes both branches of a cond, it batches constants too.

    Args:
        jaxpr: The function; see `closed`.
        layout: The layout of its outputs.
        batch: The user's rule. It gets the arguments, but no closed-over value.
        fixed: For each closed-over value, whether it is a constant.
        name: Name of the Function.
    """
    if internals.in_pallas_kernel():
        raise messages.batched_in_kernel(name)
    n = len(fixed)

    def value(*values: Any) -> Outputs:
        return Outputs(internals.evaluate(jaxpr, values), layout)

    def rule(size: int, batched: Any, *values: Any) -> tuple[Outputs, Outputs]:
        if any(b and not f for b, f in zip(batched, fixed, strict=False)):
            raise messages.batched_closure(name)
        if any(batched[n:]):
            return batch(size, batched[n:], list(values[n:]))
        # A constant that is batched has the same value for all examples.
        pairs = zip(values, batched, strict=True)
        outs = value(*[x[0] if b else x for x, b in pairs])
        return outs, Outputs([False] * len(outs.arrays), layout)

    value.__name__ = name
    f = jax.custom_batching.custom_vmap(value)
    f.def_vmap(rule)
    return f


def batchable(fun: Fun, batch: Batch | None, *, name: str) -> Fun:
    """Return `fun(*arrays)` with a batch rule, for code that JAX never differentiates.

    If no argument is a tracer, no argument is batched, and `fun` runs as it is.
    custom_vmap would trace it, which a NumPy body does not allow.
    """
    if batch is None:
        return fun

    def call(*arrays: Any) -> Outputs:
        if not any(map(internals.is_tracer, arrays)):
            return unbatched(fun, arrays, name=name)
        jaxpr, consts, layout = closed(fun, arrays, name=name)
        fixed = list(map(internals.is_constant, consts))
        f = with_batch_rule(jaxpr, layout, batch, fixed, name=name)
        return f(*consts, *arrays)

    return call


def unbatched(fun: Fun, arrays: Arrays, *, name: str) -> Outputs:
    """Return `fun(*arrays)`, for arrays that no vmap batches.

    If it closes over a tracer, a vmap may batch the result, now or when it batches a
    jit around the call. The batch rule, which gets no closed-over value, would be left
    out. So an identity raises ClosedOverError then.
    """
    outs = fun(*arrays)
    if not any(map(internals.is_tracer, outs.arrays)):
        return outs

    def refuse(*_: Any) -> Any:
        raise messages.batched_closure(name)

    identity = jax.custom_batching.custom_vmap(lambda *xs: xs)
    identity.def_vmap(refuse)
    # JAX differentiates a custom_vmap forwards alone.
    f = jax.custom_jvp(identity)
    f.defjvp(lambda xs, ts: (f(*xs), ts))
    return Outputs(list(f(*outs.arrays)), outs.layout)


# ---- an output for each example, with the batch axis in front


def tied(
    outs: Arrays, inputs: Arrays, differentiable: Sequence[bool], *, name: str
) -> list[Any]:
    """Return the outputs as a vmap must have them.

    Those with a derivative are batched if any input is; `attach` explains why. The
    batch axis of all outputs comes first: JAX takes its place from a plain call, but
    the numbers from the rules, and transposes without a word if the places differ.

    The outputs keep their derivative. This adds JAX's own operations only, but for the
    cases below, so that every interpreter takes them.
    """
    # JAX has no empty arrays in Pallas kernels, joins no unreduced value, and none with
    # a value in another memory or split in another way over an explicit mesh. Outside
    # a trace, nobody reads a jaxpr.
    by_attach = (
        not internals.is_staging()
        or internals.in_pallas_kernel()
        or any(map(internals.is_on_explicit_mesh, outs))
        or any(map(internals.is_unreduced, (*outs, *inputs)))
        or len(set(map(internals.memory_of, (*outs, *inputs)))) > 1
    )
    if by_attach:
        return spread_out(outs, inputs, differentiable, name=name)
    empty = _empty(inputs) if inputs and any(differentiable) else None
    return [
        _joined(out, empty if spreads else None)
        for out, spreads in zip(outs, differentiable, strict=True)
    ]


def spread_out(
    outs: Arrays, inputs: Arrays, differentiable: Sequence[bool], *, name: str
) -> list[Any]:
    """Return what `tied` does, made by `attach`."""
    n = len(outs)

    def rule(_: Arrays, __: Arrays, tangents: Arrays) -> list[Any]:
        return list(tangents[:n])

    inside = list(map(gate, outs))
    return attach(rule, [*outs, *inputs], inside, name=name, spreads=differentiable)


def in_front(residuals: Arrays, *, name: str) -> list[Any]:
    """Return residuals with the batch axis in front, after a vmap."""
    if not internals.is_staging():  # then JAX batches the residuals of one run
        return list(residuals)
    return [
        x if internals.is_reference(x) else tied([x], (), (False,), name=name)[0]
        for x in residuals
    ]


def _empty(inputs: Arrays) -> Any:
    """Return an array without elements, which is batched if any input is."""
    parts = [
        lax.convert_element_type(_without_elements(x), jnp.float32) for x in inputs
    ]
    return parts[0] if len(parts) == 1 else lax.concatenate(parts, 0)


def _without_elements(x: Any) -> Any:
    """Return the first 0 elements of `x`, as a vector."""
    kind = getattr(x.dtype, "kind", "")
    x = lax.reshape(x, (1,)) if x.ndim == 0 else x
    x = lax.slice(x, (0,) * x.ndim, (0, *x.shape[1:]))
    if kind == "c":
        x = lax.real(x)
    elif kind not in _NUMBERS:  # a bool, a PRNG key, or a dtype without numbers
        x = lax.ne(x, x)
    return lax.reshape(x, (0,))


_NUMBERS = tuple("iuf")


def _joined(out: Any, empty: Any | None) -> Any:
    """Return an output, joined with no elements.

    XLA drops this operation. It computes with no element, so a NaN stays the user's;
    and it is linear, so JAX can transpose it. JAX batches it along the first axis.
    """
    if out.ndim == 0:
        return lax.reshape(_joined(lax.reshape(out, (1,)), empty), ())
    if empty is None:
        empty = lax.slice(out, (0,) * out.ndim, (0, *out.shape[1:]))
    else:
        # In a shard_map the output varies over all mesh axes that an input does.
        extra = tuple(internals.varying_axes(empty) - internals.varying_axes(out))
        empty = lax.psum(empty, extra) if extra else empty
        empty = lax.reshape(internals.cast_like(empty, out), (0, *out.shape[1:]))
    return lax.concatenate([out, empty], 0)
