"""What a context saves: arrays as residuals, and everything else beside them."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from jaxfn._context import STATE, BackwardCFunction
from jaxfn._core import (
    Arrays,
    Box,
    Spec,
    find,
    gate,
    grouped,
    internals,
    is_array,
    is_inexact,
    is_number,
    messages,
    refusing,
    split,
    type_name,
)
from jaxfn._settings import Hooks


@dataclasses.dataclass(slots=True)
class Saved:
    """The static part of a context after forward.

    Attributes:
        name: Name of the Function.
        shared: Spec of what both rules may read: values saved for jvp, and the user's
            attributes.
        own: Spec of the values saved for backward.
        places: For each array of `shared` and then `own`, its place among the distinct
            ones. Those of `shared` come first.
        materialize: Whether the rules get zeros in place of None.
        materialize_non_diff: Whether outputs without derivative get zeros too.
        packed: If saved-tensor hooks have packed them, spec of what became of each
            array of `own`; they come after the arrays of `shared`.
        unpack: The unpack hook.
    """

    name: str
    shared: Spec
    own: Spec
    places: list[int]
    materialize: bool
    materialize_non_diff: bool
    packed: list[Spec] | None = None
    unpack: Callable[[Any], Any] | None = None

    @classmethod
    def of(
        cls, ctx: BackwardCFunction, name: str, *, backward: bool, jvp: bool
    ) -> tuple[list[Any], Saved]:
        """Flatten a context after forward, with saved values for the rules that exist.

        Returns:
            Its arrays, each once, and the rest.
        """
        of_jvp = (*ctx.saved_for_forward,) if jvp else ()
        of_backward = (*ctx.to_save,) if backward else ()
        attributes = {k: x for k, x in ctx.__dict__.items() if k not in STATE}
        where = f"{type(ctx).__name__}: ctx"
        trees = {k: _as_tree(x, f"{where}.{k}") for k, x in attributes.items()}
        shared_tree = (
            _as_tree(of_jvp, f"{where}.saved_tensors"),
            _node(trees, dict),
        )
        arrays, shared = split(shared_tree, _is_jax_array)
        more, own = split(
            _as_tree(of_backward, f"{where}.saved_tensors"), _is_jax_array
        )
        distinct = {id(x): x for x in (*arrays, *more)}
        order = {key: i for i, key in enumerate(distinct)}
        places = [order[id(x)] for x in (*arrays, *more)]
        flags = ctx.materialize_grads, ctx._materialize_non_diff_grads
        return list(distinct.values()), cls(name, shared, own, places, *flags)

    @property
    def n_shared(self) -> int:
        """Number of distinct arrays that both rules may read."""
        return len(set(self.places[: self.shared.n_arrays]))

    def context(
        self,
        cls: type[BackwardCFunction],
        rule_name: str,
        arrays: Arrays,
        needs_input_grad: tuple[bool, ...],
    ) -> BackwardCFunction:
        """Make a fresh context for `backward` or `jvp`."""
        saved, attributes = self._shared(arrays)
        if rule_name == "backward":
            # As in torch, an unpack hook runs at every read.
            read = lambda: self._own(arrays, self._unpacked)  # noqa: E731
            saved = read() if self.packed is None else read
        ctx = cls()
        ctx.__dict__.update(
            attributes,
            _jaxfn_needs=needs_input_grad,
            _jaxfn_rule=rule_name,
            _jaxfn_saved=saved,
            materialize_grads=self.materialize,
            saved_for_forward=saved if rule_name == "jvp" else (),
        )
        return ctx

    def filled(self, arrays: Arrays) -> tuple[Any, Any, dict[str, Any]]:
        """Return what jvp, backward and both read; in a box what hooks packed."""
        for_jvp, attributes = self._shared(arrays)
        return for_jvp, self._own(arrays, lambda pair: Box(pair[0])), attributes

    def _shared(self, arrays: Arrays) -> Any:
        return self.shared.join(
            [arrays[i] for i in self.places[: self.shared.n_arrays]]
        )

    def _own(self, arrays: Arrays, unpack: Callable[[Any], Any]) -> Any:
        if self.packed is None:
            return self.own.join(
                [arrays[i] for i in self.places[self.shared.n_arrays :]]
            )
        groups = grouped(self.packed, arrays[self.n_shared :])
        pairs = zip(self.packed, groups, strict=True)
        return self.own.join([unpack(spec.join(group)) for spec, group in pairs])

    # ---- saved-tensor hooks

    def with_hooks(self, arrays: Arrays, hooks: Hooks) -> tuple[list[Any], Saved]:
        """Call the pack hook; return the new arrays, and how to unpack them.

        Arrays that jvp or an attribute reads too are kept beside what is packed.
        """
        found, specs = list(arrays[: self.n_shared]), []
        for i in self.places[self.shared.n_arrays :]:
            value = hooks.pack(arrays[i])
            parts, spec = split((value, _witness(arrays[i], value)))
            found += parts
            specs.append(spec)
        return found, dataclasses.replace(self, packed=specs, unpack=hooks.unpack)

    def _unpacked(self, pair: Any) -> Any:
        assert self.unpack is not None
        value, witness = pair
        x = self.unpack(value)
        if not is_array(x):
            raise messages.RuleTypeError(
                "Output of saved tensor unpack_hook expected to be a Tensor but "
                f"got result of type {type_name(x)}. `{self.name}.backward` read "
                "ctx.saved_tensors: expected arrays from unpack_hook, got "
                f"{messages.shown(x)}."
            )
        # Refuse here and not in `pack`: jvp never unpacks, so it loses nothing.
        if witness is not None:
            (x,) = refusing(self._lossy, [witness], [gate(x)], name=self.name)
        return x

    def _lossy(self) -> Exception:
        return NotImplementedError(
            f"`{self.name}.backward` was differentiated, but saved-tensor hooks stored "
            "a saved array as integers, so its derivative would be lost. Use hooks "
            "that keep floats, or none."
        )


def _witness(x: Any, packed: Any) -> Any:
    """Return a zero that depends on `x`, or None if the hooks lose no derivative.

    If a hook returns integers, a second derivative would silently lose the part of `x`.
    So the derivative of the unpacked array by the witness raises.
    """
    lossy = any(not is_inexact(a) for a in split(packed)[0])
    if not lossy or not is_inexact(x):
        return None
    # A sum of no elements depends on `x`, but does not keep alive the memory that the
    # hooks should save.
    return jnp.sum(jnp.ravel(x)[:0]) if is_number(x) else x


# ---- values as pytrees
#
# JAX's pytrees almost suffice. But JAX sorts the keys of a dict, and can't look into a
# dataclass that is not registered. NumPy arrays stay NumPy's, because they may be
# indices; and what a rule writes into one must not change a gradient.


class _Node:
    """A pytree node that stands for a value, and becomes this value again.

    Attributes:
        parts: Its children.
        build: Makes the value from them.
    """

    def __init__(self, parts: list[Any], build: Callable[[Any], Any]) -> None:
        self.parts, self.build = parts, build


def _node(parts: dict[Any, Any], build: Callable[[dict[Any, Any]], Any]) -> _Node:
    """Make the node of a value that `build` makes from these named parts."""
    keys = tuple(parts)
    return _Node(
        list(parts.values()), lambda found: build(dict(zip(keys, found, strict=True)))
    )


tree_util.register_pytree_node(
    _Node, lambda node: (node.parts, node.build), lambda build, parts: build(parts)
)


def _as_tree(value: Any, label: str) -> Any:
    """Return a value as a pytree; `label` names it in messages."""
    try:
        return _tree(value, label)
    except RecursionError:
        raise messages.RuleTypeError(
            f"{label} is or holds a {type_name(value)} that holds itself: expected "
            "arrays, and containers without cycles. Save only the parts that the rules "
            "need."
        ) from None


def _tree(value: Any, label: str) -> Any:
    if isinstance(value, (jax.Array, *_SIMPLE)):
        return value
    if type(value) is dict:
        return _node({key: _tree(x, label) for key, x in value.items()}, dict)
    if is_record(value):
        parts = {name: _tree(x, label) for name, x in fields(value).items()}
        # Without the arrays, which must not outlive the trace.
        shell = _set_fields(copy.copy(value), dict.fromkeys(parts))
        return _node(parts, lambda found: _set_fields(copy.copy(shell), found))
    # JAX warns about an iterator as a leaf.
    if not isinstance(value, (np.ndarray, Iterator)):
        # One level alone. `is` can't tell the root: a list may hold itself.
        at_root = iter([True])
        parts, treedef = tree_util.tree_flatten(
            value, is_leaf=lambda _: not next(at_root, False)
        )
        if not tree_util.treedef_is_leaf(treedef):
            return _Node([_tree(x, label) for x in parts], treedef.unflatten)
    if find(value, internals.is_tracer) is not None:
        raise messages.RuleTypeError(
            f"{label} holds a traced value inside an object of type "
            f"{type(value).__name__}, so jaxfn can't save it: expected arrays in "
            "save_for_backward, or in an attribute that is an array, a dict, list, "
            "tuple, registered pytree, dataclass or SimpleNamespace. "
            + (
                "Pass the array to apply as an argument of its own, beside the "
                "function that uses it."
                if callable(value)
                else "Save the array itself, or register the type with "
                "jax.tree_util.register_pytree_node."
            )
        )
    kept = value.copy() if isinstance(value, np.ndarray) else value
    return _Node([], lambda _: kept.copy() if isinstance(kept, np.ndarray) else kept)


_SIMPLE = (int, float, complex, str, bytes, type(None), np.generic, np.dtype, type)


def _is_jax_array(x: Any) -> bool:
    return isinstance(x, jax.Array)


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
        return dict(vars(value))
    return {
        f.name: getattr(value, f.name)
        for f in dataclasses.fields(value)
        if hasattr(value, f.name)
    }


def _set_fields(record: Any, values: dict[str, Any]) -> Any:
    for name, x in values.items():
        object.__setattr__(record, name, x)  # a frozen dataclass refuses setattr
    return record
