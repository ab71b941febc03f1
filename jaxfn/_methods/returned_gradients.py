"""What backward returned, checked and brought into normal form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._base import ARRAY, Arguments, Spec, compat, errors, pytree, short, type_name
from jaxfn._methods.returns import Where, cast, check_sharding, is_complex, tangent_type


def gradients(
    result: Any,
    arguments: Arguments,
    avals: Sequence[Any],
    perturbed: Sequence[bool],
    arrived: Sequence[Any],
    *,
    name: str,
) -> list[Any]:
    """Make of what backward returned one cotangent (or None) for each array argument.

    Args:
        result: a tuple with a gradient for each argument, or the only gradient.
        arguments: the arguments of the call.
        avals: the type of each array argument.
        perturbed: for each array argument, whether it is being differentiated; the
            gradient of one that is not is ignored.
        arrived: the cotangents that backward was called with, without zeros.
        name: the name of the Function.
    """
    n = len(arguments.specs)
    one = n == 1 and _is_whole(result, arguments.specs[0])
    # A list is one gradient, for one argument that is a list; only a tuple is several.
    found = list(result) if isinstance(result, tuple) and not one else [result]
    # torch accepts further gradients at the end if they are None: a port that returns
    # one None for every parameter, defaults included, keeps working.
    if len(found) < n or any(x is not None for x in found[n:]):
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
        # The path that must be fast: one array, and a gradient that is as it should be.
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


def _is_whole(result: Any, spec: Spec) -> bool:
    """Is a namedtuple that backward returned the gradient of one of its own type?

    A tuple is a gradient for each argument, also a namedtuple, as in torch. But where
    the only argument is a namedtuple, one of that type is its gradient.
    """
    kind = type(result)
    if kind is tuple or not isinstance(result, tuple):
        return False
    node = spec.treedef.node_data()
    return node is not None and node[0] is kind


def _same_type(grad: Any, spec: Spec) -> str:
    """Say what to do where a gradient has the right type, with other static parts."""
    mine, own = spec.treedef.node_data(), jax.tree.structure(grad).node_data()
    if mine is None or own is None or mine[0] is not own[0]:
        return ""
    return (
        f" Both are a {mine[0].__name__}, which differ in what they hold beside their "
        "arrays: make the gradient from the argument, with jax.tree.map or "
        "jax.tree.unflatten(jax.tree.structure(argument), leaves)."
    )


def _is_cotangent(grad: Any, aval: Any) -> bool:
    """Is `grad` just what is expected for an argument of type `aval`?"""
    return (
        isinstance(grad, jax.Array)
        and compat.has_type(grad, tangent_type(aval))
        and pytree.is_inexact(aval)
    )


def _array_leaves(grad: Any, spec: Spec, where: Where) -> list[Any]:
    """Find the leaves of one gradient that belong to the arrays of its argument."""
    if grad is None:
        return [None] * spec.n_arrays
    if spec.is_array:
        return [grad]
    try:
        pairs = pytree.pair(grad, spec)
    except ValueError as error:
        raise errors.RuleValueError(
            f"`{where.name}.backward` returned a gradient of another structure than "
            f"its argument at {where.label}: expected {spec.treedef} (or None in place "
            f"of any part), got {jax.tree.structure(grad)}.{_same_type(grad, spec)}"
        ) from error
    # An argument without any leaf (None, an empty list) pairs with nothing: what was
    # returned for it has to be looked for on its own.
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
    """Make of one array of a gradient a cotangent of an argument of type `aval`.

    As in torch, a shape that reduces to the argument's is summed and float and integer
    dtypes are cast; a complex value for a real argument is refused. Mesh axes over
    which only the gradient varies are summed over.
    """
    # An integer takes no gradient, so what was returned for one is ignored.
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
    if jnp.iscomplexobj(summed) and not is_complex(aval):
        raise errors.RuleTypeError(
            f"`{where.name}.backward` returned a complex gradient for a real argument "
            f"at {where.label}: expected {short(aval)}, got {short(ct)}. Return its "
            "real part."
        )
    what = f"`{where.name}.backward` returned a gradient"
    check_sharding(summed, aval, what, where)
    summed = _over_devices(summed, aval, arrived, where)
    return compat.match_varying(cast(summed, aval, what, where), aval)


def _over_devices(grad: Any, aval: Any, arrived: Sequence[Any], where: Where) -> Any:
    """Sum a gradient over the mesh axes that its argument does not vary over.

    Inside a shard_map every device along such an axis uses the one value of the
    argument, so the derivative is the sum of what they all find. JAX's own operations
    get it from their transpose, psum; custom_vjp raises.
    """
    extra = compat.varying_axes(grad) - compat.varying_axes(aval)
    if not extra:
        return grad
    # All devices share a cotangent that does not vary. If the gradient has a part that
    # is made of it, each device would add the whole of that part.
    shared = [x for x in arrived if not extra <= compat.varying_axes(x)]
    if shared:
        axes = ", ".join(sorted(map(repr, extra - compat.varying_axes(shared[0]))))
        raise errors.RuleValueError(
            f"`{where.name}.backward` returned a gradient for {where.label} that "
            f"varies along the mesh axis {axes} of shard_map: expected {short(aval)}, "
            f"which devices along it share, got {short(grad)}. A gradient that "
            f"arrived, {short(shared[0])}, is shared too, so a sum over the devices "
            "might count a part once for each of them. In backward, sum what differs "
            f"between the devices: jax.lax.psum(..., {axes})."
        )
    return jax.lax.psum(grad, tuple(extra))
