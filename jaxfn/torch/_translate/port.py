"""The file of a translation, and the file as a port that `compare` can call."""

from __future__ import annotations

import ast
import enum
import functools
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn.torch._base import from_numpy, torch
from jaxfn.torch._compare import CompareReport, OriginalError, compare
from jaxfn.torch._translate.files import SourceFile
from jaxfn.torch._translate.syntax import Unparen, codemod, cst, visitors
from jaxfn.torch._translate.units import Unit, in_order

_OURS = {
    "jax": ("jax",),
    "jnp": ("jax.numpy", None, "jnp"),
    "jaxfn": ("jaxfn",),
}


def assembled(
    main: SourceFile,
    parts: Mapping[Any, tuple[Unit, Sequence[Any]]],
    *,
    whole: bool,
) -> str:
    """Return the text of the translation."""
    body: list[Any] = []
    units = [unit for unit, _ in parts.values()]
    # In the order of the file, if nothing else is needed before.
    units.sort(key=lambda u: (u.source.name == main.name, u.source.name, u.place))
    for unit in in_order({unit.key: unit for unit in units}):
        for statement in parts[unit.key][1]:
            before = body[-1] if body else None
            body.append(_spaced(statement, before, whole=whole))
    body = [statement.visit(Unparen()) for statement in body]
    text = cst.Module(body).code
    used = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
    head = _docstring(main) if whole else []
    tree = cst.Module(body=[*head, *body], header=_header(main))
    tree = _with_imports(tree, units, used)
    return tree.code.lstrip("\n")


def _header(main: SourceFile) -> list[Any]:
    """Return the comments at the top, which may be a licence."""
    header = list(main.tree.header)
    while header and header[-1].comment is None:
        header.pop()
    texts = {x: x.comment.value if x.comment else "" for x in header}
    kept = [x for x, text in texts.items() if not text.startswith(("#!", "# -*-"))]
    return [*kept, cst.EmptyLine(indent=False)] if kept else []


def _docstring(main: SourceFile) -> list[Any]:
    if main.tree.get_docstring() is None:
        return []
    return [main.tree.body[0].with_changes(leading_lines=[])]


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


def _with_imports(tree: Any, units: Sequence[Unit], used: set[str]) -> Any:
    """Return the file with the imports that it uses."""
    context = codemod.CodemodContext()

    def add(module: str, name: str | None = None, alias: str | None = None) -> None:
        visitors.AddImportsVisitor.add_needed_import(context, module, name, alias)

    for name in used & {*_OURS}:
        add(*_OURS[name])
    for unit in units:
        for target in unit.references.values():
            name = target.name if target.kind == "import" else ""
            found = unit.source.import_of(name)
            if found is not None and name in used and name not in _OURS:
                add(found.module, found.inner, found.alias)
    return visitors.AddImportsVisitor(context).transform_module(tree)


Progress = Callable[[int, int, str], None]


def as_torch(args: Sequence[Any]) -> list[Any]:
    """Return the arguments, with tensors in place of arrays."""
    return [
        from_numpy(np.asarray(x)) if isinstance(x, (jax.Array, np.ndarray)) else x
        for x in args
    ]


def load(source: str) -> Any:
    """Return the translation as a module."""
    module = types.ModuleType("__jaxfn_translation__")
    # Dataclasses look up their module when they are defined.
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, f"<{module.__name__}>", "exec"), vars(module))
    finally:
        del sys.modules[module.__name__]
    return module


def compared(
    source: str, cls: Any, args: Sequence[Any], progress: Progress | None = None
) -> CompareReport:
    """Compare a translation with the class that it was made from.

    Raises:
        ValueError: PyTorch's class raises on these arguments.
    """
    try:
        return compare(_port(source, cls), cls, *args, progress=progress)
    except OriginalError as error:
        raise ValueError(str(error)) from error


def _port(source: str, cls: Any) -> Callable[..., Any]:
    """Return the translated class as a function of the original's arguments."""

    @functools.cache
    def module() -> Any:
        return load(source)  # at the first call: a row reports its errors

    def port(*args: Any) -> Any:
        given = [_as_jax(x, module()) for x in args]
        return getattr(module(), cls.__name__).apply(*given)

    port.__qualname__ = cls.__name__
    return port


def _as_jax(x: Any, module: Any) -> Any:
    """Return the translation's version of an argument."""
    if hasattr(x, "__code__"):
        return getattr(module, x.__name__, x)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        made = getattr(module, type(x).__name__, type(x))
        return made(*[_as_jax(y, module) for y in x])
    if isinstance(x, torch.Size):
        return tuple(x)
    if type(x) in (tuple, list):
        return type(x)([_as_jax(y, module) for y in x])
    if isinstance(x, enum.Enum) and hasattr(module, type(x).__name__):
        return getattr(module, type(x).__name__)[x.name]
    if isinstance(x, torch.dtype):
        return jnp.dtype(str(x).removeprefix("torch."))
    return x
