"""What a class reads beside its arguments, and a user may change between calls.

Torch runs rules at each call; here a trace is kept. Attributes of the class and what
its rules name, there or in functions that they call, are part of what tells two calls
apart, as far as they are plain values: a slope that is lowered at each step, say.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

from jaxfn.torch._base.torch_module import torch
from jaxfn.torch._base.flatten import fingerprint

_RULES = ("forward", "setup_context", "backward", "vjp", "jvp", "vmap")
_LIBRARIES = {"torch", "jax", "jaxfn", "numpy", "math", "builtins"}
_MISSING = object()
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype)


def settings_of(cls: Any) -> Any:
    """A key that differs where one of them does.

    Args:
        cls: the torch class.
    """
    found = [
        (base.__qualname__, name, fingerprint(value))
        for base in _own_bases(cls)
        for name, value in vars(base).items()
        if not name.startswith("__") and _is_plain(value)
    ]
    seen: set[types.CodeType] = set()
    found += [
        (rule, name, fingerprint(value))
        for rule in _RULES
        for name, value in _read_by(getattr(cls, rule), seen)
    ]
    return tuple(found)


def _own_bases(cls: Any) -> Iterator[type]:
    known = set(torch.autograd.Function.__mro__)
    return (base for base in cls.__mro__ if base not in known)


def _read_by(function: Any, seen: set[types.CodeType]) -> Iterator[tuple[str, Any]]:
    """Plain values that a function, and those that it calls, names or closes over."""
    function = getattr(inspect.unwrap(function), "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None or code in seen:
        return
    seen.add(code)
    names, space = _names(code), function.__globals__
    for name in names:
        if name in space:
            yield from _plain_in(name, space[name], names, seen)
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        yield from _plain_in(name, _in(cell), names, seen)


def _names(code: types.CodeType) -> list[str]:
    """The names of globals and attributes in it, and in what it defines."""
    found = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found |= dict.fromkeys(_names(inner))
    return list(found)


def _plain_in(
    name: str, value: Any, names: list[str], seen: set[types.CodeType]
) -> Iterator[tuple[str, Any]]:
    """What it is, if it is plain; what it holds by these names, if it is an object."""
    if _is_plain(value):
        yield name, value
    elif isinstance(value, types.FunctionType):
        if not _is_library(value.__module__):
            yield from _read_by(value, seen)
    elif not _is_library(getattr(value, "__name__", type(value).__module__)):
        is_class = isinstance(value, torch.autograd.function.FunctionMeta)
        for attribute in (*names, *_RULES) if is_class else names:
            held = inspect.getattr_static(value, attribute, _MISSING)
            held = getattr(held, "__func__", held)
            if isinstance(held, types.FunctionType) or _is_plain(held):
                yield from _plain_in(f"{name}.{attribute}", held, names, seen)


def _is_library(module: str | None) -> bool:
    return (module or "").split(".")[0] in _LIBRARIES


def _in(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has no value yet
        return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)
