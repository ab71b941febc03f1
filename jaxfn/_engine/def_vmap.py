"""A function with a batch rule in the terms of `jax.custom_batching.custom_vmap`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import tree_util

from jaxfn._base import Outputs, compat, pytree
from jaxfn._engine.batched import differentiable
from jaxfn._engine.batching import custom_vmap


def vmapped(
    fun: Callable[..., Any], rule: Callable[..., Any], *, has_derivative: bool
) -> Callable[..., Any]:
    """Make a `jax.custom_batching.custom_vmap`, which runs eagerly where JAX's traces.

    Where the function `has_derivative` rules, these are the only derivative that it can
    have, and the call is one of JAX's. Else it gets one in every mode.

    JAX traces `fun` at the call. So does this, once: the derivative is that of what
    ran, without its effects, which the value has had.
    """
    native = jax.custom_batching.custom_vmap(fun)
    native.def_vmap(_also_unbatched(rule))
    name = getattr(fun, "__name__", type(fun).__name__)

    @functools.wraps(fun)
    def call(*args: Any) -> Any:
        leaves, tree = tree_util.tree_flatten(args)
        if not any(compat.is_tracer(x) for x in leaves):
            return fun(*tree.unflatten(map(compat.as_array, leaves)))
        if compat.is_eager_forward() and not compat.mixes_tangents(leaves):
            # JAX can, and the rule sees what JAX says is batched.
            try:
                return native(*args)
            except _NeedsBatchError:
                pass
            except AssertionError as error:
                # JAX's own words do not say that a value is closed over; ours will.
                if not compat.is_batched_constant(error):
                    raise

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

        make = custom_vmap if has_derivative else differentiable
        outs = make(flat, batch, name=name)(*leaves)
        return outs.static.whole.join(outs.arrays)

    return call


def _check(rule: Callable[..., Any], expected: Any, out: Any, batched: Any) -> None:
    """Check what a rule returned, as JAX does, in its words."""
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


class _NeedsBatchError(Exception):
    """A batch rule was called with nothing batched, and can't do without."""


def _also_unbatched(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule; a call with nothing batched that goes wrong raises our error.

    JAX's derivative of a custom_vmap makes such calls, where values are batched and
    tangents are not, or the other way round. A rule may not expect it: it may say that
    its result is batched all the same, and JAX would believe that.
    """

    @functools.wraps(rule)
    def careful(size: int, batched: Any, *args: Any) -> Any:
        if any(tree_util.tree_leaves(batched)):
            return rule(size, batched, *args)
        try:
            found = rule(size, batched, *args)
            _, out_batched = found
        except Exception as error:
            raise _NeedsBatchError from error
        if any(tree_util.tree_leaves(out_batched)):
            raise _NeedsBatchError
        return found

    return careful
