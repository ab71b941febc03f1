"""Keys of the values that a class reads beside its arguments.

Torch runs rules at each call; jaxfn traces them once and reuses the trace. A user may
change what the rules read meanwhile, for example lower a slope at each step. So a key
includes plain attributes of the class and plain values that its rules name.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxfn._core import closures
from jaxfn.torch._base import experimental
from jaxfn.torch._base.dtypes import to_numpy
from jaxfn.torch._base.flatten import PLAIN, Rebuilt
from jaxfn.torch._base.torch_module import torch

RULES = ("forward", "setup_context", "backward", "vjp", "jvp", "vmap")
_LIBRARIES = {"torch", "jax", "jaxfn", "numpy", "math", "builtins"}
_MISSING = object()
_MOST = 20_000
_SETTING = (type(None), bool, int, float, complex, str, bytes, torch.dtype)


def settings_of(cls: Any) -> Any:
    """Return a key that changes if a plain value that the class reads changes.

    Args:
        cls: The torch class.
    """
    found = [
        (base.__qualname__, name, fingerprint(value))
        for base in _own_bases(cls)
        for name, value in vars(base).items()
        if not name.startswith("__") and _is_plain(value)
    ]
    found += [
        (rule, name, fingerprint(value)) for rule, name, value in _read_by_rules(cls)
    ]
    return tuple(found)


def names_kernel(cls: Any) -> bool:
    """Return whether a rule, or a function that it calls, names a kernel of Triton."""
    return any(isinstance(value, Same) for _, _, value in _read_by_rules(cls))


def reached_by(cls: Any) -> set[types.CodeType]:
    """Return the code of the rules and of the functions that they call."""
    reached: set[types.CodeType] = set()
    for rule in RULES:
        list(_read_by(getattr(cls, rule), reached))
    return reached


def _read_by_rules(cls: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the plain values that rules read, and kernels by identity."""
    seen: set[types.CodeType] = set()
    for rule in RULES:
        for name, value in _read_by(getattr(cls, rule), seen):
            yield rule, name, value


def _own_bases(cls: Any) -> Iterator[type]:
    known = set(torch.autograd.Function.__mro__)
    return (base for base in cls.__mro__ if base not in known)


def _read_by(function: Any, seen: set[types.CodeType]) -> Iterator[tuple[str, Any]]:
    """Yield plain values that a function or its callees name or close over."""
    function = getattr(inspect.unwrap(function), "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None or code in seen:
        return
    seen.add(code)
    names, space = names_in(code), function.__globals__
    for name in names:
        if name in space:
            yield from _plain_in(name, space[name], names, seen)
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        yield from _plain_in(name, closures.in_cell(cell), names, seen)


def names_in(code: types.CodeType) -> list[str]:
    """Return the names of globals and attributes in a code object and inner ones."""
    found = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found |= dict.fromkeys(names_in(inner))
    return list(found)


def _plain_in(
    name: str, value: Any, names: list[str], seen: set[types.CodeType]
) -> Iterator[tuple[str, Any]]:
    """Yield the value, if it is plain; else its plain members of these names."""
    owner = _owner(value)
    if isinstance(owner, type(torch.autograd.Function)):  # `apply` of another Function
        yield from _plain_in(name, owner, names, seen)
    elif _is_plain(value):
        yield name, value
    elif isinstance(value, types.FunctionType):
        if not _is_library(value.__module__):
            yield from _read_by(value, seen)
    elif type(value).__name__ == "constexpr":  # Triton's: a constant of kernels
        yield from _plain_in(name, getattr(value, "value", None), names, seen)
    elif experimental.is_kernel(value):
        yield name, Same(value)
        while not isinstance(value, types.FunctionType):
            value = value.fn
        yield from _read_by(value, seen)
    elif not _is_library(_module_of(value)):
        is_class = isinstance(value, type(torch.autograd.Function))
        for attribute in (*names, *RULES) if is_class else names:
            member = inspect.getattr_static(value, attribute, _MISSING)
            member = getattr(member, "__func__", member)
            is_read = isinstance(member, types.FunctionType) or _is_plain(member)
            if is_read or experimental.is_kernel(member):
                yield from _plain_in(f"{name}.{attribute}", member, names, seen)


def _owner(value: Any) -> Any:
    """Return the object of a method; None for anything else."""
    kinds = types.MethodType, types.BuiltinMethodType  # torch 2.14 has the second
    return value.__self__ if isinstance(value, kinds) else None


def _module_of(value: Any) -> str:
    # No other attribute of an unknown object, which may load a library then.
    is_named = isinstance(value, (type, types.ModuleType))
    return value.__name__ if is_named else type(value).__module__


def _is_library(module: str | None) -> bool:
    return (module or "").split(".")[0] in _LIBRARIES


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _SETTING)


