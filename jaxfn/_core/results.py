"""Check and convert what rules in torch's terms return.

As in torch, a gradient is summed to the shape of its argument, and dtypes are cast (but
never complex to real). Tangents and batches are cast, and must have the right shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._core import jax_internals as internals
from jaxfn._core import messages
from jaxfn._core.messages import short, type_name
from jaxfn._core.values import (
    ARRAY,
    Arrays,
    Layout,
    Outputs,
    Spec,
    as_jax,
    grouped,
    is_array,
    is_extended,
    is_inexact,
    pair,
    split,
)


class Where(NamedTuple):
    """A place in the result of a rule, for messages.

    Attributes:
        rule_name: Name of the Function and of the rule.
        label: Words for the argument or output.
        position: Its index.
    """

    rule_name: str
    label: str
    position: int


# ---- backward


def gradients(
    result: Any,
    specs: Sequence[Spec],
    layout: Layout,
    arrived: Arrays,
    *,
    name: str,
    labels: Sequence[str],
) -> list[Any]:
    """Return a cotangent (or None) for each array argument.

    Args:
        result: A tuple with a gradient for each argument, or the only gradient.
        specs: Spec of each argument.
        layout: What forward left.
        arrived: The nonzero cotangents that backward got.
        name: Name of the Function.
        labels: Words for each argument.
    """
    n = len(specs)
    # Only a tuple means several gradients; a list is the gradient of a list argument.
    one = not isinstance(result, tuple) or (n == 1 and _is_whole(result, specs[0]))
    found = [result] if one else list(result)
    # Like torch, accept extra None: some rules return one for each default value.
    if len(found) < n or [x for x in found[n:] if x is not None]:
        raise messages.RuleValueError(
            f"function {name}Backward returned an incorrect number of gradients "
            f"(expected {n}, got {len(found)}). `{name}.backward` must return a tuple "
            "with one gradient for each argument that forward was called with: "
            f"expected {n}, got {len(found)}. Return None for an argument that has no "
            "gradient."
        )
    grads: list[Any] = []
    groups = zip(
        specs,
        grouped(specs, layout.in_types),
        grouped(specs, layout.perturbed),
        strict=True,
    )
    for position, (spec, types, perturbed) in enumerate(groups):
        where = Where(f"{name}.backward", labels[position], position)
        leaves = _array_leaves(found[position], spec, where)
        grads += [
            _gradient(leaf, aval, arrived, where) if need else None
            for leaf, aval, need in zip(leaves, types, perturbed, strict=True)
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


def _array_leaves(grad: Any, spec: Spec, where: Where) -> list[Any]:
    """Return the leaves of a gradient that belong to the arrays of its argument."""
    if grad is None:
        return [None] * spec.n_arrays
    try:
        pairs = [(grad, ARRAY)] if spec.is_array else pair(grad, spec)
    except ValueError:
        got = jax.tree.structure(grad)
        raise messages.RuleValueError(
            f"`{where.rule_name}` returned a gradient of another structure than its "
            f"argument at {where.label}: expected {spec.treedef} (or None in place of "
            f"any part), got {got}.{_hint(spec, got)}"
        ) from None
    # An argument without leaves (None, an empty list) has no pairs.
    stray = [x for x, own in pairs if own is not ARRAY and x is not None]
    if stray or (not spec.leaves and jax.tree.leaves(grad)):
        name = where.rule_name.removesuffix(".backward")
        raise messages.RuleValueError(
            f"function {name}Backward returned a gradient different than None at "
            f"position {where.position + 1}, but the corresponding forward input was "
            f"not a Variable. `{where.rule_name}`: expected None for the static "
            f"argument at {where.label}, got {short(grad)}. Return None in its place."
        )
    return [x for x, own in pairs if own is ARRAY]


def _hint(spec: Spec, got: Any) -> str:
    """Explain how two containers of one type differ."""
    mine, other = spec.treedef.node_data(), got.node_data()
    if mine is None or other is None or mine[0] is not other[0]:
        return ""
    if mine[0] is dict:
        lacks, more = set(mine[1]) - set(other[1]), set(other[1]) - set(mine[1])
        parts = ("It lacks the keys", lacks), ("The argument does not have", more)
        return "".join(f" {text} {sorted(keys)}." for text, keys in parts if keys)
    return (
        f" Both are a {mine[0].__name__}, which differ in what they hold beside their "
        "arrays: make the gradient from the argument, with jax.tree.map or "
        "jax.tree.unflatten(jax.tree.structure(argument), leaves)."
    )


def _gradient(grad: Any, aval: Any, arrived: Arrays, where: Where) -> Any:
    """Convert one array of a gradient to a cotangent of an argument of this type."""
    if grad is None or not is_inexact(aval):
        return None
    aval = tangent_type(aval)
    if not is_array(grad):
        raise messages.RuleTypeError(
            f"expected Variable or None (got {type_name(grad)}). `{where.rule_name}` "
            f"returned something else than an array at {where.label}: expected "
            f"{short(aval)} or None, got {messages.shown(grad)}."
        )
    if isinstance(grad, jax.Array) and internals.has_type(grad, aval):
        return grad
    ct = as_jax(grad)
    summed = sum_to_shape(ct, aval.shape)
    if summed is None:
        name = where.rule_name.removesuffix(".backward")
        raise messages.RuleValueError(
            f"Function {name}Backward returned an invalid gradient at index "
            f"{where.position} - got {list(ct.shape)} but expected shape compatible "
            f"with {list(aval.shape)}. `{where.rule_name}`, gradient at "
            f"{where.label}: expected {short(aval)} (or a shape to which it "
            f"broadcasts, which is summed), got {short(ct)}."
        )
    if loses_imaginary(ct, aval):
        raise messages.RuleTypeError(
            f"`{where.rule_name}` returned a complex gradient for a real argument "
            f"at {where.label}: expected {short(aval)}, got {short(ct)}. Return its "
            "real part."
        )
    return conform(_over_devices(summed, aval, arrived, where), aval, "gradient", where)


def _over_devices(grad: Any, aval: Any, arrived: Arrays, where: Where) -> Any:
    """Sum a gradient over the mesh axes that its argument does not vary over.

    All devices along such an axis use the same argument, so the derivative is the sum
    of their gradients. JAX's operations sum when transposed; custom_vjp raises.
    """
    extra = internals.varying_axes(grad) - internals.varying_axes(aval)
    if not extra:
        return grad
    # If a cotangent does not vary along the axis, every device would add the whole of
    # its contribution.
    varying = internals.varying_axes
    shared = [x for x in arrived if not extra <= varying(x)]
    if shared:
        axes = ", ".join(sorted(map(repr, extra - varying(shared[0]))))
        raise messages.RuleValueError(
            f"`{where.rule_name}` returned a gradient for {where.label} that "
            f"varies along the mesh axis {axes} of shard_map: expected {short(aval)}, "
            f"which devices along it share, got {short(grad)}. A gradient that "
            f"arrived, {short(shared[0])}, is shared too, so a sum over the devices "
            "might count a part once for each of them. In backward, sum the part that "
            f"differs between devices: jax.lax.psum(..., {axes})."
        )
    return jax.lax.psum(grad, tuple(extra))


def sum_to_shape(x: Any, shape: tuple[int, ...]) -> Any | None:
    """Sum `x` to `shape`, the transpose of broadcasting; None if impossible."""
    if x.shape == shape:
        return x
    lead = x.ndim - len(shape)
    if lead < 0 or is_extended(x):  # extended dtypes have no sum
        return None
    pairs = list(zip(x.shape[lead:], shape, strict=True))
    if any(have != want and want != 1 for have, want in pairs):
        return None
    axes = [lead + i for i, (have, want) in enumerate(pairs) if have != want]
    return jnp.sum(x, axis=(*range(lead), *axes)).reshape(shape)


# ---- all results


def conform(x: Any, aval: Any, what: str, where: Where) -> Any:
    """Convert an array of the right shape to type `aval`."""
    if internals.is_sharded_otherwise(x, aval):
        raise messages.RuleTypeError(
            f"`{where.rule_name}` returned a {what} of another sharding for "
            f"{where.label}: expected {short(aval)}, got {short(x)}. Give it that "
            "sharding: jax.sharding.reshard."
        )
    return internals.match_varying(cast(x, aval, what, where), aval)


def cast(x: Any, aval: Any, what: str, where: Where) -> Any:
    """Cast `x` to the dtype of a type, which custom_vjp doesn't check."""
    if x.dtype == aval.dtype:
        return x
    if not (isinstance(x.dtype, np.dtype) and isinstance(aval.dtype, np.dtype)):
        raise messages.RuleTypeError(
            f"`{where.rule_name}` returned a {what} of another dtype for "
            f"{where.label}: expected {short(aval)}, got {short(x)}. Only ordinary "
            "dtypes are cast. Convert it with jax.lax.convert_element_type."
        )
    return x.astype(aval.dtype)


