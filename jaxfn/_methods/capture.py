"""From a context to residuals, and back.

After forward, `capture` flattens the context: a list of its JAX arrays, each once, and
a `Layout` that holds no JAX array and no tracer. `rebuild` makes a fresh context.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import numpy as np
from jax import tree_util

from jaxfn._base import Arguments, OutSpec, compat, errors, search, type_name
from jaxfn._engine import Perturbed, Residuals, Rules, Run
from jaxfn._methods.node import STATE, BackwardCFunction
from jaxfn._methods.packed import Packed, Put


@dataclasses.dataclass(slots=True)
class Layout:
    """The static part of a context, with templates in place of arrays.

    Attributes:
        for_backward: A template of each value saved for backward.
        for_forward: A template of each value saved for jvp.
        attributes: Templates of the user's attributes, by name.
        shared: Number of leaves in `for_forward` or `attributes`; they come first.
        reads: Index of each leaf that `for_backward` reads, in order.
        materialize: Whether the rules get zeros in place of None.
        materialize_non_diff: Whether outputs without derivative get zeros too.
    """

    for_backward: tuple[Put, ...]
    for_forward: tuple[Put, ...]
    attributes: dict[str, Put]
    shared: int
    reads: tuple[int, ...]
    materialize: bool
    materialize_non_diff: bool


@dataclasses.dataclass(slots=True)
class Record:
    """The static part of the residuals of one run.

    Attributes:
        layout: Layout of the context.
        packed: How saved-tensor hooks changed the leaves; None without hooks.
        perturbed: For each array argument, whether it is differentiated.
        in_avals: Types of the array arguments.
        out_avals: Types of the array outputs.
        out: Structure of the outputs.
    """

    layout: Layout
    packed: Packed | None
    perturbed: Perturbed
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    out: OutSpec


def capture(
    ctx: BackwardCFunction, rules: Rules, out: OutSpec, perturbed: Perturbed
) -> tuple[list[Any], Run]:
    """Flatten a context after forward, with saved values for the rules that exist.

    Returns:
        The array leaves, and the run with their layout.
    """
    # Values saved for backward come last. Saved-tensor hooks may replace a leaf only if
    # nothing else needs it.
    leaves = _Leaves(type(ctx).__name__)
    for_forward = () if rules.jvp is None else leaves.take_saved(ctx.saved_for_forward)
    attributes = {
        name: leaves.take(value, name)
        for name, value in ctx.__dict__.items()
        if name not in STATE
    }
    shared, before = len(leaves.arrays), len(leaves.reads)
    for_backward = () if rules.bwd is None else leaves.take_saved(ctx.to_save)
    layout = Layout(
        for_backward,
        for_forward,
        attributes,
        shared,
        tuple(leaves.reads[before:]),
        ctx.materialize_grads,
        ctx._materialize_non_diff_grads,
    )
    return leaves.arrays, Run(
        out,
        perturbed,
        ctx._jaxfn_needs_read,
        layout,
    )


def rebuild(
    cls: type[BackwardCFunction], rule: str, residuals: Residuals, arguments: Arguments
) -> BackwardCFunction:
    """Make a fresh context for `rule` ("backward" or "jvp")."""
    record, leaves = residuals.static, residuals.arrays
    layout, packed = record.layout, record.packed
    if rule == "jvp":
        saved = tuple([put(leaves) for put in layout.for_forward])
    elif packed is None:
        saved = tuple([put(leaves) for put in layout.for_backward])
    else:
        saved = partial(packed.read, layout.for_backward, leaves)
    ctx = cls()
    ctx.__dict__.update(
        {name: put(leaves) for name, put in layout.attributes.items()},
        _jaxfn_needs=arguments.any(record.perturbed),
        _jaxfn_rule=rule,
        _jaxfn_saved=saved,
        materialize_grads=layout.materialize,
    )
    return ctx


class _Leaves:
    """The array leaves of values, for each of which `take` makes a template."""

    def __init__(self, ctx_name: str) -> None:
        self.arrays: list[Any] = []
        self.reads: list[int] = []
        self._index: dict[int, int] = {}
        self._inside: list[int] = []
        self._ctx_name = ctx_name

    def take_saved(self, values: Sequence[Any]) -> tuple[Put, ...]:
        return tuple([self.take(x, "saved_tensors") for x in values])

    def take(self, value: Any, name: str) -> Put:
        """Make the template of the value of attribute `name`."""
        if isinstance(value, _SIMPLE):
            return _Constant(value)
        if isinstance(value, jax.Array):
            # An array saved twice is one leaf. `arrays` keeps it alive, so ids are
            # unique.
            i = self._index.setdefault(id(value), len(self.arrays))
            if i == len(self.arrays):
                self.arrays.append(value)
            self.reads.append(i)
            return itemgetter(i)
        if isinstance(value, np.ndarray):
            if value.dtype == object:
                self._check_opaque(value, name)
            # A later write, here or in a rule, must not change a gradient.
            copied = value.copy()
            return lambda _: copied.copy()
        if id(value) in self._inside:
            raise errors.RuleTypeError(
                f"{self._ctx_name}: ctx.{name} is or holds a {type_name(value)} that "
                "holds itself: expected arrays, and containers without cycles. Save "
                "only the parts that the rules need."
            )
        self._inside.append(id(value))
        put = self._container(value, name)
        self._inside.pop()
        return put

    def _container(self, value: Any, name: str) -> Put:
        if is_record(value):
            return self._record(value, name)
        # JAX would sort the keys, which changes their order and fails for mixed types.
        if type(value) is dict:
            items = {key: self.take(x, name) for key, x in value.items()}
            return lambda leaves: {key: put(leaves) for key, put in items.items()}
        # JAX warns about an iterator as a leaf.
        if isinstance(value, Iterator):
            self._check_opaque(value, name)
            return _Constant(value)
        # Flatten one level. `is` can't tell the root: a list may hold itself, and JAX
        # would recurse for ever.
        at_root = iter([True])
        parts, treedef = tree_util.tree_flatten(
            value, is_leaf=lambda _: not next(at_root, False)
        )
        if tree_util.treedef_is_leaf(treedef):
            self._check_opaque(value, name)
            return _Constant(value)
        puts = [self.take(part, name) for part in parts]
        if type(value) is tuple and _all_constant(puts):
            return _Constant(value)
        return lambda leaves: treedef.unflatten([put(leaves) for put in puts])

    def _record(self, value: Any, name: str) -> Put:
        puts = {key: self.take(x, name) for key, x in fields(value).items()}
        params = getattr(type(value), "__dataclass_params__", None)
        if getattr(params, "frozen", False) and _all_constant(puts.values()):
            return _Constant(value)
        shell = copy.copy(value)  # without the arrays: the layout must not keep them
        for key in puts:
            object.__setattr__(shell, key, None)  # a frozen dataclass refuses setattr

        def put(leaves: Sequence[Any]) -> Any:
            new = copy.copy(shell)
            for key, put in puts.items():
                object.__setattr__(new, key, put(leaves))
            return new

        return put

    def _check_opaque(self, value: Any, name: str) -> None:
        """Refuse an object that hides a tracer."""
        if search.find(value, compat.is_tracer) is not None:
            raise errors.RuleTypeError(
                f"{self._ctx_name}: ctx.{name} holds a traced value inside an object "
                f"of type {type(value).__name__}, so jaxfn can't save it: expected "
                "arrays in save_for_backward, or in an attribute that is an array, a "
                "dict, list, tuple, registered pytree, dataclass or SimpleNamespace. "
                "Save the array itself, or register the type with "
                "jax.tree_util.register_pytree_node."
            )


class _Constant:
    """The template of an immutable value: the value itself, not a copy.

    Other values are copied, because a rule must not change them for a later rule.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, _: Sequence[Any]) -> Any:
        return self.value


def _all_constant(puts: Iterable[Put]) -> bool:
    return all(isinstance(put, _Constant) for put in puts)


_SIMPLE = (int, float, complex, str, bytes, type(None), np.generic, np.dtype, type)


def is_record(value: Any) -> bool:
    """Return whether it is a SimpleNamespace, or a dataclass that is no pytree."""
    if isinstance(value, types.SimpleNamespace):
        return True
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    return tree_util.all_leaves([value])


def fields(value: Any) -> dict[str, Any]:
    """Return the set fields of a record, by name."""
    if isinstance(value, types.SimpleNamespace):
        return vars(value)
    return {
        f.name: getattr(value, f.name)
        for f in dataclasses.fields(value)
        if hasattr(value, f.name)
    }
