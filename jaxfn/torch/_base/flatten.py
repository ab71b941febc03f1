"""Values taken apart: which tensors they hold, and what tells them apart."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxfn.torch._base.torch_module import torch


class Slot(int):
    """The place of a leaf in a template."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Rebuilt:
    """A template of an object that holds leaves: how it is made again."""

    make: Callable[[Any], Any]
    parts: Any
    kind: type


_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device,
    torch.Size, torch.layout, torch.memory_format, range, slice, type(Ellipsis),
)  # fmt: skip
_MOST = 20_000


class Taker:
    """Takes values apart; each leaf once.

    Args:
        is_leaf: which objects are leaves.
        is_hidden_leaf: which are leaves inside of objects and functions, where NumPy
            code may have arrays of its own; the same ones if it is not said.
    """

    def __init__(
        self,
        is_leaf: Callable[[Any], bool],
        is_hidden_leaf: Callable[[Any], bool] | None = None,
    ) -> None:
        self._is_leaf = is_leaf
        self._is_hidden_leaf = is_hidden_leaf or is_leaf
        self._index: dict[int, Slot] = {}
        self._inside: set[int] = set()
        self.leaves: list[Any] = []

    def start(self, leaves: Sequence[Any]) -> None:
        """Have these leaves already."""
        self.leaves = list(leaves)
        self._index = {id(x): Slot(i) for i, x in enumerate(leaves)}

    def __call__(self, value: Any) -> Any:
        """The template of a value."""
        if self._is_leaf(value) or id(value) in self._index:
            if id(value) not in self._index:
                self._index[id(value)] = Slot(len(self.leaves))
                self.leaves.append(value)
            return self._index[id(value)]
        if isinstance(value, _PLAIN) or id(value) in self._inside:
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
            return _Rebuilt(lambda p, kind=kind: kind(*p), parts, kind)
        if isinstance(value, dict):
            parts = {k: self(x) for k, x in value.items()}
            if kind is dict:
                return parts
            return self._if_held(value, parts, lambda p: _dict_like(value, p))
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
            return self._if_held(value, parts, make)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return self._if_held(
                value,
                self(value.__self__),
                lambda own: types.MethodType(value.__func__, own),
            )
        if isinstance(value, (type, types.ModuleType, enum.Enum, torch.Tensor)):
            return value
        held = getattr(value, "__dict__", None)
        if not isinstance(held, dict):
            return value
        parts = {k: self(x) for k, x in held.items()}
        return self._if_held(value, parts, lambda p: _object_like(value, p))

    def _function(self, value: types.FunctionType) -> Any:
        cells = value.__closure__ or ()
        parts = [self(_in_cell(cell)) for cell in cells]

        def make(found: Any) -> Any:
            return types.FunctionType(
                value.__code__,
                value.__globals__,
                value.__name__,
                value.__defaults__,
                tuple(types.CellType(x) for x in found),
            )

        return self._if_held(value, parts, make)

    def _if_held(self, value: Any, parts: Any, make: Callable[[Any], Any]) -> Any:
        return _Rebuilt(make, parts, type(value)) if has_slot(parts) else value


def parts_of(template: Any) -> list[Any]:
    """What a template is made of."""
    if isinstance(template, (list, tuple)):
        return list(template)
    if type(template) is dict:
        return list(template.values())
    return [template.parts] if isinstance(template, _Rebuilt) else []


def has_slot(template: Any) -> bool:
    """Is there a leaf in a template?"""
    if isinstance(template, (list, tuple)):
        return any(map(has_slot, template))
    if type(template) is dict:
        return any(map(has_slot, template.values()))
    return isinstance(template, (Slot, _Rebuilt))


def join(template: Any, leaves: Sequence[Any]) -> Any:
    """The value again, with these leaves; containers are new."""
    kind = type(template)
    if kind is Slot:
        return leaves[template]
    if kind in (list, tuple):
        return kind([join(x, leaves) for x in template])
    if kind is dict:
        return {k: join(x, leaves) for k, x in template.items()}
    if kind is _Rebuilt:
        return template.make(join(template.parts, leaves))
    return template


