"""Check and normalize the result of backward; checks that all results share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._base import ARRAY, Arguments, Spec, compat, errors, pytree, short, type_name


class Where(NamedTuple):
    """A place in the result of a rule, for messages.

    Attributes:
        name: Name of the Function.
        label: Words for the argument or output.
        position: Its index.
    """

    name: str
    label: str
    position: int


def gradients(
    result: Any,
    arguments: Arguments,
    avals: Sequence[Any],
    perturbed: Sequence[bool],
    arrived: Sequence[Any],
    *,
    name: str,
) -> list[Any]:
    """Return a cotangent (or None) for each array argument.

    Args:
        result: A tuple with a gradient for each argument, or the only gradient.
        arguments: Arguments of the call.
        avals: Type of each array argument.
        perturbed: For each array argument, whether it is differentiated.
        arrived: The nonzero cotangents that backward got.
        name: Name of the Function.
    """
    n = len(arguments.specs)
    # Only a tuple means several gradients; a list is the gradient of a list argument.
    one = not isinstance(result, tuple) or (
        n == 1 and _is_whole(result, arguments.specs[0])
    )
    found = [result] if one else list(result)
    # Like torch, accept extra None: some rules return one for each default value.
    if len(found) < n or [x for x in found[n:] if x is not None]:
        raise errors.RuleValueError(
            f"function {name}Backward returned an incorrect number of gradients "
            f"(expected {n}, got {len(found)}). `{name}.backward` must return a tuple "
            "with one gradient for each argument that forward was called with: "
            f"expected {n}, got {len(found)}. Return None for an argument that has no "
            "gradient."
        )
    grads: list[Any] = []
    groups = zip(
        arguments.specs,
        arguments.groups(avals),
        arguments.groups(perturbed),
        found[:n],
        strict=True,
    )
    for position, (spec, arg_avals, wanted, grad) in enumerate(groups):
        # The fast path: one array, and a gradient of its type.
        if spec.is_array and (not wanted[0] or _is_cotangent(grad, arg_avals[0])):
            grads.append(grad if wanted[0] else None)
            continue
        where = Where(name, arguments.known.label(position), position)
        leaves = _array_leaves(grad, spec, where)
        grads += [
            _gradient(leaf, aval, arrived, where) if want else None
            for leaf, aval, want in zip(leaves, arg_avals, wanted, strict=True)
        ]
    return grads


def _is_whole(result: tuple[Any, ...], spec: Spec) -> bool:
    """Return whether the result is a namedtuple of the only argument's type.

    Then it is the gradient of this argument. Any other tuple has a gradient for each
    argument, as in torch.
    """
    node = spec.treedef.node_data()
    kind = type(result)
    return kind is not tuple and node is not None and node[0] is kind


def _is_cotangent(grad: Any, aval: Any) -> bool:
    """Return whether `grad` fits an argument of type `aval` without a cast."""
    return (
        isinstance(grad, jax.Array)
        and compat.has_type(grad, tangent_type(aval))
        and pytree.is_inexact(aval)
    )


def _array_leaves(grad: Any, spec: Spec, where: Where) -> list[Any]:
    """Return the leaves of a gradient that belong to the arrays of its argument."""
    if grad is None:
        return [None] * spec.n_arrays
    if spec.is_array:
        return [grad]
    try:
        pairs = pytree.pair(grad, spec)
    except ValueError as error:
        got, hint = jax.tree.structure(grad), ""
        mine, own = spec.treedef.node_data(), got.node_data()
        if mine is not None and own is not None and mine[0] is own[0]:
            hint = (
                f" Both are a {mine[0].__name__}, which differ in what they hold "
                "beside their arrays: make the gradient from the argument, with "
                "jax.tree.map or "
                "jax.tree.unflatten(jax.tree.structure(argument), leaves)."
            )
        raise errors.RuleValueError(
            f"`{where.name}.backward` returned a gradient of another structure than "
            f"its argument at {where.label}: expected {spec.treedef} (or None in place "
            f"of any part), got {got}.{hint}"
        ) from error
    # An argument without leaves (None, an empty list) has no pairs.
    stray = [x for x, own in pairs if own is not ARRAY and x is not None]
    if stray or (not spec.leaves and jax.tree.leaves(grad)):
        raise errors.RuleValueError(
            f"function {where.name}Backward returned a gradient different than None at "
            f"position {where.position + 1}, but the corresponding forward input was "
            f"not a Variable. `{where.name}.backward`: expected None for the static "
            f"argument at {where.label}, got {short(grad)}. Return None in its place."
        )
    return [x for x, own in pairs if own is ARRAY]


def _gradient(grad: Any, aval: Any, arrived: Sequence[Any], where: Where) -> Any:
    """Convert one array of a gradient to a cotangent of type `aval`.

    As in torch, sum a broadcast shape, and cast dtypes (but not complex to real). Also
    sum over the mesh axes that only the gradient varies over.
    """
    if grad is None or not pytree.is_inexact(aval):
        return None
    aval = tangent_type(aval)
    if not pytree.is_array(grad):
        raise errors.RuleTypeError(
            f"expected Variable or None (got {type_name(grad)}). "
            f"`{where.name}.backward` returned something else than an array at "
            f"{where.label}: expected {short(aval)} or None, got "
            f"{errors.shown(grad)}."
        )
    if _is_cotangent(grad, aval):
        return grad
    ct = pytree.as_jax(grad)
    summed = pytree.sum_to_shape(ct, aval.shape)
    if summed is None:
        raise errors.RuleValueError(
            f"Function {where.name}Backward returned an invalid gradient at index "
            f"{where.position} - got {list(ct.shape)} but expected shape compatible "
            f"with {list(aval.shape)}. `{where.name}.backward`, gradient at "
            f"{where.label}: expected {short(aval)} (or a shape to which it "
            f"broadcasts, which is summed), got {short(ct)}."
        )
    if loses_imaginary(ct, aval):
        raise errors.RuleTypeError(
            f"`{where.name}.backward` returned a complex gradient for a real argument "
            f"at {where.label}: expected {short(aval)}, got {short(ct)}. Return its "
            "real part."
        )
    summed = _over_devices(summed, aval, arrived, where)
    return conform(summed, aval, f"`{where.name}.backward` returned a gradient", where)


def _over_devices(grad: Any, aval: Any, arrived: Sequence[Any], where: Where) -> Any:
    """Sum a gradient over the mesh axes that its argument does not vary over.

    All devices along such an axis use the same argument, so the derivative is the sum
    of their gradients. JAX's operations sum when transposed; custom_vjp raises.
    """
    extra = compat.varying_axes(grad) - compat.varying_axes(aval)
    if not extra:
        return grad
    # If a cotangent does not vary along the axis, every device would add the whole of
    # its contribution.
    shared = [x for x in arrived if not extra <= compat.varying_axes(x)]
    if shared:
        axes = ", ".join(sorted(map(repr, extra - compat.varying_axes(shared[0]))))
        raise errors.RuleValueError(
            f"`{where.name}.backward` returned a gradient for {where.label} that "
            f"varies along the mesh axis {axes} of shard_map: expected {short(aval)}, "
            f"which devices along it share, got {short(grad)}. A gradient that "
            f"arrived, {short(shared[0])}, is shared too, so a sum over the devices "
            "might count a part once for each of them. In backward, sum the part that "
            f"differs between devices: jax.lax.psum(..., {axes})."
        )
    return jax.lax.psum(grad, tuple(extra))


# ---- shared


def conform(x: Any, aval: Any, what: str, where: Where) -> Any:
    """Convert an array of the right shape to type `aval`."""
    if compat.is_sharded_otherwise(x, aval):
        raise errors.RuleTypeError(
            f"{what} of another sharding for {where.label}: expected {short(aval)}, "
            f"got {short(x)}. Give it that sharding: jax.sharding.reshard."
        )
    return compat.match_varying(cast(x, aval, what, where), aval)


def cast(x: Any, aval: Any, what: str, where: Where) -> Any:
    """Cast `x` to the dtype of a type, which custom_vjp doesn't check."""
    if x.dtype == aval.dtype:
        return x
    if not (isinstance(x.dtype, np.dtype) and isinstance(aval.dtype, np.dtype)):
        raise errors.RuleTypeError(
            f"{what} of another dtype for {where.label}: expected {short(aval)}, got "
            f"{short(x)}. Only ordinary dtypes are cast. Convert it with "
            "jax.lax.convert_element_type."
        )
    return x.astype(aval.dtype)


def loses_imaginary(x: Any, aval: Any) -> bool:
    """Return whether a cast of `x` to a type's dtype would drop an imaginary part."""
    return jnp.iscomplexobj(x) and not jnp.issubdtype(aval.dtype, jnp.complexfloating)


def tangent_type(aval: Any) -> Any:
    """Return the type of tangents; only extended dtypes may have another type."""
    return aval if isinstance(aval.dtype, np.dtype) else compat.tangent_aval(aval)
