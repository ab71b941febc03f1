"""Under vmap, an output that has a derivative is batched if any argument is.

An output of a function is batched if JAX computes it from a batched value. Any other
output has one value y for all examples. But its derivative may differ between examples:
for a forward that returns x, a backward that gives `g * scale`, and a batched `scale`.
JAX sums the cotangents g_i of a shared y before it calls the rule. The rule then gives
scale_i * sum(g) for each example i, although scale_i * g_i is right. (The same happens
to a custom_vjp; newer releases of JAX refuse it.)

So `tied` makes an output with a derivative depend on every array argument. Compiled,
that costs nothing. Then each example has its own output, and the rule runs for each
example alone. Marked and integer outputs have no derivative and stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfn._base import compat
from jaxfn._engine.attachment import attach
from jaxfn._engine.gate import without_derivative
from jaxfn._engine.rules import Arrays, spread


def tied(
    outs: Arrays,
    inputs: Arrays,
    recording: compat.Recording,
    differentiable: Sequence[bool],
    *,
    name: str,
) -> list[Any]:
    """Return the outputs, each batched if one of the inputs is.

    Args:
        outs: Outputs of a forward, without derivative.
        inputs: Inputs of this call.
        recording: A recording that began just before the call.
        differentiable: A mask of the outputs that have a derivative.
        name: Name of the Function.
    """
    pairs = zip(differentiable, recording.covers(outs, inputs), strict=True)
    places = [has_derivative and not covered for has_derivative, covered in pairs]
    if not any(places):
        return list(outs)
    loose = [out for out, place in zip(outs, places, strict=True) if place]
    found = spread(_with_zero_of(loose, inputs, name), places)
    return [x if y is None else y for x, y in zip(outs, found, strict=True)]


def _with_zero_of(outs: list[Any], inputs: Arrays, name: str) -> list[Any]:
    """Return the outputs, with a dependence on all inputs.

    For an output y and inputs a and b this is y - (sum(a[:0]) + sum(b[:0])), which is
    y, also if y is -0.0. JAX batches it if any part is batched. XLA drops the zero.
    Every operation here has a transpose, which `jax.linear_transpose` of a call needs.
    """
    # This fails in a Pallas kernel for TPU (no empty arrays), for an unreduced value
    # (JAX adds nothing to it), an extended dtype (no subtraction), and float8_e8m0fnu
    # (no zero). There `attach` batches the values, without an operation on them.
    unreduced = any(map(compat.is_unreduced, (*outs, *inputs)))
    odd = any(_is_extended(x) or x.dtype == jnp.float8_e8m0fnu for x in outs)
    if compat.in_kernel() or unreduced or odd:
        n, values = len(outs), without_derivative(outs)

        def alike(_: Arrays, __: Arrays, tangents: Arrays) -> Arrays:
            return tangents[:n]

        return attach(alike, [*outs, *inputs], values, name=name, spreads=True)
    return _less_zero(list(outs), list(inputs))


# A jit, because then JAX traces the operations once for the same types.
@jax.jit
def _less_zero(outs: list[Any], inputs: list[Any]) -> list[Any]:
    """Return the outputs, less a zero made of the inputs."""
    zeros: dict[Any, Any] = {}
    found = []
    for out in outs:
        kind = (out.dtype, compat.varying_axes(out))
        if kind not in zeros:
            sums = [_zero_made_of(x, out) for x in inputs]
            zeros[kind] = functools.reduce(lax.add, sums)
        found.append(lax.sub(out, zeros[kind]))
    return found


def _zero_made_of(x: Any, out: Any) -> Any:
    """Return the sum of no elements of `x`: a zero that can be taken from `out`."""
    # PRNG keys are no numbers, but they can be compared.
    if _is_extended(x):
        x = lax.eq(x, x)
    x = lax.reshape(x, (1,)) if x.ndim == 0 else x
    x = lax.slice(x, (0,) * x.ndim, (0,) * x.ndim)
    if jnp.iscomplexobj(x) and not jnp.iscomplexobj(out):
        x = lax.real(x)  # `x` has no elements, so nothing is lost
    x = lax.convert_element_type(x, out.dtype)
    # In a shard_map the output would vary over all mesh axes that `x` varies over.
    extra = compat.varying_axes(x) - compat.varying_axes(out)
    x = lax.psum(x, tuple(extra)) if extra else x
    return lax.reduce_sum(x, tuple(range(x.ndim)))


def _is_extended(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.extended)
