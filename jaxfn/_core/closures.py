"""Values that a rule uses although nobody passed them.

A Function's rules give derivatives by its arguments. If forward closes over another
value that is being differentiated, its derivative would be lost. Four checks see that:

- JAX raises if code uses a tracer of a transformation that is not active there. `call`
  puts that into our words.
- A tangent that reaches the values of `attach` comes from what forward closed over; if
  forward keeps its own derivative, one that reaches its operands `closed` does.
- If the rule of a custom_jvp gets no tangent, JAX differentiates by something else.
- `run_closed` looks at the constants of the jaxpr that JAX is tracing, because a jit
  takes any tracer for a constant, and fails only when it compiles, or never. It runs
  forward; and backward and jvp, if they run in another trace than the call.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxfn._core import jax_internals as internals
from jaxfn._core import messages
from jaxfn._core.values import Arrays


def run_closed(run: Callable[[], Any], arrays: Arrays, *, name: str) -> Any:
    """Call `run`, which runs a rule on `arrays`.

    Raises:
        ClosedOverError: It used another value that is being differentiated, or one of
            a transformation that is over.
    """
    constants = internals.staged_constants()
    n = len(constants)
    result = run()
    if len(constants) > n:
        passed = set(map(id, arrays))
        for x in list(constants.values())[n:]:
            lost = internals.is_differentiated(x) or internals.is_over(x)
            if lost and id(x) not in passed:
                raise messages.closed_over(name)
    return result


def hides_array(x: Any) -> bool:
    """Return whether `x`, a static leaf, holds a JAX array."""
    return find(x, lambda part: isinstance(part, jax.Array)) is not None


def find(value: Any, wanted: Callable[[Any], bool]) -> Any | None:
    """Find a `wanted` object inside `value`, or return None.

    It searches containers, attributes, slots, closures, partial applications and bound
    methods, but not modules, classes and generators.
    """
    seen: dict[int, Any] = {}  # keeps the objects alive, and so their ids unique
    todo = [value]
    while todo:
        x = todo.pop()
        if wanted(x):
            return x
        if not _is_plain(x) and id(x) not in seen:
            seen[id(x)] = x
            todo.extend(_parts(x))
    return None


def _is_plain(x: Any) -> bool:
    if isinstance(x, np.ndarray):  # an array of objects may hold a JAX array
        return x.dtype.kind != "O"
    return isinstance(x, _PLAIN)


_PLAIN = (
    *(int, float, complex, str, bytes, bool, type(None), type, np.generic),
    *(np.dtype, types.ModuleType, types.BuiltinFunctionType, types.GeneratorType),
    *(types.CodeType, types.FrameType, internals.ConcreteArray),
)


def _parts(x: Any) -> list[Any]:
    if isinstance(x, types.CellType):
        return [in_cell(x)]
    if isinstance(x, dict):
        return [*x.keys(), *x.values()]
    if isinstance(x, (list, tuple, set, frozenset)):
        return list(x)
    if isinstance(x, np.ndarray):
        return list(x.flat)
    parts = list(getattr(x, "__dict__", {}).values())
    if isinstance(x, Callable):
        parts += getattr(x, "__closure__", None) or ()
        names = ("__self__", "__func__", "func", "args", "keywords")
        names += ("__defaults__", "__kwdefaults__")
        parts += [getattr(x, name, None) for name in names]
    for cls in type.mro(type(x)):
        slots = cls.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        # Early releases of Python 3.11 raise TypeError for the __weakref__ of a
        # dataclass with slots, such as JAX's equations.
        parts += [getattr(x, name, None) for name in names if name != "__weakref__"]
    # A deque, a view of a dict or an iterator has neither attributes nor slots. The
    # referents of a function would include all globals of its module.
    if type(x).__module__ in ("builtins", "collections", "itertools", "types"):
        parts += [] if callable(x) else gc.get_referents(x)
    return parts


def in_cell(cell: Any) -> Any:
    """Return the contents of a cell of a closure; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
