"""What a class reads beside its arguments, and a user may change between calls.

Torch runs rules at each call; here a trace is kept. Attributes of the class and what
its rules name of their module are part of what tells two calls apart, as far as they
are plain values: a slope that is lowered at each step, say.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from jaxfn.torch._lib import torch
from jaxfn.torch._statics import fingerprint

_RULES = ("forward", "setup_context", "backward", "vjp", "jvp", "vmap")
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
    found += [
        (rule, name, fingerprint(value))
        for rule in _RULES
        for name, value in _read_by(getattr(cls, rule))
        if _is_plain(value)
    ]
    return tuple(found)


def _own_bases(cls: Any) -> Iterator[type]:
    known = set(torch.autograd.Function.__mro__)
    return (base for base in cls.__mro__ if base not in known)


def _read_by(rule: Any) -> list[tuple[str, Any]]:
    """What a rule names of its module, and what it closes over."""
    rule = getattr(inspect.unwrap(rule), "__func__", rule)
    code = getattr(rule, "__code__", None)
    if code is None:
        return []
    names = [(n, rule.__globals__[n]) for n in code.co_names if n in rule.__globals__]
    cells = zip(code.co_freevars, rule.__closure__ or (), strict=True)
    return names + [(name, _in(cell)) for name, cell in cells]


def _in(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has no value yet
        return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)
