"""Check and normalize the result of a vmap staticmethod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._base import ARRAY, Outputs, OutSpec, Spec, errors, pytree, short, type_name
from jaxfn._methods.returns import Where, cast, is_complex


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
        got = (
            f"{len(result)} returns"
            if isinstance(result, tuple)
            else f"a {type(result)}"
        )
        raise errors.RuleValueError(
            "Expected the vmap staticmethod to have two returns, an output and "
            f"out_dims with pytree structure compatible with the output. Got {got} "
            "instead. "
            f"`{name}.vmap` must return a pair (output, out_dims)."
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
    if shape != aval.shape or (jnp.iscomplexobj(x) and not is_complex(aval)):
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
