"""A batch rule in the form of `jax.custom_batching.custom_vmap`, on pytrees."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax import tree_util

from jaxfn._base import Outputs, compat, pytree
from jaxfn._engine import differentiable, with_batch_rule


def vmapped(
    fun: Callable[..., Any], rule: Callable[..., Any], *, has_derivative: bool
) -> Callable[..., Any]:
    """Make a `jax.custom_batching.custom_vmap` that runs eagerly without a tracer.

    Args:
        fun: The function.
        rule: Batch rule `rule(axis_size, in_batched, *args) -> out, out_batched`.
        has_derivative: Whether there are derivative rules. If not, JAX differentiates
            `fun`.
    """
    name = getattr(fun, "__name__", type(fun).__name__)

    @functools.wraps(fun)
    def call(*args: Any) -> Any:
        leaves, tree = tree_util.tree_flatten(args)
        if not any(compat.is_tracer(x) for x in leaves):
            return fun(*tree.unflatten(map(compat.as_array, leaves)))
        structure: list[Any] = []

        def flat(*arrays: Any) -> Outputs:
            out = fun(*tree.unflatten(arrays))
            structure[:] = [tree_util.tree_structure(out)]
            return pytree.outputs(out)

        def batch(
            size: int, batched: Sequence[bool], arrays: list[Any]
        ) -> tuple[Outputs, Outputs]:
            args, flags = tree.unflatten(arrays), tree.unflatten(batched)
            out, out_batched = rule(size, list(flags), *args)
            _check(rule, structure[0], out, out_batched)
            found = pytree.outputs(out)
            return found, Outputs(tree_util.tree_leaves(out_batched), found.static)

        make = with_batch_rule if has_derivative else differentiable
        outs = make(flat, batch, name=name)(*leaves)
        return outs.static.whole.join(outs.arrays)

    return call


def _check(rule: Callable[..., Any], expected: Any, out: Any, batched: Any) -> None:
    """Check the result of a rule, as JAX does, in JAX's words."""
    name = getattr(rule, "__name__", "<unnamed rule>")
    got, of_flags = map(tree_util.tree_structure, (out, batched))
    if got != of_flags:
        raise ValueError(
            "structure of output value and output batching specification returned by "
            f"custom vmap rule ({name}) do not match: expected for each output whether "
            f"it is batched, in the structure {got}, got {of_flags}."
        )
    if got != expected:
        raise ValueError(
            f"structure of output returned by custom vmap rule ({name}) does not match "
            "that of original custom-vmapped function: expected the structure "
            f"{expected}, got {got}."
        )
