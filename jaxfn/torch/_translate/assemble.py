"""The file: the imports that are used, constants, definitions in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxfn.torch._translate.files import SourceFile
from jaxfn.torch._translate.names import ValuesOnly
from jaxfn.torch._translate.syntax import Unparen, cst
from jaxfn.torch._translate.units import Unit

_OURS = {"jax": "import jax", "jnp": "import jax.numpy as jnp", "jaxfn": "import jaxfn"}
_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def assembled(
    main: SourceFile,
    parts: Sequence[tuple[Unit, Sequence[Any]]],
    constants: Mapping[str, str],
    *,
    whole: bool,
) -> str:
    """Return the text of the translation."""
    body: list[Any] = []
    for _, statements in _in_file_order(main, parts):
        for statement in statements:
            before = body[-1] if body else None
            body.append(_spaced(statement, before, whole=whole))
    body = [statement.visit(Unparen()) for statement in body]
    used = _names(body)
    lines = [
        cst.parse_statement(f"{name} = {text}")
        for name, text in constants.items()
        if name in used
    ]
    head = _docstring(main) if whole else []
    imports = _imports([unit for unit, _ in parts], used)
    if head and imports:
        imports[0] = imports[0].with_changes(
            leading_lines=[cst.EmptyLine(indent=False)]
        )
    if lines:
        lines[0] = lines[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    tree = cst.Module(body=[*head, *imports, *lines, *body], header=_header(main))
    return tree.code.lstrip("\n")


def _header(main: SourceFile) -> list[Any]:
    """Return the comments at the top, which may be a licence."""
    header = list(main.tree.header)
    while header and header[-1].comment is None:
        header.pop()
    kept = [line for line in header if line.comment is None or not _is_magic(line)]
    return [*kept, cst.EmptyLine(indent=False)] if kept else []


def _is_magic(line: Any) -> bool:
    return line.comment.value.startswith(("#!", "# -*-"))


def _docstring(main: SourceFile) -> list[Any]:
    if main.tree.get_docstring() is None:
        return []
    return [main.tree.body[0].with_changes(leading_lines=[])]


def _in_file_order(
    main: SourceFile, parts: Sequence[tuple[Unit, Sequence[Any]]]
) -> list[tuple[Unit, Sequence[Any]]]:
    """Sort the parts: files that are used come before those that use them."""
    order: dict[str, int] = {}
    by_key = {unit.key: unit for unit, _ in parts}

    def add(unit: Unit, path: tuple[str, ...]) -> None:
        name = unit.source.name
        if name in order or name in path:
            return
        for other, _ in parts:
            if other.source.name == name:
                for key in other.uses:
                    if key in by_key:
                        add(by_key[key], (*path, name))
        order[name] = len(order)

    for unit, _ in parts:
        if unit.source.name != main.name:
            add(unit, (main.name,))
    order[main.name] = len(order)
    return sorted(parts, key=lambda p: (order[p[0].source.name], _place(p[0])))


def _place(unit: Unit) -> int:
    node: Any = unit.source.definition(unit.path)
    return unit.source.line(node)


def _spaced(statement: Any, before: Any, *, whole: bool) -> Any:
    """Put two blank lines and the original comments before a definition.

    For a part of a file, omit comments that a blank line separates from the definition:
    they may be about the code before it.
    """
    lines = list(statement.leading_lines)
    if not whole:
        blank = [i for i, line in enumerate(lines) if line.comment is None]
        lines = lines[blank[-1] :] if blank else lines
    while lines and lines[0].comment is None:
        lines.pop(0)
    blank = [cst.EmptyLine(indent=False)]
    defs = (cst.FunctionDef, cst.ClassDef)
    is_def = isinstance(statement, defs) or isinstance(before, defs)
    if before is not None and not is_def and lines == []:
        blank = []
    return statement.with_changes(leading_lines=[*blank * (2 if is_def else 1), *lines])


def _imports(units: Sequence[Unit], used: set[str]) -> list[Any]:
    found: dict[str, Any] = {}
    for unit in units:
        for target in unit.references.values():
            if target.kind != "import" or target.name not in used:
                continue
            statement = unit.source.statement(target.name)
            if statement is not None and target.name not in _OURS:
                found.setdefault(cst.Module([statement]).code, statement)
    found = _merged(found)
    texts = sorted(found, key=_import_key)
    ours = [cst.parse_statement(text) for n, text in _OURS.items() if n in used]
    own = [s for s in ours if "jaxfn" in cst.Module([s]).code]
    jax = [s for s in ours if s not in own]
    theirs = [found[t] for t in texts if not _is_outside(t)]
    outside = [found[t] for t in texts if _is_outside(t)]
    groups = [g for g in (theirs, [*jax, *own, *outside]) if g]
    blank = cst.EmptyLine(indent=False)
    return [
        s.with_changes(leading_lines=[blank] if i == 0 and n > 0 else [])
        for n, group in enumerate(groups)
        for i, s in enumerate(group)
    ]


def _merged(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return one statement for all imports from one module."""
    merged: dict[str, Any] = {}
    by_module: dict[str, Any] = {}
    for text, statement in sorted(found.items()):
        small = statement.body[0]
        if not isinstance(small, cst.ImportFrom):
            merged[text] = statement
            continue
        module = text.split()[1]
        before = by_module.get(module)
        if before is not None:
            merged.pop(cst.Module([before]).code)
            first = before.body[0]
            small = first.with_changes(names=[*first.names, *small.names])
            names = [n.with_changes(comma=_COMMA) for n in small.names[:-1]]
            small = small.with_changes(names=[*names, small.names[-1]])
            statement = before.with_changes(body=[small])
        by_module[module] = statement
        merged[cst.Module([statement]).code] = statement
    return merged


def _is_outside(text: str) -> bool:
    return text.split()[1].split(".")[0] in ("numpy", "scipy", "einops")


def _import_key(text: str) -> tuple[bool, str]:
    return text.startswith("from"), text.lower()


class _Names(ValuesOnly, cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def visit_Name(self, node: Any) -> None:
        self.found.add(node.value)


def _names(body: Sequence[Any]) -> set[str]:
    names = _Names()
    for statement in body:
        statement.visit(names)
    return names.found
