"""The names that code reads and binds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxfn.torch._translate._lib import cst
from jaxfn.torch._translate._visitors import NoImports, Targets


class Loads(cst.CSTVisitor):
    """The names that a piece of code reads."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[Any] = []
        self._stored: set[Any] = set()

    def _store(self, target: Any) -> None:
        if isinstance(target, cst.Name):
            self._stored.add(target)
        for element in getattr(target, "elements", ()):
            self._store(element.value)

    def visit_AssignTarget(self, node: Any) -> None:
        self._store(node.target)

    def visit_For(self, node: Any) -> None:
        self._store(node.target)

    def visit_CompFor(self, node: Any) -> None:
        self._store(node.target)

    def visit_Attribute(self, node: Any) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: Any) -> bool:
        node.value.visit(self)
        return False

    def visit_Annotation(self, node: Any) -> bool:
        return False

    def visit_Name(self, node: Any) -> None:
        if node not in self._stored:
            self.names.append(node)


def loads(*nodes: Any) -> list[Any]:
    """The names that nodes read, in order."""
    found = Loads()
    for node in nodes:
        if node is not None:
            node.visit(found)
    return found.names


def names_read(*nodes: Any) -> set[str]:
    """The names that nodes read."""
    return {n.value for n in loads(*nodes)}


def store_names(node: Any, found: set[str]) -> None:
    finder = Stores(found)
    node.visit(finder)
    found -= finder.elsewhere


class Stores(Targets, NoImports, cst.CSTVisitor):
    def __init__(self, found: set[str]) -> None:
        super().__init__()
        self._found = found
        self.elsewhere: set[str] = set()

    def visit_FunctionDef(self, node: Any) -> bool:
        self._found.add(node.name.value)
        return False

    def visit_ClassDef(self, node: Any) -> bool:
        self._found.add(node.name.value)
        return False

    def visit_Lambda(self, node: Any) -> bool:
        return False

    def visit_Global(self, node: Any) -> None:
        self.elsewhere |= {item.name.value for item in node.names}

    def _store(self, target: Any) -> None:
        self._found.update(stored(target))


def stored(target: Any) -> list[str]:
    """The names that a target binds."""
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, (cst.Tuple, cst.List)):
        return [n for e in target.elements for n in stored(e.value)]
    if isinstance(target, cst.StarredElement):
        return stored(target.value)
    return []


def stored_names(nodes: Iterable[Any]) -> set[str]:
    """The names that nodes bind."""
    found: set[str] = set()
    for node in nodes:
        store_names(node, found)
    return found