def loses_imaginary(x: Any, aval: Any) -> bool:
    """Return whether a cast of `x` to a type's dtype would drop an imaginary part."""
    return jnp.iscomplexobj(x) and not jnp.issubdtype(aval.dtype, jnp.complexfloating)


def tangent_type(aval: Any) -> Any:
    """Return the type of tangents; only extended dtypes may have another type."""
    return aval if isinstance(aval.dtype, np.dtype) else internals.tangent_type(aval)


# ---- jvp


def tangents(result: Any, layout: Layout, *, name: str) -> list[Any]:
    """Return a tangent (or None) for each output array.

    Args:
        result: A tuple with a tangent for each output, or the only tangent.
        layout: What forward left.
        name: Name of the Function.
    """
    if result is None and any(layout.differentiable):
        raise messages.RuleValueError(
            f"`{name}.jvp` returned None: expected a tangent for each output. If a "
            "`return` is missing, add it. If the tangent is zero, return zeros: "
            "jnp.zeros_like(output)."
        )
    found = list(result) if isinstance(result, tuple) else [result]
    n = len(layout.outputs)
    # Unlike for gradients, torch refuses extra None.
    if len(found) != n:
        raise messages.RuleValueError(
            "Function's jvp returned an invalid number of forward gradients (expected "
            f"{n} but got {len(found)}). `{name}.jvp` must return one tangent for each "
            f"output of forward: expected {n}, got {len(found)}. Return None for an "
            "output that has no derivative."
        )
    checked: list[Any] = []
    rest = iter(zip(layout.out_types, layout.differentiable, strict=True))
    for position, (spec, t) in enumerate(zip(layout.outputs, found, strict=True)):
        where = Where(f"{name}.jvp", f"output {position}", position)
        try:
            pairs = [(t, ARRAY)] if spec.is_array else pair(t, spec)
        except ValueError:
            raise messages.RuleValueError(
                f"`{name}.jvp` returned a tangent of another structure than "
                f"{where.label}: expected {spec.treedef} (or None in place of any "
                f"part), got {jax.tree.structure(t)}."
            ) from None
        checked += [_tangent(x, *next(rest), where) for x, own in pairs if own is ARRAY]
    return checked


