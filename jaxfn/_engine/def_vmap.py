"""A function with a batch rule in the terms of `jax.custom_batching.custom_vmap`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import tree_util

from jaxfn._base import Outputs, compat, pytree
from jaxfn._engine.batching import Batch, differentiable, with_batch_rule


def vmapped(fun: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `jax.custom_batching.custom_vmap` that has a derivative in every mode.

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
            return fun(*args)
        if compat.is_eager_forward() and not compat.mixes_tangents(leaves):
            # JAX can, and the rule sees what JAX says is batched.
            with contextlib.suppress(_NeedsBatchError):
                return native(*args)
        specs: list[Any] = []

        def flat(*arrays: Any) -> list[Any]:
            found = pytree.outputs(fun(*tree.unflatten(arrays)))
            specs[:] = [found.static]
            return found.arrays

        held, ran = compat.Staged.trace(flat, (), *leaves)
        still = ran.without_effects()

        def batch(
            size: int, batched: Sequence[bool], arrays: list[Any]
        ) -> tuple[Outputs, Outputs]:
            args, flags = tree.unflatten(arrays), tree.unflatten(batched)
            out, out_batched = rule(size, list(flags), *args)
            found = pytree.outputs(out)
            return found, Outputs(tree_util.tree_leaves(out_batched), found.static)

        batches = _Batches(batch)
        run = with_batch_rule(
            lambda *xs: Outputs(ran(*held, *xs), specs[0]), batches.run
        )
        outs = differentiable(
            run,
            lambda *xs: Outputs(still(*held, *xs), specs[0]),
            batches.again,
            name=name,
        )(*leaves)
        return outs.static.whole.join(outs.arrays)

    return call


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


class _Batches:
    """The batch rule of one call, whose derivative is that of what ran for the value.

    A derivative may be taken later, outside of the contexts that the rule ran in, where
    the rule may compute something else.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._ran: dict[Any, Callable[[list[Any]], tuple[Outputs, Outputs]]] = {}

    def run(
        self, size: int, batched: Sequence[bool], arrays: list[Any]
    ) -> tuple[Outputs, Outputs]:
        """Run the rule, for the value."""
        # A rule that is given values may need them (NumPy).
        if not all(map(compat.is_abstract, arrays)):
            return self._batch(size, batched, arrays)
        found: list[tuple[Outputs, Outputs]] = []

        def flat(*arrays: Any) -> list[Any]:
            outs, flags = self._batch(size, batched, list(arrays))
            found[:] = [(Outputs([], outs.static), flags)]
            return outs.arrays

        held, ran = compat.Staged.trace(flat, (), *arrays)
        ((empty, flags),), still = found, ran.without_effects()
        # Not with a tracer that the rule closes over: it would outlive its trace here.
        if not any(map(compat.is_tracer, held)):
            self._ran[_key(size, batched, arrays)] = lambda arrays: (
                Outputs(still(*held, *arrays), empty.static),
                flags,
            )
        return Outputs(ran(*held, *arrays), empty.static), flags

    def again(
        self, size: int, batched: Sequence[bool], arrays: list[Any]
    ) -> tuple[Outputs, Outputs]:
        """Run, for the derivative, what ran for the value; the rule if that is gone."""
        ran = self._ran.get(_key(size, batched, arrays))
        return self._batch(size, batched, arrays) if ran is None else ran(arrays)


def _key(size: int, batched: Sequence[bool], arrays: list[Any]) -> Any:
    return (size, *batched, *map(jax.typeof, arrays))
