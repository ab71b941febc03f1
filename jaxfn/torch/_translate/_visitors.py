"""What several visitors of code have in common."""

from __future__ import annotations

from typing import Any


class Targets:
    """Hands every place that code binds a name in to `_store`."""

    def _store(self, target: Any) -> None:
        raise NotImplementedError

    def visit_AssignTarget(self, node: Any) -> None:
        self._store(node.target)

    def visit_AugAssign(self, node: Any) -> None:
        self._store(node.target)

    def visit_AnnAssign(self, node: Any) -> None:
        self._store(node.target)

    def visit_For(self, node: Any) -> None:
        self._store(node.target)

    def visit_CompFor(self, node: Any) -> None:
        self._store(node.target)

    def visit_NamedExpr(self, node: Any) -> None:
        self._store(node.target)

    def visit_AsName(self, node: Any) -> None:
        self._store(node.name)


class NoImports:
    """Passes over imports, whose names are no expressions."""

    def visit_Import(self, node: Any) -> bool:
        return False

    def visit_ImportFrom(self, node: Any) -> bool:
        return False