def _tangent(t: Any, aval: Any, differentiable: bool, where: Where) -> Any:
    """Check one array of a tangent. Unlike a gradient, torch never sums it to fit."""
    if t is None:
        return None
    if not differentiable:
        raise messages.RuleValueError(
            f"Function's jvp returned a gradient at position {where.position}, but  "
            "the corresponding forward output is not a differentiable Tensor."
            "You should return None at that position instead. "
            f"(`{where.rule_name}`, {where.label}: expected None for {short(aval)} "
            f"that is integer or marked non-differentiable, got {short(t)}.)"
        )
    if not is_array(t):
        raise messages.RuleTypeError(
            f"expected Variable or None (got {type_name(t)}) for grad output "
            f"{where.position}. `{where.rule_name}` returned something else than an "
            f"array for {where.label}: expected {short(aval)} or None, got "
            f"{messages.shown(t)}."
        )
    t, aval = as_jax(t), tangent_type(aval)
    if t.shape != aval.shape:
        raise messages.RuleValueError(
            "Trying to set a forward gradient that has a different size than that of "
            "the original Tensor, this is not supported. Tensor is of size "
            f"{list(aval.shape)} while the given forward gradient is of size "
            f"{list(t.shape)}. `{where.rule_name}`, tangent of {where.label}: expected "
            f"{short(aval)}, got {short(t)}."
        )
    if loses_imaginary(t, aval):
        raise messages.RuleTypeError(
            f"`{where.rule_name}` returned a complex tangent for a real {where.label}: "
            f"expected {short(aval)}, got {short(t)}. Return its real part."
        )
    # If an output is equal on all devices, so is its tangent. Unlike a gradient, it
    # can't be summed: the rule is wrong.
    extra = internals.varying_axes(t) - internals.varying_axes(aval)
    if extra:
        raise messages.RuleTypeError(
            f"`{where.rule_name}` returned a tangent that differs between devices for "
            f"{where.label}, which does not: expected {short(aval)} that is the same "
            f"along the mesh axes {sorted(map(str, extra))} of shard_map, got "
            f"{short(t)} that varies along them. Call the collectives of forward "
            "(for example jax.lax.psum) in jvp too."
        )
    return conform(t, aval, "tangent", where)


