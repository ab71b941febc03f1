"""The translation, from classes to a file; and the file as a port to compare."""

from __future__ import annotations

import ast
import enum
import functools
import sys
import types
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn.torch._base import from_numpy, torch
from jaxfn.torch._compare import CompareReport, OriginalError, compare
from jaxfn.torch._translate.base import Untranslated
from jaxfn.torch._translate.files import SourceFile, SourceFiles
from jaxfn.torch._translate.observed import Observations
from jaxfn.torch._translate.rewriter import Rewriter
from jaxfn.torch._translate.runs import InstrumentedOriginal, run
from jaxfn.torch._translate.syntax import Unparen, codemod, cst, visitors
from jaxfn.torch._translate.units import Unit, collect, in_order

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


def translate(
    classes: Sequence[Any],
    args: Sequence[Any],
    *,
    whole: bool,
    progress: Progress | None = None,
) -> tuple[str, tuple[Untranslated, ...], Any]:
    """Return the source of a translation, what is left, and the comparison.

    Args:
        classes: Classes of one file.
        args: Arguments of the first one's apply; none to leave the comparison out.
        whole: Whether this is the whole file, whose docstring and other names stay.
        progress: Function that is called before each row of the comparison.
    """
    given = as_torch(args)
    library = SourceFiles()
    functions = [a for a in given if is_user_function(a)]
    roots = [*classes, *functions]
    aliases = library.of(classes[0])[0].aliases(classes) if whole else []
    units, facts = collect(library, roots, aliases), Observations()
    if args:
        facts = _learn(units, library, classes[0], given)
    source, left = _written(library, units, facts, classes, whole=whole)
    values = [unit.value for unit in units.values()]
    left.extend(_foreign(given, [v for v in values if isinstance(v, type)]))
    if not args:
        return source, tuple(left), None
    report = compared(source, classes[0], given, progress)
    return source, tuple(left), report


def _foreign(args: Sequence[Any], classes: Collection[type]) -> list[Untranslated]:
    """Return the arguments that compute in torch and are not translated."""
    reason = "an object that computes in PyTorch: pass one that computes in JAX"
    found = []
    for i, arg in enumerate(args):
        module = type(arg).__module__.split(".")[0]
        plain = module in ("builtins", "torch", "numpy", "scipy", "jax", "jaxlib")
        ours = isinstance(arg, tuple) or is_user_function(arg) or type(arg) in classes
        if isinstance(arg, torch.nn.Module) or (not plain and not ours):
            found.append(Untranslated(f"argument {i}", type(arg).__qualname__, reason))
    return found


def is_user_function(value: Any) -> bool:
    """Return whether it is a Python function, which may have source text."""
    return hasattr(value, "__code__") and hasattr(value, "__globals__")


def _learn(
    units: Any, library: SourceFiles, cls: Any, args: Sequence[Any]
) -> Observations:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about the original
        try:
            run(cls, args)
        except Exception as error:
            # After its first sentence, a message of torch may have a hundred lines.
            said = str(error).split("\n")[0].split(". ")[0]
            raise ValueError(
                f"`{cls.__name__}` itself fails on these arguments. Pass others. It "
                f"raised {type(error).__name__}: {said}"
            ) from error
        original = InstrumentedOriginal(units)
        by_value = {}
        for unit in units.values():
            if is_user_function(unit.value):
                by_value[id(unit.value)] = original.value(unit)
        source, path = library.of(cls)
        seen = original.value(units[source.name, path])
        given = [by_value.get(id(a), a) for a in args]
        run(seen, given, original.facts.writes)
        for more in ({"tracked": False}, {"twice": True}):
            with suppress(Exception):  # lines that nothing reaches are marked
                run(seen, given, original.facts.writes, **more)
        for inner, args in list(original.facts.writes.applied.items()):
            with suppress(Exception):
                run(inner, args, original.facts.writes)
    return original.facts


def _written(
    library: SourceFiles,
    units: Mapping[Any, Unit],
    facts: Observations,
    classes: Sequence[Any],
    *,
    whole: bool,
) -> tuple[str, list[Untranslated]]:
    left: list[Untranslated] = []
    parts: dict[Any, tuple[Unit, Sequence[Any]]] = {}
    main, _ = library.of(classes[0])
    for unit in units.values():
        rewriter = Rewriter(unit, units, facts)
        found = cst.Module([unit.node]).visit(rewriter)
        statements = [_named(unit, s) for s in found.body]
        parts[unit.key] = unit, statements
        left.extend(rewriter.left)
    return assembled(main, parts, whole=whole), left


def _named(unit: Unit, statement: Any) -> Any:
    is_def = isinstance(statement, (cst.FunctionDef, cst.ClassDef))
    if is_def and statement.name.value == unit.path[-1] != unit.name:
        return statement.with_changes(name=cst.Name(unit.name))
    return statement
