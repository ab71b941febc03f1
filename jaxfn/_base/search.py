"""Find arrays inside objects that are no pytrees, such as closures.

JAX doesn't transform them, so they would lose their derivative.
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
    """Return whether `x`, a static leaf, holds a JAX array."""
    return find(x, lambda part: isinstance(part, jax.Array)) is not None


def find(value: Any, wanted: Callable[[Any], bool]) -> Any | None:
    """Find a `wanted` object inside `value`, or return None.

    It searches containers, attributes, slots, closures, partial applications and bound
    methods, but not modules, classes and generators.
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
    if isinstance(x, np.ndarray):  # an array of objects may hold a JAX array
        return x.dtype.kind != "O"
    return isinstance(x, _PLAIN)


_PLAIN = (
    *(int, float, complex, str, bytes, bool, type(None), type, np.generic),
    *(np.dtype, type(jax), type(len), compat.ConcreteArray),
)
_MOST_OBJECTS = 1_000


def _parts(x: Any) -> list[Any]:
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
        # Early releases of Python 3.11 raise TypeError for the __weakref__ of a
        # dataclass with slots, such as JAX's equations.
        parts += [getattr(x, name, None) for name in names if name != "__weakref__"]
    # A deque, a view of a dict or an iterator has neither attributes nor slots. The
    # referents of a function would include all globals of its module.
    if type(x).__module__ in _CONTAINERS and not (callable(x) or isinstance(x, _CODE)):
        parts += gc.get_referents(x)
    return parts


_CONTAINERS = ("builtins", "collections", "itertools", "types")
_CODE = (types.GeneratorType, types.CodeType, types.FrameType)


def in_cell(cell: Any) -> Any:
    """Return the contents of a cell of a closure; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