# ---- vmap


def batch_outputs(
    result: Any, size: int, layout: Layout, types: Sequence[Any], *, name: str
) -> tuple[Outputs, Outputs]:
    """Check the result of a vmap staticmethod, and convert it for custom_vmap.

    Args:
        result: A pair of the output and its out_dims.
        size: Size of the batch.
        layout: Structure of the output of forward.
        types: Type of each output array of forward, without batch axis.
        name: Name of the Function.

    Returns:
        The outputs with the batch axis first, and for each whether it has one.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        is_tuple = isinstance(result, tuple)
        got = f"{len(result)} returns" if is_tuple else f"a {type(result)}"
        raise messages.RuleValueError(
            "Expected the vmap staticmethod to have two returns, an output and "
            f"out_dims with pytree structure compatible with the output. Got {got} "
            f"instead. `{name}.vmap` must return a pair (output, out_dims)."
        )
    out, out_dims = result
    arrays, spec = split(out)
    try:
        pairs = pair(out_dims, spec, copies=True)
    except ValueError:
        raise messages.RuleValueError(
            "The autograd.Function's vmap staticmethod returned an incompatible "
            f"(output, out_dims) tuple. Expected out_dims={out_dims} to be compatible "
            f"with the structure of `output`. out_dims has structure "
            f"{jax.tree.structure(out_dims)} but output has structure "
            f"{spec.treedef}. `{name}.vmap`: give one dim (or None) for each "
            "output, or one for all."
        ) from None
    wanted, got = _sketch(layout.out), _sketch(spec)
    if spec.treedef != layout.out.treedef or wanted != got:
        raise messages.RuleValueError(
            f"`{name}.vmap` returned an output of another structure than forward: "
            f"expected {wanted}, got {got}."
        )
    dims = [dim for dim, own in pairs if own is ARRAY]
    moved = []
    for i, (x, dim, aval) in enumerate(zip(arrays, dims, types, strict=True)):
        where = Where(f"{name}.vmap", f"output array {i}", i)
        moved.append(_batch(jnp.asarray(x), dim, size, aval, where))
    # JAX compares structures, and traced the caller with the static values of forward.
    return Outputs(moved, layout), Outputs([d is not None for d in dims], layout)


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
        raise messages.RuleValueError(
            f"`{where.rule_name}` returned other values than forward for "
            f"{where.label}: expected {short(aval)} for each example, got "
            f"{short(x)} with out_dims {dim} moved to the front."
        )
    return cast(x, aval, "batch", where)


def _to_front(x: Any, dim: Any, size: int, where: Where) -> Any:
    """Check one of out_dims, and move this axis to the front."""
    if dim is None:
        return x
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise messages.RuleTypeError(
            f"`{where.rule_name}` returned a bad out_dims for {where.label}: expected "
            f"an int or None, got {dim!r} of type {type_name(dim)}."
        )
    if not -x.ndim <= dim < x.ndim:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-x.ndim}, "
            f"{x.ndim - 1}], but got {dim}). `{where.rule_name}`: out_dims of "
            f"{where.label}, {short(x)}."
        )
    if x.shape[dim] != size:
        raise messages.RuleValueError(
            f"`{where.rule_name}` returned a batch of the wrong size for "
            f"{where.label}: expected {size} at dim {dim}, got {x.shape[dim]} in "
            f"{short(x)}."
        )
    return jnp.moveaxis(x, dim, 0)
