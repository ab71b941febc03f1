"""Loaded files: their definitions, and the meaning of their names."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import inspect
import linecache
import re
import sys
import textwrap
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxfn.torch._base import torch
from jaxfn.torch._translate.names import (
    alias_name,
    bound_names,
    import_of,
    scope_statements,
    small_statements,
)
from jaxfn.torch._translate.syntax import cst, metadata

# LibCST needs a blank in `assert(x)`, because the parentheses may go.
_TIGHT = re.compile(r"(?m)\b(assert|return|if|while|not|and|or|in|is|else)\(")
_KEPT = {"numpy", "scipy", "jax", "jaxfn", "einops"}


@dataclasses.dataclass(frozen=True)
class Referent:
    """The meaning of a name.

    Attributes:
        kind: "torch", "unit" (a definition that can be carried over), "import"
            (available without torch), "value" (a number or the like in a closure),
            "builtin", or "lost" (can't be carried over).
        name: Full name in torch; the name to import or to bind.
        source: File that defines a unit.
        path: Names of a unit from the top of the file.
        value: The object.
    """

    kind: str
    name: str
    source: SourceFile | None = None
    path: tuple[str, ...] = ()
    value: Any = None


# To parse a package's big file takes a second: do it once for all of its classes.
@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> Any:
    return cst.parse_module(_TIGHT.sub(r"\1 (", text))


@functools.lru_cache(maxsize=16)
def _positions(tree: Any) -> Mapping[Any, Any]:
    wrapper = metadata.MetadataWrapper(tree, unsafe_skip_copy=True)
    return wrapper.resolve(metadata.PositionProvider)


class SourceFile:
    """A file: its tree, the names of its top level, and the module's namespace."""

    def __init__(self, name: str, namespace: Mapping[str, Any], text: str) -> None:
        self.name, self.namespace, self.text = name, namespace, text
        self.tree = _parsed(text)
        self.tops: dict[str, list[Any]] = {}
        for statement in scope_statements(self.tree.body):
            for bound in bound_names(statement):
                self.tops.setdefault(bound, []).append(statement)

    @property
    def file(self) -> str:
        """The name of the file, without its folders."""
        found = self.namespace.get("__file__")
        return Path(found).name if isinstance(found, str) else self.name

    def line(self, node: Any) -> int:
        """Return the line on which a node begins, 0 if it is not in the file."""
        found = _positions(self.tree)
        parts = (node, *node.children)
        return next((found[part].start.line for part in parts if part in found), 0)

    def definition(self, path: tuple[str, ...]) -> Any:
        """Return the last definition with these names, or None."""
        found: Any = None
        body: Any = self.tree.body
        for name in path:
            options = [s for s in scope_statements(body) if name in set(bound_names(s))]
            defs = [
                s for s in options if isinstance(s, (cst.FunctionDef, cst.ClassDef))
            ]
            if not options:
                return None
            found = (defs or options)[-1]
            body = getattr(getattr(found, "body", None), "body", ())
        return found

    def imports(self, name: str) -> tuple[str, str | None] | None:
        """Return the module, and the name in it, that an import binds to a name."""
        for statement in self.tops.get(name, ()):
            for small in small_statements(statement):
                found = import_of(small, name, self._package())
                if found is not None:
                    return found
        return None

    def statement(self, name: str) -> Any:
        """Return the import that binds a name, as a statement for it alone."""
        smalls = [s for top in self.tops.get(name, ()) for s in small_statements(top)]
        for small in sorted(smalls, key=lambda s: not self._has_run(s, name)):
            if import_of(small, name, self._package()) is not None:
                kept = [a for a in small.names if alias_name(a) == name]
                only = kept[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                changes: dict[str, Any] = {"names": [only]}
                if isinstance(small, cst.ImportFrom):
                    changes |= {"lpar": None, "rpar": None}
                return cst.SimpleStatementLine([small.with_changes(**changes)])
        return None

    def _has_run(self, small: Any, name: str) -> bool:
        """Return whether it is the import that has bound a name, of several."""
        module, inner = import_of(small, name, self._package()) or ("", None)
        found = getattr(sys.modules.get(module), inner or "", None)
        return inner is not None and found is self.namespace.get(name)

    def _package(self) -> str:
        found = self.namespace.get("__package__")
        return found if isinstance(found, str) else self.name.rpartition(".")[0]


class SourceFiles:
    """The files that a translation has read."""

    def __init__(self) -> None:
        self._sources: dict[str, SourceFile | None] = {}

    def module(self, name: str) -> SourceFile | None:
        """Return the source of a module that is loaded, or None."""
        if name not in self._sources:
            self._sources[name] = _read(sys.modules.get(name))
        return self._sources[name]

    def of(self, obj: Any) -> tuple[SourceFile, tuple[str, ...]]:
        """Return the source of a class, and its names there.

        Raises:
            ValueError: The class has no source text.
        """
        path = tuple(p for p in obj.__qualname__.split(".") if p != "<locals>")
        found = self.module(obj.__module__)
        if found is not None and found.definition(path) is not None:
            return found, path
        functions = [getattr(x, "__func__", x) for x in vars(obj).values()]
        functions = [f for f in functions if isinstance(f, types.FunctionType)]
        namespace = vars(sys.modules.get(obj.__module__, builtins))
        if functions:
            namespace = functions[-1].__globals__
        try:
            text = textwrap.dedent(inspect.getsource(obj))
        except (OSError, TypeError) as error:
            # Python can't find a notebook's class, but finds its functions' cells.
            for function in functions:
                cell = "".join(linecache.getlines(function.__code__.co_filename))
                source = SourceFile(obj.__module__, namespace, cell)
                if source.definition(path) is not None:
                    return source, path
            raise ValueError(
                f"`{obj.__qualname__}` has no source text. Pass a class that a file or "
                "a notebook defines."
            ) from error
        return SourceFile(obj.__module__, namespace, text), (obj.__name__,)

    def resolve(
        self, source: SourceFile, closure: Mapping[str, Any], parts: list[str]
    ) -> tuple[Referent, int]:
        """Return the meaning of dotted names, and how many of them it covers."""
        root = parts[0]
        if root in closure:
            return self._closed(source, root, closure[root]), 1
        if root not in source.namespace:
            if hasattr(builtins, root):
                return Referent("builtin", root, value=getattr(builtins, root)), 1
            found = self._of_import(source, root, parts)
            return found or (Referent("lost", root), 1)
        value, n, owner = source.namespace[root], 1, (source, root)
        if isinstance(value, types.ModuleType) and _is_kept(value.__name__):
            return Referent("import", root, source, value=value), 1
        full = _full_name(self, source, root)
        while n < len(parts) and isinstance(value, types.ModuleType):
            if not hasattr(value, parts[n]):
                break
            owner = (self.module(value.__name__), parts[n])
            full = f"{value.__name__}.{parts[n]}"
            value = getattr(value, parts[n])
            n += 1
        if full.split(".")[0] == "torch":
            if value is torch.Tensor and n < len(parts):  # a method, as a function
                full, value = f"{full}.{parts[n]}", getattr(value, parts[n], None)
                n += 1
            return Referent("torch", full, value=value), n
        return self._defined(source, full, value, n, owner, parts)

    def _of_import(
        self, source: SourceFile, root: str, parts: list[str]
    ) -> tuple[Referent, int] | None:
        """Return the meaning of a name that only type checkers import."""
        imported = source.imports(root)
        if imported is None:
            return None
        module, name = imported
        full = module if name is None else f"{module}.{name}"
        if full.split(".")[0] == "torch":
            return Referent("torch", ".".join([full, *parts[1:]])), len(parts)
        return (Referent("import", root, source), 1) if _is_kept(module) else None

    def _closed(self, source: SourceFile, name: str, value: Any) -> Referent:
        if not isinstance(value, (types.FunctionType, type)):
            return Referent("value", name, source, value=value)
        try:
            owner, path = self.of(value)
        except ValueError:
            return Referent("lost", name, value=value)
        return Referent("unit", path[-1], owner, path, value)

    def _defined(
        self,
        source: SourceFile,
        full: str,
        value: Any,
        n: int,
        owner: tuple[SourceFile | None, str],
        parts: list[str],
    ) -> tuple[Referent, int]:
        """Follow imports to the file that defines a name."""
        place, name = owner
        kept = Referent("import", parts[0], source, value=value), 1
        for _ in range(20):
            imported = None if place is None else place.imports(name)
            if imported is None:
                break
            module, inner = imported
            if _is_kept(module):
                return kept
            if inner is None:
                break
            place, name = self.module(module), inner
        if isinstance(value, types.ModuleType):
            lost = Referent("lost", parts[0], source, value=value), 1
            return kept if _is_kept(value.__name__) else lost
        if place is not None and _is_kept(place.name):
            return kept
        if place is None or place.definition((name,)) is None:
            return Referent("lost", full, value=value), n
        path: tuple[str, ...] = (name,)
        if isinstance(value, type) and issubclass(value, torch.nn.Module):
            # A module itself can't be carried over, only its members.
            if n >= len(parts) or place.definition((name, parts[n])) is None:
                return Referent("lost", full, value=value), n
            path, value, n = (name, parts[n]), getattr(value, parts[n]), n + 1
        return Referent("unit", path[-1], place, path, value), n


def _full_name(library: SourceFiles, source: SourceFile, name: str) -> str:
    """Return the name that imports give: "torch.nn.functional" for `F`."""
    place: SourceFile | None = source
    for _ in range(20):
        imported = None if place is None else place.imports(name)
        if imported is None:
            break
        module, inner = imported
        if inner is None:
            return module
        full = f"{module}.{inner}"
        if full in sys.modules or module.split(".")[0] == "torch":
            return full
        place, name = library.module(module), inner
    return f"{place.name if place else ''}.{name}"


def _is_kept(module: str) -> bool:
    top = module.split(".")[0]
    return top in sys.stdlib_module_names or top in _KEPT


def _read(module: Any) -> SourceFile | None:
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py"):
        return None
    try:
        text = Path(file).read_text(encoding="utf-8")
        return SourceFile(module.__name__, vars(module), text)
    except (OSError, UnicodeDecodeError, cst.ParserSyntaxError):
        return None


def key_of(target: Referent) -> Any:
    """Return the key of the unit that a name means."""
    assert target.source is not None
    return target.source.name, target.path


def literal(value: Any) -> str | None:
    """Return the text of a constant, or None if it is none."""
    text = repr(value)
    try:
        return text if ast.literal_eval(text) == value else None
    except (ValueError, SyntaxError):
        return None
