"""Reading and evaluating jaxprs, whose form differs between versions."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any

from jax._src.core import jaxpr_as_fun
from jax.interpreters import ad

from jaxfn._base.compat.values import as_array


def has_transpose(primitive: Any) -> bool:
    """Can `jax.linear_transpose` transpose this operation?"""
    return primitive in ad.primitive_transposes


def evaluate(jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    """Evaluate a closed jaxpr on these values."""
    return [as_array(x) for x in jaxpr_as_fun(jaxpr)(*values)]


def constants(jaxpr: Any) -> list[Any]:
    """Return the constants of a closed jaxpr: what the function closed over."""
    return list(open_jaxpr(jaxpr)[1])


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Return a jaxpr and the values of its constvars, whichever form it has.

    Before 0.12 a ClosedJaxpr holds a Jaxpr and the values; since then a Jaxpr has both.
    """
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Count the constants and the carried values of a scan equation."""
    # JAX 0.12 says it by the tree of the scan's arguments, not by two numbers.
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def evaluate_equation(eqn: Any, values: Sequence[Any]) -> list[Any]:
    """Evaluate one equation of a jaxpr on these values of its inputs."""
    primitive = eqn.primitive
    # An equation remembers the mesh, the compute type and the kind of random bits
    # (threefry_partitionable) that it was traced under: its results depend on them.
    with eqn.ctx.manager:
        found = primitive.bind(*values, **primitive.get_bind_params(eqn.params))
    return list(found) if primitive.multiple_results else [found]


def has_named_axes(eqn: Any) -> bool:
    """Is it a collective, or does it ask for the place along a mapped axis?"""
    # Reductions have `axes` too, but theirs are positions: integers, not names.
    axes = eqn.params.get("axis_name", eqn.params.get("axes"))
    named = axes if isinstance(axes, (tuple, list)) else (axes,)
    return any(not isinstance(x, (int, NoneType)) for x in named)
