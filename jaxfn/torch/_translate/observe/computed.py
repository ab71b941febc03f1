"""Which arrays of NumPy a run computed from tensors, and which are constants of it.

The two look the same: `np.sqrt(x.numpy())` is a value that JAX traces, `np.sqrt(8)` a
number that it does not. The first become arrays of JAX in a translation, the second
stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxfn.torch._translate.syntax import cst, indices


def is_numpy(value: Any) -> bool:
    """Is it an array, or a number, of NumPy, which JAX can hold?"""
    held = isinstance(value, (np.ndarray, np.generic))
    return held and value.dtype.kind in "biufc"


class Computed:
    """Knows the arrays that a run came by.

    Args:
        of: has an expression, which was evaluated before, such an array or a tensor?
    """

    def __init__(self, of: Callable[[Any], bool]) -> None:
        self._of = of
        # By identity, each beside its array, which so can't give way to another one.
        self._known: dict[int, tuple[Any, bool]] = {}
        self.constants: set[Any] = set()  # names of modules
        # What is bound to a name that is written to, and what is written there.
        self.written: dict[Any, list[Any]] = {}

    def of(self, node: Any, value: Any) -> bool:
        """Was the array that an expression gives computed from tensors?

        A name stands for the array that it was bound to. What was never seen before
        came from elsewhere, as an argument or out of a loop: it is taken for computed.
        """
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        if node in self.constants:
            found = False
        elif isinstance(node, (cst.Name, cst.Attribute)):
            found = self._of_base(value)
        else:
            found = node in self.written or any(self._of(n) for n in _parts(node))
        if not isinstance(value, np.bool_):  # there are but two of them
            self._known[id(value)] = (value, found)
        return found

    def forget(self) -> None:
        """Know nothing of the arrays of a run, before the next."""
        self._known.clear()

    def _of_base(self, value: Any) -> bool:
        base = getattr(value, "base", None)
        while base is not None:
            known = self._known.get(id(base))
            if known is not None:
                return known[1]
            base = getattr(base, "base", None)
        return True

    def any_of(self, node: Any, values: Any) -> bool:
        """Was one of the arrays computed that an expression gives?"""
        found = [self.of(node, x) for x in _arrays(values)]  # each is noted
        return any(found)


def _arrays(value: Any) -> Iterator[Any]:
    if is_numpy(value):
        yield value
    elif isinstance(value, (tuple, list)):
        for x in value:
            yield from _arrays(x)


def _parts(node: Any) -> list[Any]:
    """The expressions that one is computed from, each of which was seen itself."""
    return [seen for part in _direct(node) for seen in seen_parts(part)]


def _direct(node: Any) -> list[Any]:
    if isinstance(node, cst.Call):
        of = [node.func.value] if isinstance(node.func, cst.Attribute) else []
        return [*of, *(a.value for a in node.args)]
    if isinstance(node, cst.BinaryOperation):
        return [node.left, node.right]
    if isinstance(node, cst.UnaryOperation):
        return [node.expression]
    if isinstance(node, cst.Comparison):
        return [node.left, *(c.comparator for c in node.comparisons)]
    if isinstance(node, cst.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, (cst.Tuple, cst.List)):
        return [e.value for e in node.elements]
    if isinstance(node, cst.Subscript):
        return [node.value, *indices(node)]
    return []


def seen_parts(node: Any) -> list[Any]:
    """The node itself, or its parts where a run does not tell what it was."""
    if isinstance(node, (cst.ListComp, cst.GeneratorExp, cst.SetComp)):
        return seen_parts(node.elt)
    if isinstance(node, cst.BooleanOperation):
        return [*seen_parts(node.left), *seen_parts(node.right)]
    if isinstance(node, (cst.Dict, cst.Set)):
        return [part for e in node.elements for part in seen_parts(e.value)]
    return seen_parts(node.value) if isinstance(node, cst.NamedExpr) else [node]


class _Written(cst.CSTVisitor):
    """What names are bound to, and what is written to them or to their parts."""

    def __init__(self) -> None:
        super().__init__()
        self.bound: list[tuple[str, Any]] = []
        self.values: dict[str, list[Any]] = {}

    def visit_Assign(self, node: Any) -> None:
        for target in node.targets:
            if isinstance(target.target, cst.Name):
                self.bound.append((target.target.value, node.value))
            else:
                self._write(target.target, node.value)

    def visit_AugAssign(self, node: Any) -> None:
        self._write(node.target, node.value)

    def _write(self, target: Any, value: Any) -> None:
        for element in getattr(target, "elements", ()):
            self._write(element.value, value)
        values = [value]
        while isinstance(target, cst.Subscript):
            values.extend(indices(target))
            target = target.value
        if isinstance(target, cst.Name):
            self.values.setdefault(target.value, []).extend(values)


def bound_and_written(node: Any) -> dict[Any, list[Any]]:
    """What is bound to names that are written to, each with all that is written."""
    found = _Written()
    node.visit(found)
    written = dict(found.values)
    for name, value in found.bound:  # `before = after`, and so on in a loop
        if isinstance(value, cst.Name) and value.value in found.values:
            written.setdefault(name, found.values[value.value])
    return {value: written[name] for name, value in found.bound if name in written}
