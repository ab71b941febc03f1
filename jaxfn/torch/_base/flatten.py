"""Values as templates and leaves: the tensors or arrays in them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxfn._core import closures
from jaxfn.torch._base.torch_module import torch


class Leaf(int):
    """The index of a leaf, in its place in a template."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rebuilt:
    """A template of an object that contains leaves: how to make it again."""

    make: Callable[[Any], Any]
    parts: Any
    kind: type


PLAIN = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device,
    torch.Size, torch.layout, torch.memory_format, range, slice, type(Ellipsis),
)  # fmt: skip


class Flattener:
    """Templates of values; each leaf occurs once.

    Args:
        is_leaf: Whether an object is a leaf.
        is_hidden_leaf: Whether it is a leaf inside an object or a function. These may
            have NumPy arrays of their own. By default `is_leaf`.
    """

    def __init__(
        self,
        is_leaf: Callable[[Any], bool],
        is_hidden_leaf: Callable[[Any], bool] | None = None,
    ) -> None:
        self._is_leaf = is_leaf
        self._is_hidden_leaf = is_hidden_leaf or is_leaf
        self._index: dict[int, Leaf] = {}
        self._inside: set[int] = set()
        self.leaves: list[Any] = []

    def start(self, leaves: Sequence[Any]) -> None:
        """Begin with these leaves."""
        self.leaves = list(leaves)
        self._index = {id(x): Leaf(i) for i, x in enumerate(leaves)}

    def __call__(self, value: Any) -> Any:
        """Return the template of a value."""
        if self._is_leaf(value) or id(value) in self._index:
            if id(value) not in self._index:
                self._index[id(value)] = Leaf(len(self.leaves))
                self.leaves.append(value)
            return self._index[id(value)]
        if isinstance(value, PLAIN) or id(value) in self._inside:
            return value
        self._inside.add(id(value))
        try:
            return self._apart(value)
        finally:
            self._inside.discard(id(value))

    def _apart(self, value: Any) -> Any:
        kind = type(value)
        if kind in (list, tuple):
            return kind([self(x) for x in value])
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            parts = [self(x) for x in value]
            return Rebuilt(lambda p, kind=kind: kind(*p), parts, kind)
        if isinstance(value, (list, tuple)):  # as torch.return_types.max
            parts = [self(x) for x in value]
            return self._if_has_leaf(value, parts, lambda p: sequence_like(value, p))
        if isinstance(value, dict):
            parts = {k: self(x) for k, x in value.items()}
            if kind is dict:
                return parts
            return self._if_has_leaf(value, parts, lambda p: _dict_like(value, p))
        with self._hidden():
            return self._object(value)

    @contextlib.contextmanager
    def _hidden(self) -> Iterator[None]:
        before, self._is_leaf = self._is_leaf, self._is_hidden_leaf
        try:
            yield
        finally:
            self._is_leaf = before

    def _object(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            parts = [self(value.args), self(value.keywords)]
            make = functools.partial(_partial, value.func)
            return self._if_has_leaf(value, parts, make)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return self._if_has_leaf(
                value,
                self(value.__self__),
                lambda own: types.MethodType(value.__func__, own),
            )
        if isinstance(value, (type, types.ModuleType, enum.Enum, torch.Tensor)):
            return value
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return value
        parts = {k: self(x) for k, x in attributes.items()}
        return self._if_has_leaf(value, parts, lambda p: _object_like(value, p))

    def _function(self, value: types.FunctionType) -> Any:
        cells = value.__closure__ or ()
        parts = [self(closures.in_cell(cell)) for cell in cells]

        def make(found: Any) -> Any:
            function = types.FunctionType(
                value.__code__,
                value.__globals__,
                value.__name__,
                value.__defaults__,
                tuple(types.CellType(x) for x in found),
            )
            function.__kwdefaults__ = value.__kwdefaults__
            return function

        return self._if_has_leaf(value, parts, make)

    def _if_has_leaf(self, value: Any, parts: Any, make: Callable[[Any], Any]) -> Any:
        return Rebuilt(make, parts, type(value)) if has_leaf(parts) else value


def parts_of(template: Any) -> list[Any]:
    """Return the parts of a template."""
    if isinstance(template, (list, tuple)):
        return list(template)
    if type(template) is dict:
        return list(template.values())
    return [template.parts] if isinstance(template, Rebuilt) else []


def outputs_of(template: Any) -> tuple[Any, ...]:
    """Return the outputs in the template of a result: the members of a tuple."""
    if isinstance(template, Rebuilt) and issubclass(template.kind, tuple):
        return tuple(template.parts)
    return template if isinstance(template, tuple) else (template,)


def has_leaf(template: Any) -> bool:
    """Return whether a template contains a leaf."""
    is_one = isinstance(template, (Leaf, Rebuilt))
    return is_one or any(map(has_leaf, parts_of(template)))


def unflatten(template: Any, leaves: Sequence[Any]) -> Any:
    """Return the value of a template with these leaves, in new containers."""
    kind = type(template)
    if kind is Leaf:
        return leaves[template]
    if kind in (list, tuple):
        return kind([unflatten(x, leaves) for x in template])
    if kind is dict:
        return {k: unflatten(x, leaves) for k, x in template.items()}
    if kind is Rebuilt:
        return template.make(unflatten(template.parts, leaves))
    return template


def _partial(func: Any, parts: Any) -> Any:
    return functools.partial(func, *parts[0], **parts[1])


def sequence_like(value: Any, parts: Sequence[Any]) -> Any:
    """Return a list or a tuple of a class of its own with these parts."""
    if isinstance(value, tuple):
        return type(value)(parts)
    made = copy.copy(value)
    made[:] = parts
    return made


def _dict_like(value: Any, parts: dict[Any, Any]) -> Any:
    made = copy.copy(value)
    for k, x in parts.items():
        made[k] = x
    return made


def _object_like(value: Any, parts: dict[str, Any]) -> Any:
    made = copy.copy(value)
    made.__dict__.clear()
    made.__dict__.update(parts)
    return made


def closed_tensors(value: Any) -> list[Any]:
    """Return the real tensors in closures, objects, modules and containers."""
    flattener = Flattener(lambda x: isinstance(x, torch.Tensor))
    flattener(value)
    return flattener.leaves


def parameters_in(value: Any) -> list[Any]:
    """Return those of them that collect gradients."""
    return [x for x in closed_tensors(value) if x.requires_grad]