class ReadTensors:
    """The program's own tensors whose numbers traces have read, and their values then.

    Such a number decides an axis, a size or a branch of a trace. If it has changed, a
    rule is traced anew, whichever way it came to the tensor.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._changes = 0

    def note(self, x: Any) -> None:
        """Note that a trace reads a number of this tensor."""
        ref, _ = self._known.get(id(x), (lambda: None, b""))
        if ref() is not x:  # a tensor that is gone leaves its number to another one
            self._known[id(x)] = weakref.ref(x), self._value(x)

    def changes(self) -> int:
        """Return how often the value of one of them has been found to be another."""
        for number, (ref, before) in list(self._known.items()):
            x = ref()
            if x is None:
                del self._known[number]
            elif (now := self._value(x)) != before:
                self._known[number] = ref, now
                self._changes += 1
        return self._changes

    def _value(self, x: Any) -> bytes:
        with experimental.with_values():
            return to_numpy(x.detach()).tobytes()


READ = ReadTensors()
"""Those of all traces."""


@dataclasses.dataclass(frozen=True, eq=False)
class Same:
    """An object that is compared by identity."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def fingerprint(value: Any, *, by_identity: bool = True) -> Any:
    """Return a key that differs if a trace may differ: types, values, bits of floats.

    The key includes the attributes of objects, because a user may change them between
    calls. An object that is too big for that never has the same key twice.

    Args:
        value: Anything.
        by_identity: Whether two objects of equal content have different keys.
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
        self._alive: list[Any] = []

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, Same):
            return value
        if isinstance(value, float):
            return kind, float(value).hex()
        if isinstance(value, complex):
            return kind, repr(value)
        if isinstance(value, slice):
            return kind, self(value.start), self(value.stop), self(value.step)
        if isinstance(value, (*PLAIN, enum.Enum)):
            return kind, value
        if isinstance(value, (type, types.ModuleType, torch.Tensor)):
            return Same(value)
        if id(value) in self._seen:
            return "again", self._seen[id(value)]
        if len(self._seen) > _MOST:
            raise _TooBigError
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
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
            cells = [self(closures.in_cell(c)) for c in value.__closure__ or ()]
            parts = self(value.__defaults__), self(value.__kwdefaults__)
            read = [(name, self(x)) for name, x in _read_by(value, set())]
            own = Same(value.__code__), Same(value.__globals__)
            return own, tuple(cells), parts, tuple(read)
        if isinstance(value, types.MethodType):
            return self(value.__func__), self(value.__self__)
        if isinstance(value, functools.partial):
            return kind, self(value.func), self(value.args), self(value.keywords)
        if isinstance(value, Rebuilt):
            return value.kind, self(value.parts)
        attributes = getattr(value, "__dict__", None)
        slots = [
            getattr(value, name, None) for base in kind.__mro__ for name in _slots(base)
        ]
        own = Same(value) if self._by_identity else kind
        return own, self(attributes), self(slots)


def _slots(base: type) -> tuple[str, ...]:
    names = base.__dict__.get("__slots__", ())
    names = (names,) if isinstance(names, str) else tuple(names)
    return tuple(n for n in names if n not in ("__dict__", "__weakref__"))
