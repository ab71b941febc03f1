"""Batches: a user's batch rule, and an output of its own for each example."""

from __future__ import annotations

import functools
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
        and the spec of the outputs.
    """
    specs: list[Any] = []

    def flat(*arrays: Any) -> Arrays:
        outs = fun(*arrays)
        specs[:] = [outs.spec]
        return outs.arrays

    jaxpr, consts = internals.trace(flat, arrays)
    if internals.is_staging() and any(map(internals.is_reference, consts)):
        raise messages.reference(name)
    return jaxpr, consts, specs[0]


def with_batch_rule(
    jaxpr: Any, spec: Any, batch: Batch, fixed: Sequence[bool], *, name: str
) -> Fun:
    """Make the `jax.custom_batching.custom_vmap` of a traced function.

    The values that the function closes over come first among its arguments, because JAX
    asserts, without a message, that a custom_vmap closes over no batched value. But if
    JAX computes both branches of a cond, it batches constants too.

    Args:
        jaxpr: The function; see `closed`.
        spec: Spec of its outputs.
        batch: The user's rule. It gets the arguments, but no closed-over value.
        fixed: For each closed-over value, whether it is a constant.
        name: Name of the Function.
    """
    if internals.in_pallas_kernel():
        raise messages.batched_in_kernel(name)
    n = len(fixed)

    def value(*values: Any) -> Outputs:
        return Outputs(internals.evaluate(jaxpr, values), spec)

    def rule(size: int, batched: Any, *values: Any) -> tuple[Outputs, Outputs]:
        if any(b and not f for b, f in zip(batched, fixed, strict=False)):
            raise messages.batched_closure(name)
        if any(batched[n:]):
            return batch(size, batched[n:], list(values[n:]))
        # A constant that is batched has the same value for all examples.
        pairs = zip(values, batched, strict=True)
        outs = value(*[x[0] if b else x for x, b in pairs])
        return outs, Outputs([False] * len(outs.arrays), spec)

    value.__name__ = name
    f = jax.custom_batching.custom_vmap(value)
    f.def_vmap(rule)
    return f


def batchable(fun: Fun, batch: Batch | None, *, name: str) -> Fun:
    """Return `fun(*arrays)` with a batch rule, for code that JAX never differentiates.

    If no argument is a tracer, nothing can be batched, and `fun` runs as it is.
    custom_vmap would trace it, which a NumPy body does not allow.
    """
    if batch is None:
        return fun

    def call(*arrays: Any) -> Outputs:
        if not any(map(internals.is_tracer, arrays)):
            return fun(*arrays)
        jaxpr, consts, spec = closed(fun, arrays, name=name)
        fixed = list(map(internals.is_constant, consts))
        f = with_batch_rule(jaxpr, spec, batch, fixed, name=name)
        return f(*consts, *arrays)

    return call


# ---- an output for each example


def tied(
    outs: Arrays, inputs: Arrays, differentiable: Sequence[bool], *, name: str
) -> list[Any]:
    """Return the outputs; those with a derivative are batched if any input is.

    `attach` explains why. The outputs keep their derivative. This adds JAX's own
    operations only, but for the cases below, so that every interpreter takes them.
    """
    # JAX has no empty arrays in Pallas kernels, pads no unreduced value, and none by a
    # value in another memory. Outside a trace, nobody reads a jaxpr.
    own = (
        not internals.is_staging()
        or internals.in_pallas_kernel()
        or any(map(internals.is_unreduced, (*outs, *inputs)))
        or len(set(map(internals.memory_of, (*outs, *inputs)))) > 1
    )
    if own:
        return spread_out(outs, inputs, differentiable, name=name)
    if not inputs or not any(differentiable):
        return list(outs)
    ties = iter(_padded(list(outs), list(inputs), tuple(differentiable)))
    return [next(ties) if d else x for x, d in zip(outs, differentiable, strict=True)]


def spread_out(
    outs: Arrays, inputs: Arrays, differentiable: Sequence[bool], *, name: str
) -> list[Any]:
    """Do the same as `tied`, by `attach`."""
    n = len(outs)

    def rule(_: Arrays, __: Arrays, tangents: Arrays) -> list[Any]:
        return list(tangents[:n])

    inside = list(map(gate, outs))
    return attach(rule, [*outs, *inputs], inside, name=name, spreads=differentiable)


# A jit, because then JAX traces the operations once for the same types.
@functools.partial(jax.jit, static_argnums=2)
def _padded(outs: list[Any], inputs: list[Any], places: tuple[bool, ...]) -> list[Any]:
    """Return the outputs in their places, padded by nothing with a zero of all inputs.

    XLA drops the padding. It computes with no element, so a NaN stays the user's; a
    weak type stays weak; and it is linear, so JAX can transpose it.
    """
    zero = functools.reduce(lax.add, map(_zero, inputs))
    found = []
    for out in [out for out, place in zip(outs, places, strict=True) if place]:
        # In a shard_map the output would vary over all mesh axes that an input does.
        extra = tuple(internals.varying_axes(zero) - internals.varying_axes(out))
        own = internals.cast_like(lax.psum(zero, extra) if extra else zero, out)
        # JAX can't batch a padding on an explicit mesh.
        if internals.is_on_explicit_mesh(out):
            found.append(lax.sub(out, own))
        else:
            found.append(lax.pad(out, own, ((0, 0, 0),) * out.ndim))
    return found


_NUMBERS = tuple("iuf")


def _zero(x: Any) -> Any:
    """Return a zero, computed from no element of `x`."""
    kind = getattr(x.dtype, "kind", "")
    if kind == "c":
        x = lax.real(x)
    elif kind not in _NUMBERS:  # a bool, a PRNG key, or a dtype without a zero
        x = lax.ne(x, x)
    x = lax.reshape(x, (1,)) if x.ndim == 0 else x
    x = lax.slice(x, (0,) * x.ndim, (0,) * x.ndim)
    x = lax.convert_element_type(x, jnp.float32)
    return lax.reduce_sum(x, tuple(range(x.ndim)))
