"""A jvp derived from backward: backward is ct -> J^T ct; transposed, t -> J t."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxfn._core import jax_internals as internals

WHILE = (
    "a while loop over them (lax.while_loop, or lax.fori_loop with a number of steps "
    "that is traced), of which JAX has no transpose"
)


def transposed(
    backward: Callable[..., Sequence[Any]],
    example: Sequence[Any],
    tangents: Sequence[Any],
    *,
    refusal: Callable[[str, str], Exception],
) -> list[Any]:
    """Return the transpose of `backward(*cts)` at `tangents`.

    It is the transpose of the derivative of backward at zero cotangents. If backward is
    linear, this is its own transpose. If it clips or guards a gradient, this is the
    transpose of its linear part, which is the Jacobian that backward stands for.

    Args:
        backward: The function, from cotangents to an array for each tangent.
        example: Zero cotangents. They have the types of the outputs: one made from
            shape and dtype alone would not vary over the devices of a shard_map, and
            the result would be too big by their number.
        tangents: Values for the results of backward.
        refusal: Makes the error from what was expected, and what came.
    """
    jaxpr, consts = _traced(backward, example, refusal)

    def of_cts(*cts: Any) -> list[Any]:
        return internals.evaluate(jaxpr, [*consts, *cts])

    def linear_part(*cts: Any) -> list[Any]:
        return jax.jvp(of_cts, tuple(example), cts)[1]

    try:
        part, values = internals.trace(linear_part, example)
        _check_use(jaxpr, part, len(values), refusal)
        run = functools.partial(internals.evaluate, part)
        transpose = jax.linear_transpose(lambda *cts: run([*values, *cts]), *example)
        return list(transpose(list(tangents)))
    except jax.errors.UnexpectedTracerError:
        raise
    except Exception as error:  # JAX raises errors of many kinds
        expected = "operations, linear in the cotangents, that JAX can transpose"
        raise refusal(expected, _words(error)) from error


def _traced(
    backward: Callable[..., Any], example: Sequence[Any], refusal: Any
) -> tuple[Any, list[Any]]:
    """Trace backward, which may need the values of residuals but not of cotangents.

    At zero cotangents, `if g.any()` would choose a branch that says nothing about g. If
    backward needs values, JAX computes at once all that depends on residuals alone.
    """
    try:
        return internals.trace(backward, example)
    except internals.NEEDS_VALUES:
        pass
    try:
        with jax.ensure_compile_time_eval():
            return internals.trace(backward, example)
    except internals.NEEDS_VALUES as error:
        expected = "operations that don't need the values of cotangents, as under jit"
        said = str(error).partition("\n")[0].rstrip(".")
        raise refusal(expected, said) from error


def _check_use(jaxpr: Any, part: Any, n_values: int, refusal: Any) -> None:
    """Refuse a gradient that is not zero, and does not depend on the cotangents.

    Its transpose would be zero. So it is if backward rounds or stops the gradient.

    Args:
        jaxpr: Backward.
        part: Its linear part, of `n_values` values and the cotangents.
        n_values: Number of these values.
        refusal: See `transposed`.
    """
    opened, _ = internals.open_jaxpr(part)
    used = {id(x) for x in opened.invars[n_values:]}
    for eqn in opened.eqns:
        if any(id(x) in used for x in eqn.invars):
            used |= set(map(id, eqn.outvars))
    outs = zip(_zeros(jaxpr), opened.outvars, strict=True)
    if not all(zero or id(x) in used for zero, x in outs):
        expected = "a gradient that is linear in the cotangents (None for zero)"
        raise refusal(expected, "a gradient that does not depend on them")


def _zeros(jaxpr: Any) -> list[bool]:
    """Return which results of a jaxpr are zeros, as jnp.zeros makes them."""
    opened, _ = internals.open_jaxpr(jaxpr)
    zero: set[int] = set()

    def is_zero(x: Any) -> bool:
        return id(x) in zero or (hasattr(x, "val") and not np.any(np.asarray(x.val)))

    for eqn in opened.eqns:
        if eqn.primitive.name in _MOVES and is_zero(eqn.invars[0]):
            zero |= set(map(id, eqn.outvars))
    return list(map(is_zero, opened.outvars))


# JAX writes jnp.zeros as a broadcast 0.
_MOVES = ("broadcast_in_dim", "convert_element_type", "reshape", "pvary", "copy")


def _words(error: Exception) -> str:
    """Name the operation without transpose in an error of JAX."""
    said = str(error)
    if "lax.while_loop" in said or "'while'" in said:
        return WHILE
    operation = internals.lacks_transpose(error)
    return said if operation is None else f"{operation}, of which JAX has no transpose"
