"""What a context saves: arrays as residuals, and everything else beside them."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

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
    """The static part of a context after forward, with places for its arrays.

    Attributes:
        for_forward: Values saved for jvp.
        attributes: The user's attributes.
        for_backward: Values saved for backward.
        n_shared: Number of arrays in the first two; they come first.
        materialize: Whether the rules get zeros in place of None.
        materialize_non_diff: Whether outputs without derivative get zeros too.
        unpack: The unpack hook, if saved-tensor hooks have packed what backward reads.
        name: Name of the Function.
    """

    for_forward: _Value
    attributes: _Value
    for_backward: _Value
    n_shared: int
    materialize: bool
    materialize_non_diff: bool
    unpack: Callable[[Any], Any] | None = None
    name: str = ""

    @classmethod
    def of(
        cls, ctx: BackwardCFunction, *, backward: bool, jvp: bool
    ) -> tuple[list[Any], Saved]:
        """Flatten a context after forward, with saved values for the rules that exist.

        Returns:
            Its arrays, each once, and the rest.
        """
        leaves = _Leaves(type(ctx).__name__)
        saved = (*ctx.saved_for_forward,) if jvp else ()
        for_forward = leaves.take(saved, "saved_tensors")
        attributes = {k: x for k, x in ctx.__dict__.items() if k not in STATE}
        parts = {k: leaves.take(x, k) for k, x in attributes.items()}
        n_shared = len(leaves.arrays)
        saved = (*ctx.to_save,) if backward else ()
        for_backward = leaves.take(saved, "saved_tensors")
        return leaves.arrays, cls(
            for_forward,
            _Fields({}, parts),
            for_backward,
            n_shared,
            ctx.materialize_grads,
            ctx._materialize_non_diff_grads,
        )

    def context(
        self,
        cls: type[BackwardCFunction],
        rule_name: str,
        arrays: Arrays,
        needs: tuple[bool, ...],
    ) -> BackwardCFunction:
        """Make a fresh context for `backward` or `jvp`."""
        if rule_name == "jvp":
            saved: Any = _built(self.for_forward, arrays)
        elif self.unpack is None:
            saved = _built(self.for_backward, arrays)
        else:  # as in torch, the hook runs at every read
            saved = lambda: _built(self.for_backward, arrays, self._unpacked)  # noqa: E731
        ctx = cls()
        ctx.__dict__.update(
            _built(self.attributes, arrays),
            _jaxfn_needs=needs,
            _jaxfn_rule=rule_name,
            _jaxfn_saved=saved,
            materialize_grads=self.materialize,
        )
        return ctx

    def filled(self, arrays: Arrays) -> tuple[Any, Any, dict[str, Any]]:
        """Return what jvp, backward and both read; in a box what hooks packed."""

        def boxed(place: _Packed, arrays: Arrays) -> Box:
            return Box(place.value(arrays)[0])

        return (
            _built(self.for_forward, arrays),
            _built(self.for_backward, arrays, boxed),
            _built(self.attributes, arrays),
        )

    # ---- saved-tensor hooks

    def packed(
        self, arrays: Arrays, hooks: Hooks, name: str
    ) -> tuple[list[Any], Saved]:
        """Call the pack hook; return the new arrays, and how to unpack them.

        Arrays that jvp or an attribute reads too stay as they are.
        """
        found = list(arrays[: self.n_shared])

        def pack(place: _At) -> _Packed:
            value = hooks.pack(arrays[place.index])
            parts, spec = split((value, _witness(arrays[place.index], value)))
            found.extend(parts)
            return _Packed(spec, len(found) - len(parts))

        for_backward = _mapped(self.for_backward, pack)
        return found, dataclasses.replace(
            self, for_backward=for_backward, unpack=hooks.unpack, name=name
        )

    def _unpacked(self, place: _Packed, arrays: Arrays) -> Any:
        assert self.unpack is not None
        value, witness = place.value(arrays)
        x = self.unpack(value)
        if not is_array(x):
            raise messages.RuleTypeError(
                "Output of saved tensor unpack_hook expected to be a Tensor but "
                f"got result of type {type_name(x)}. `{self.name}.backward` read "
                "ctx.saved_tensors: expected arrays from unpack_hook, got "
                f"{messages.shown(x)}."
            )
        # Refuse here, not in `pack`: jvp never unpacks, so its derivative loses nothing.
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


# ---- a value without its arrays
#
# JAX's pytrees almost suffice, but JAX sorts the keys of a dict, and can't look into a
# dataclass that is not registered. NumPy arrays stay NumPy's: they may be indices.

_Value = Any
"""A saved value with places for arrays: `_At`, `_Packed`, `_Tree`, `_Fields`, or static."""


class _At(NamedTuple):
    """The place of an array."""

    index: int

    def value(self, arrays: Arrays) -> Any:
        return arrays[self.index]


class _Packed(NamedTuple):
    """The place of what a hook made of an array."""

    spec: Spec
    start: int

    def value(self, arrays: Arrays) -> Any:
        return self.spec.join(arrays[self.start : self.start + self.spec.n_arrays])


class _Tree(NamedTuple):
    """A pytree: its children, and how to put them together."""

    treedef: Any
    parts: list[_Value]


class _Fields(NamedTuple):
    """A dict, a plain dataclass or a SimpleNamespace; the shell has no arrays."""

    shell: Any
    parts: dict[Any, _Value]


class _Leaves:
    """The arrays of values, each once."""

    def __init__(self, ctx_name: str) -> None:
        self.arrays: list[Any] = []
        self._index: dict[int, int] = {}
        self._ctx_name = ctx_name

    def take(self, value: Any, name: str) -> _Value:
        """Take the arrays out of the value of attribute `name`."""
        try:
            return self._take(value, name)
        except RecursionError:
            raise messages.RuleTypeError(
                f"{self._ctx_name}: ctx.{name} is or holds a {type_name(value)} that "
                "holds itself: expected arrays, and containers without cycles. Save "
                "only the parts that the rules need."
            ) from None

    def _take(self, value: Any, name: str) -> _Value:
        if isinstance(value, jax.Array):
            # `arrays` keeps it alive, so ids are unique.
            i = self._index.setdefault(id(value), len(self.arrays))
            if i == len(self.arrays):
                self.arrays.append(value)
            return _At(i)
        if isinstance(value, _SIMPLE):
            return value
        if isinstance(value, np.ndarray):
            self._check(value, name)
            return value.copy()  # a later write must not change a gradient
        if type(value) is dict or is_record(value):
            return self._take_fields(value, name)
        if isinstance(value, Iterator):  # JAX warns about one as a leaf
            self._check(value, name)
            return value
        # One level alone. `is` can't tell the root: a list may hold itself.
        at_root = iter([True])
        parts, treedef = tree_util.tree_flatten(
            value, is_leaf=lambda _: not next(at_root, False)
        )
        if tree_util.treedef_is_leaf(treedef):
            self._check(value, name)
            return value
        return _Tree(treedef, [self._take(part, name) for part in parts])

    def _take_fields(self, value: Any, name: str) -> _Fields:
        parts = value if isinstance(value, dict) else fields(value)
        found = {key: self._take(x, name) for key, x in parts.items()}
        if isinstance(value, dict):
            return _Fields({}, found)
        shell = copy.copy(value)  # without the arrays, which must not outlive the trace
        for key in found:
            object.__setattr__(shell, key, None)  # a frozen dataclass refuses setattr
        return _Fields(shell, found)

    def _check(self, value: Any, name: str) -> None:
        """Refuse an object that hides a tracer."""
        if find(value, internals.is_tracer) is not None:
            raise messages.RuleTypeError(
                f"{self._ctx_name}: ctx.{name} holds a traced value inside an object "
                f"of type {type(value).__name__}, so jaxfn can't save it: expected "
                "arrays in save_for_backward, or in an attribute that is an array, a "
                "dict, list, tuple, registered pytree, dataclass or SimpleNamespace. "
                "Save the array itself, or register the type with "
                "jax.tree_util.register_pytree_node."
            )


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


def _mapped(value: _Value, fun: Callable[[_At], Any]) -> _Value:
    """Replace each place of an array."""
    if isinstance(value, _At):
        return fun(value)
    if isinstance(value, _Tree):
        return value._replace(parts=[_mapped(x, fun) for x in value.parts])
    if isinstance(value, _Fields):
        return value._replace(
            parts={k: _mapped(x, fun) for k, x in value.parts.items()}
        )
    return value


def _built(
    value: _Value, arrays: Sequence[Any], unpack: Callable[..., Any] | None = None
) -> Any:
    """Return the value with these arrays in it."""
    if isinstance(value, _At):
        return value.value(arrays)
    if isinstance(value, _Packed):
        return unpack(value, arrays) if unpack else value.value(arrays)
    if isinstance(value, _Tree):
        return value.treedef.unflatten([_built(x, arrays, unpack) for x in value.parts])
    if isinstance(value, np.ndarray):
        return value.copy()  # a rule may write to its own
    if not isinstance(value, _Fields):
        return value
    parts = {key: _built(x, arrays, unpack) for key, x in value.parts.items()}
    if isinstance(value.shell, dict):
        return parts
    new = copy.copy(value.shell)
    for key, x in parts.items():
        object.__setattr__(new, key, x)
    return new
