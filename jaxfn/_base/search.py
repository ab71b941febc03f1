"""Looking for arrays inside objects where JAX does not look.

JAX sees the leaves of pytrees. What hides in any other object (a closure, an attribute,
a slot) takes no part in transformations, so its derivative would be lost: here it is
found, so that its user can be told.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxfn._base import compat


def hides_array(x: Any) -> bool:
    """Does `x`, a static leaf, hold a JAX array where JAX can't see it?"""
    return find(x, lambda part: isinstance(part, jax.Array)) is not None


def find(value: Any, wanted: Callable[[Any], bool]) -> Any | None:
    """Find an object inside `value`, however it is held, that is wanted.

    The result is None if there is none.

    Looks into containers of all kinds, attributes, slots, closures, partial
    applications and bound methods, but not into modules, classes and generators.
    """
    seen: set[int] = set()
    todo = [value]
    while todo:
        x = todo.pop()
        if wanted(x):
            return x
        if _is_plain(x) or id(x) in seen or len(seen) > _MOST_OBJECTS:
            continue
        seen.add(id(x))
        todo.extend(_parts(x))
    return None


def _is_plain(x: Any) -> bool:
    """Is there nothing to look into?"""
    # Arrays of numbers are skipped; one of objects may hold a JAX array.
    if isinstance(x, np.ndarray):
        return x.dtype.kind != "O"
    return isinstance(x, _PLAIN)


_PLAIN = (
    *(int, float, complex, str, bytes, bool, type(None), type, np.generic),
    *(np.dtype, type(jax), type(len), compat.ConcreteArray),
)
_MOST_OBJECTS = 1_000


def _parts(x: Any) -> list[Any]:
    """List the objects that `x` holds."""
    if isinstance(x, types.CellType):
        return [in_cell(x)]
    if isinstance(x, dict):
        return [*x.keys(), *x.values()]
    if isinstance(x, (list, tuple, set, frozenset)):
        return list(x)
    if isinstance(x, np.ndarray):
        return list(x.flat)
    parts: list[Any] = []
    if isinstance(x, Callable):
        parts += getattr(x, "__closure__", None) or ()
        parts += [
            getattr(x, name, None)
            for name in ("__self__", "__func__", "func", "args", "keywords")
            + ("__defaults__", "__kwdefaults__", "__wrapped__")
        ]
    parts += list(getattr(x, "__dict__", {}).values())
    for cls in type.mro(type(x)):
        slots = cls.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        # A weak reference holds nothing; early releases of Python 3.11 raise TypeError
        # where one asks a dataclass with slots for it, as JAX's equations are.
        parts += [getattr(x, name, None) for name in names if name != "__weakref__"]
    # A deque, a view of a dict or an iterator has neither attributes nor slots; the
    # garbage collector knows what it holds. Of a function that would be all globals of
    # its module, of a generator its frame.
    if type(x).__module__ in _CONTAINERS and not (callable(x) or isinstance(x, _CODE)):
        parts += gc.get_referents(x)
    return parts


_CONTAINERS = ("builtins", "collections", "itertools", "types")
_CODE = (types.GeneratorType, types.CodeType, types.FrameType)


def in_cell(cell: Any) -> Any:
    """Return what a cell of a closure holds; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
