"""Check and normalize the result of jvp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._base import ARRAY, OutSpec, Spec, compat, errors, pytree, short, type_name
from jaxfn._methods.returns import Where, cast, check_sharding, is_complex, tangent_type


def tangents(
    result: Any,
    out: OutSpec,
    avals: Sequence[Any],
    differentiable: Sequence[bool],
    *,
    name: str,
) -> list[Any]:
    """Return a tangent (or None) for each output array.

    Args:
        result: A tuple with a tangent for each output, or the only tangent.
        out: Structure of the outputs.
        avals: Type of each output array.
        differentiable: For each output array, whether it has a derivative.
        name: Name of the Function.
    """
    found = list(result) if isinstance(result, tuple) else [result]
    n = len(out.parts)
    # Unlike for gradients, torch refuses extra None.
    if len(found) != n:
        raise errors.RuleValueError(
            "Function's jvp returned an invalid number of forward gradients (expected "
            f"{n} but got {len(found)}). `{name}.jvp` must return one tangent for each "
            f"output of forward: expected {n}, got {len(found)}. Return None for an "
            "output that has no derivative."
        )
    found_tangents: list[Any] = []
    rest = iter(zip(avals, differentiable, strict=True))
    for position, (spec, t) in enumerate(zip(out.parts, found, strict=True)):
        where = Where(name, f"output {position}", position)
        for leaf, own in _tangent_leaves(t, spec, where):
            if own is ARRAY:
                found_tangents.append(_tangent(leaf, *next(rest), where))
    return found_tangents


def _tangent_leaves(t: Any, spec: Spec, where: Where) -> list[tuple[Any, Any]]:
    """Pair the leaves of one tangent with the leaves of its output."""
    if spec.is_array:
        return [(t, ARRAY)]
    try:
        return pytree.pair(t, spec)
    except ValueError as error:
        raise errors.RuleValueError(
            f"`{where.name}.jvp` returned a tangent of another structure than "
            f"{where.label}: expected {spec.treedef} (or None in place of any part), "
            f"got {jax.tree.structure(t)}."
        ) from error


def _tangent(t: Any, aval: Any, differentiable: bool, where: Where) -> Any:
    """Check one array of a tangent. Unlike a gradient, torch never sums it to fit."""
    if t is None:
        return None
    if not differentiable:
        raise errors.RuleValueError(
            f"Function's jvp returned a gradient at position {where.position}, but  "
            "the corresponding forward output is not a differentiable Tensor."
            "You should return None at that position instead. "
            f"(`{where.name}.jvp`, {where.label}: expected None for {short(aval)} that "
            f"is integer or marked non-differentiable, got {short(t)}.)"
        )
    if not pytree.is_array(t):
        raise errors.RuleTypeError(
            f"expected Variable or None (got {type_name(t)}) for grad output "
            f"{where.position}. `{where.name}.jvp` returned something else than an "
            f"array for {where.label}: expected {short(aval)} or None, got "
            f"{errors.shown(t)}."
        )
    t, aval = pytree.as_jax(t), tangent_type(aval)
    if t.shape != aval.shape:
        raise errors.RuleValueError(
            "Trying to set a forward gradient that has a different size than that of "
            "the original Tensor, this is not supported. Tensor is of size "
            f"{list(aval.shape)} while the given forward gradient is of size "
            f"{list(t.shape)}. `{where.name}.jvp`, tangent of {where.label}: expected "
            f"{short(aval)}, got {short(t)}."
        )
    if jnp.iscomplexobj(t) and not is_complex(aval):
        raise errors.RuleTypeError(
            f"`{where.name}.jvp` returned a complex tangent for a real {where.label}: "
            f"expected {short(aval)}, got {short(t)}. Return its real part."
        )
    what = f"`{where.name}.jvp` returned a tangent"
    check_sharding(t, aval, what, where)
    # An output that is equal on all devices has a tangent that is equal on all devices.
    # So unlike for a gradient, the rule is wrong.
    extra = compat.varying_axes(t) - compat.varying_axes(aval)
    if extra:
        raise errors.RuleTypeError(
            f"`{where.name}.jvp` returned a tangent that differs between devices for "
            f"{where.label}, which does not: expected {short(aval)} that is the same "
            f"along the mesh axes {sorted(map(str, extra))} of shard_map, got "
            f"{short(t)} that varies along them. Does it lack a collective that "
            "forward has, jax.lax.psum say?"
        )
    return compat.match_varying(cast(t, aval, what, where), aval)
