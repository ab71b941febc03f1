"""A jvp derived from backward: backward is ct -> J^T ct; transposed, t -> J t."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxfn._core import jax_internals as internals
from jaxfn._core import messages

WHILE = (
    "a while loop over them (lax.while_loop, or lax.fori_loop with a number of steps "
    "that is traced), of which JAX has no transpose"
)
KERNEL = "an operation that has no transpose (for example, a kernel of Pallas)"


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
    n_cts, n = len(example), len(tangents)

    def with_part(*values: Any) -> list[Any]:
        cts, ts = values[:n_cts], values[n_cts:]
        outs, out_ts = jax.jvp(lambda *cts: list(backward(*cts)), cts, ts)
        return [*outs, *out_ts]

    def linear_part(*ts: Any) -> list[Any]:
        return internals.evaluate(jaxpr, [*consts, *example, *ts])[n:]

    try:
        jaxpr, consts = _traced(with_part, [*example, *example])
        found = jax.linear_transpose(linear_part, *example)(list(tangents))
    except jax.errors.UnexpectedTracerError:
        raise
    except internals.NEEDS_VALUES as error:
        expected = "operations that don't need the values of cotangents, as under jit"
        said = str(error).partition("\n")[0].rstrip(".")
        raise refusal(expected, said) from error
    except Exception as error:  # JAX raises errors of many kinds
        _traced(backward, example)  # An error of the user's own is raised here.
        # So is one that jaxfn explains, also one of jaxfn.torch.
        if isinstance(error, messages.RuleError) or hasattr(error, "way_out"):
            raise
        said = str(error)
        got = WHILE if "lax.while_loop" in said or "'while'" in said else said
        if said == "must override" or "'pallas_call'" in said:
            got = KERNEL
        expected = "operations, linear in the cotangents, that JAX can transpose"
        raise refusal(expected, got) from error
    _check_use(jaxpr, consts, n_cts, n, refusal)
    return list(found)


def _traced(fun: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Trace a function that may need the values of residuals, but not of cotangents.

    At zero cotangents, `if g.any()` would choose a branch that says nothing about g. If
    backward needs values, JAX computes at once all that depends on residuals alone.
    """
    try:
        return internals.trace(fun, args)
    except internals.NEEDS_VALUES:
        with jax.ensure_compile_time_eval():
            return internals.trace(fun, args)


def _check_use(jaxpr: Any, consts: Any, n_cts: int, n: int, refusal: Any) -> None:
    """Refuse a gradient that is not zero, and does not depend on the cotangents.

    Its transpose would be zero. A backward that rounds the gradient, or stops its
    derivative, returns such a one.

    Args:
        jaxpr: Backward with its linear part.
        consts: Values of its first arguments.
        n_cts: Number of cotangents, whose tangents are the last arguments.
        n: Number of results of backward, and of their tangents.
        refusal: See `transposed`.
    """
    opened, _ = internals.open_jaxpr(jaxpr)
    used, zero = {id(x) for x in opened.invars[-n_cts:]}, set[int]()
    known = dict(zip(map(id, opened.invars), consts, strict=False))

    def is_zero(x: Any) -> bool:
        value = known.get(id(x), getattr(x, "val", None))
        if value is None or internals.is_tracer(value):
            return id(x) in zero
        return not np.any(np.asarray(value))

    for eqn in opened.eqns:
        if any(id(x) in used for x in eqn.invars):
            used |= set(map(id, eqn.outvars))
        elif eqn.primitive.name in _MOVES and is_zero(eqn.invars[0]):
            zero |= set(map(id, eqn.outvars))
    pairs = zip(opened.outvars[:n], opened.outvars[n:], strict=True)
    if not all(is_zero(out) or id(dot) in used for out, dot in pairs):
        expected = "a gradient that is linear in the cotangents (None for zero)"
        raise refusal(expected, "a gradient that does not depend on them")


# JAX writes jnp.zeros as a broadcast 0.
_MOVES = ("broadcast_in_dim", "convert_element_type", "reshape", "pvary", "copy")
