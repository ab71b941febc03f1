"""Check and normalize the results of jvp and vmap, part by part for each output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._base import (
    ARRAY,
    Outputs,
    OutSpec,
    Spec,
    compat,
    errors,
    pytree,
    short,
    type_name,
)
from jaxfn._methods.returned_gradients import (
    Where,
    cast,
    conform,
    loses_imaginary,
    tangent_type,
)


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
        try:
            pairs = [(t, ARRAY)] if spec.is_array else pytree.pair(t, spec)
        except ValueError as error:
            raise errors.RuleValueError(
                f"`{name}.jvp` returned a tangent of another structure than "
                f"{where.label}: expected {spec.treedef} (or None in place of any "
                f"part), got {jax.tree.structure(t)}."
            ) from error
        found_tangents += [
            _tangent(leaf, *next(rest), where) for leaf, own in pairs if own is ARRAY
        ]
    return found_tangents


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
    if loses_imaginary(t, aval):
        raise errors.RuleTypeError(
            f"`{where.name}.jvp` returned a complex tangent for a real {where.label}: "
            f"expected {short(aval)}, got {short(t)}. Return its real part."
        )
    # If an output is equal on all devices, so is its tangent. Unlike a gradient, it
    # can't be summed: the rule is wrong.
    extra = compat.varying_axes(t) - compat.varying_axes(aval)
    if extra:
        raise errors.RuleTypeError(
            f"`{where.name}.jvp` returned a tangent that differs between devices for "
            f"{where.label}, which does not: expected {short(aval)} that is the same "
            f"along the mesh axes {sorted(map(str, extra))} of shard_map, got "
            f"{short(t)} that varies along them. Call the collectives of forward "
            "(for example jax.lax.psum) in jvp too."
        )
    return conform(t, aval, f"`{where.name}.jvp` returned a tangent", where)


# ---- vmap


def batch_outputs(
    result: Any, size: int, expected: OutSpec, avals: Sequence[Any], *, name: str
) -> tuple[Outputs, Outputs]:
    """Check the result of a vmap staticmethod, and convert it for custom_vmap.

    Args:
        result: A pair of the output and its out_dims.
        size: Size of the batch.
        expected: Structure of the output of forward.
        avals: Type of each output array of forward, without batch axis.
        name: Name of the Function.

    Returns:
        The outputs with the batch axis first, and for each whether it has one.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        is_tuple = isinstance(result, tuple)
        got = f"{len(result)} returns" if is_tuple else f"a {type(result)}"
        raise errors.RuleValueError(
            "Expected the vmap staticmethod to have two returns, an output and "
            f"out_dims with pytree structure compatible with the output. Got {got} "
            f"instead. `{name}.vmap` must return a pair (output, out_dims)."
        )
    out, out_dims = result
    arrays, spec = OutSpec.split(out)
    try:
        pairs = pytree.pair(out_dims, spec.whole)
    except ValueError as error:
        raise errors.RuleValueError(
            "The autograd.Function's vmap staticmethod returned an incompatible "
            f"(output, out_dims) tuple. Expected out_dims={out_dims} to be compatible "
            f"with the structure of `output`. out_dims has structure "
            f"{jax.tree.structure(out_dims)} but output has structure "
            f"{spec.whole.treedef}. `{name}.vmap`: give one dim (or None) for each "
            "output, or one for all."
        ) from error
    wanted, got = _sketch(expected.whole), _sketch(spec.whole)
    if spec.whole.treedef != expected.whole.treedef or wanted != got:
        raise errors.RuleValueError(
            f"`{name}.vmap` returned an output of another structure than forward: "
            f"expected {wanted}, got {got}."
        )
    dims = [dim for dim, own in pairs if own is ARRAY]
    moved = [
        _batch(jnp.asarray(x), dim, size, aval, Where(name, f"output array {i}", i))
        for i, (x, dim, aval) in enumerate(zip(arrays, dims, avals, strict=True))
    ]
    # JAX compares structures, and traced the caller with the static values of forward.
    return Outputs(moved, expected), Outputs([d is not None for d in dims], expected)


def _sketch(spec: Spec) -> str:
    """Show a structure in a message: `PyTreeDef((*, *)) of array, static`."""
    kinds = ["array" if leaf is ARRAY else "static" for leaf in spec.leaves]
    return f"{spec.treedef} of {', '.join(kinds)}"


def _batch(x: Any, dim: Any, size: int, aval: Any, where: Where) -> Any:
    x = _to_front(x, dim, size, where)
    shape = x.shape if dim is None else x.shape[1:]
    # custom_vmap checks neither shape nor dtype. A cast of complex numbers would drop
    # the imaginary part.
    if shape != aval.shape or loses_imaginary(x, aval):
        raise errors.RuleValueError(
            f"`{where.name}.vmap` returned other values than forward for "
            f"{where.label}: expected {short(aval)} for each example, got "
            f"{short(x)} with out_dims {dim} moved to the front."
        )
    return cast(x, aval, f"`{where.name}.vmap` returned an array", where)


def _to_front(x: Any, dim: Any, size: int, where: Where) -> Any:
    """Check one of out_dims, and move this axis to the front."""
    if dim is None:
        return x
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise errors.RuleTypeError(
            f"`{where.name}.vmap` returned a bad out_dims for {where.label}: expected "
            f"an int or None, got {dim!r} of type {type_name(dim)}."
        )
    if not -x.ndim <= dim < x.ndim:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-x.ndim}, "
            f"{x.ndim - 1}], but got {dim}). `{where.name}.vmap`: out_dims of "
            f"{where.label}, {short(x)}."
        )
    if x.shape[dim] != size:
        raise errors.RuleValueError(
            f"`{where.name}.vmap` returned a batch of the wrong size for "
            f"{where.label}: expected {size} at dim {dim}, got {x.shape[dim]} in "
            f"{short(x)}."
        )
    return jnp.moveaxis(x, dim, 0)
