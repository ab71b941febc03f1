"""What the statements of a file bind."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

from jaxfn.torch._translate._expressions import dotted
from jaxfn.torch._translate._lib import cst


def statements(body: Any) -> Iterator[Any]:
    """Statements of a block, and of the blocks in it that have no scope."""
    for statement in body:
        yield statement
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            continue
        for name in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(statement, name, None)
            parts: Any = inner if isinstance(inner, (list, tuple)) else [inner]
            for part in parts:
                block: Any = getattr(part, "body", None)
                if isinstance(block, cst.IndentedBlock):
                    yield from statements(block.body)
                elif isinstance(part, cst.IndentedBlock):
                    yield from statements(part.body)
                elif isinstance(part, cst.If):
                    yield from statements([part])


def smalls(statement: Any) -> Any:
    """The statements of a line."""
    return statement.body if isinstance(statement, cst.SimpleStatementLine) else ()


def bound(statement: Any) -> Iterator[str]:
    """The names that a statement binds."""
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        yield statement.name.value
    elif isinstance(statement, cst.SimpleStatementLine):
        for small in statement.body:
            yield from _bound_by(small)


def _bound_by(small: Any) -> Iterator[str]:
    if isinstance(small, (cst.Import, cst.ImportFrom)):
        if not isinstance(small.names, cst.ImportStar):
            for alias in small.names:
                yield name_of(alias)
    elif isinstance(small, cst.Assign):
        for target in small.targets:
            if isinstance(target.target, cst.Name):
                yield target.target.value
    elif isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name):
        yield small.target.value


def name_of(alias: Any) -> str:
    """The name that a part of an import binds."""
    if alias.asname is not None:
        return alias.asname.name.value
    return (dotted(alias.name) or [""])[0]


def imported(small: Any, name: str, package: str) -> tuple[str, str | None] | None:
    """The module, and what of it, that an import statement binds to a name."""
    if isinstance(small, cst.Import):
        for alias in small.names:
            if name_of(alias) == name:
                parts = dotted(alias.name) or []
                whole = alias.asname is not None
                return (".".join(parts) if whole else parts[0]), None
    if isinstance(small, cst.ImportFrom) and not isinstance(
        small.names, cst.ImportStar
    ):
        for alias in small.names:
            if name_of(alias) == name:
                module = ".".join(dotted(small.module) or [] if small.module else [])
                dots = "." * len(small.relative)
                if dots:
                    module = importlib.util.resolve_name(dots + module, package)
                return module, ".".join(dotted(alias.name) or [])
    return None