def _in_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _partial(func: Any, parts: Any) -> Any:
    return functools.partial(func, *parts[0], **parts[1])


def _dict_like(value: Any, parts: dict[Any, Any]) -> Any:
    made = copy.copy(value)
    made.clear()
    made.update(parts)
    return made


def _object_like(value: Any, parts: dict[str, Any]) -> Any:
    made = copy.copy(value)
    made.__dict__.clear()
    made.__dict__.update(parts)
    return made


# ---- keys


@dataclasses.dataclass(frozen=True, eq=False)
class Same:
    """An object, compared by identity."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def fingerprint(value: Any, *, by_identity: bool = True) -> Any:
    """A key that differs where a trace may differ: by type and value, floats by bits.

    Objects are looked into, as their attributes may change between calls. What is too
    big to be looked into is never the same twice.

    Args:
        value: anything.
        by_identity: does it matter which object it is, beside what is in it?
    """
    try:
        return _Fingerprint(by_identity)(value)
    except _TooBigError:
        return Same(object())


class _TooBigError(Exception):
    pass


class _Fingerprint:
    def __init__(self, by_identity: bool) -> None:
        self._by_identity = by_identity
        self._seen: dict[int, int] = {}
        self._held: list[Any] = []

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, float):
            return kind, float(value).hex()
        if isinstance(value, complex):
            return kind, repr(value)
        if isinstance(value, slice):
            return kind, self(value.start), self(value.stop), self(value.step)
        if isinstance(value, (*_PLAIN, enum.Enum)):
            return kind, value
        if isinstance(value, (type, types.ModuleType, torch.Tensor)):
            return Same(value)
        if id(value) in self._seen:
            return "again", self._seen[id(value)]
        if len(self._seen) > _MOST:
            raise _TooBigError
        self._seen[id(value)] = len(self._seen)
        self._held.append(value)
        return self._compound(value, kind)

    def _compound(self, value: Any, kind: type) -> Any:
        if isinstance(value, (list, tuple)):
            return kind, tuple([self(x) for x in value])
        if isinstance(value, dict):
            pairs = [(self(k), self(x)) for k, x in value.items()]
            return kind, tuple(pairs)
        if isinstance(value, (set, frozenset)):
            return kind, frozenset(self(x) for x in value)
        if isinstance(value, np.ndarray):
            if value.dtype == object:
                raise _TooBigError
            return kind, value.dtype.str, value.shape, value.tobytes()
        if isinstance(value, np.generic):
            return kind, value.dtype.str, value.tobytes()
        if isinstance(value, types.FunctionType):
            cells = [self(_in_cell(c)) for c in value.__closure__ or ()]
            parts = self(value.__defaults__), self(value.__kwdefaults__)
            return Same(value.__code__), Same(value.__globals__), tuple(cells), parts
        if isinstance(value, types.MethodType):
            return Same(value.__func__), self(value.__self__)
        if isinstance(value, functools.partial):
            return kind, self(value.func), self(value.args), self(value.keywords)
        if isinstance(value, _Rebuilt):
            return value.kind, self(value.parts)
        held = getattr(value, "__dict__", None)
        slots = [
            getattr(value, name, None) for base in kind.__mro__ for name in _slots(base)
        ]
        own = Same(value) if self._by_identity else kind
        return own, self(held), self(slots)


def _slots(base: type) -> tuple[str, ...]:
    names = base.__dict__.get("__slots__", ())
    names = (names,) if isinstance(names, str) else tuple(names)
    return tuple(n for n in names if n not in ("__dict__", "__weakref__"))


def parameters_in(value: Any) -> list[Any]:
    """Real tensors that collect gradients, found in modules and containers."""
    taker = Taker(lambda x: isinstance(x, torch.Tensor))
    taker(value)
    return [x for x in taker.leaves if x.requires_grad]
