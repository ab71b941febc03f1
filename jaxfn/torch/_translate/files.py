"""Loaded files: their definitions, and the meaning of their names."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import importlib.util
import inspect
import linecache
import re
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxfn.torch._base import torch
from jaxfn.torch._translate.syntax import cst, metadata

# LibCST needs a blank in `assert(x)`, because the parentheses may go.
_TIGHT = re.compile(r"(?m)\b(assert|return|if|while|not|and|or|in|is|else)\(")
_DEFS = (cst.FunctionDef, cst.ClassDef)
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


@dataclasses.dataclass(frozen=True)
class Import:
    """A name that an import binds.

    Attributes:
        module: The module.
        inner: The name in the module; None if the module itself is bound.
        alias: The name after `as`.
    """

    module: str
    inner: str | None
    alias: str | None

    @property
    def name(self) -> str:
        """The name that it binds."""
        return self.alias or self.inner or self.module.split(".")[0]

    @property
    def full(self) -> str:
        """The full name of what it binds."""
        if self.inner is not None:
            return f"{self.module}.{self.inner}"
        return self.module if self.alias is not None else self.name


@functools.lru_cache(maxsize=16)
def _imports(text: str, package: str) -> list[tuple[Import, bool]]:
    """Return the imports of a file, and whether each is one of a function."""
    found = []
    tree = ast.parse(text)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    inner = {n for function in functions for n in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            new = [Import(a.name, None, a.asname) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            try:
                module = importlib.util.resolve_name(module, package)
            except ImportError:  # it would fail there too
                continue
            new = [Import(module, a.name, a.asname) for a in node.names]
        else:
            continue
        found += [(each, node in inner) for each in new]
    return found


class SourceFile:
    """A file: its tree, its imports, and the module's namespace."""

    def __init__(self, name: str, namespace: Mapping[str, Any], text: str) -> None:
        self.name, self.namespace = name, namespace
        self.tree = _parsed(text)
        package = namespace.get("__package__")
        package = package if isinstance(package, str) else name.rpartition(".")[0]
        self._imports: dict[str, list[Import]] = {}
        for found, is_inner in _imports(text, package):
            # Only the top of a file binds the names of the module.
            if not (is_inner and found.name in namespace):
                self._imports.setdefault(found.name, []).append(found)

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
        body: Any = self.tree
        for name in path:
            options = [s for s in _statements(body) if name in _bound_by(s)]
            defs = [s for s in options if isinstance(s, _DEFS)]
            if not options:
                return None
            found = (defs or options)[-1]
            body = found.body if isinstance(found, _DEFS) else found
        return found

    def aliases(self, classes: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return other names of classes of it: `square = Square.apply`."""
        owners = {n: getattr(x, "__self__", None) for n, x in self.namespace.items()}
        names = [n for n, owner in owners.items() if any(owner is c for c in classes)]
        return [(self, (n,), self.namespace[n]) for n in names]

    def import_of(self, name: str) -> Import | None:
        """Return the import that binds a name; of several, the one that has run."""
        found = self._imports.get(name, [])
        return next(iter([*filter(self._has_run, found), *found]), None)

    def _has_run(self, found: Import) -> bool:
        value = getattr(sys.modules.get(found.module), found.inner or "", None)
        return found.inner is not None and value is self.namespace.get(found.name)


def _statements(node: Any) -> Iterator[Any]:
    """Yield the statements of a block, and of inner blocks without a scope."""
    for child in node.children:
        if isinstance(child, (cst.SimpleStatementLine, *_DEFS)):
            yield child
        elif not isinstance(child, cst.BaseExpression):
            yield from _statements(child)


def _bound_by(statement: Any) -> list[str]:
    """Return the names that a definition, or an assignment to names, binds."""
    if isinstance(statement, _DEFS):
        return [statement.name.value]
    targets = []
    for small in statement.body:
        if isinstance(small, cst.Assign):
            targets += [target.target for target in small.targets]
        elif isinstance(small, cst.AnnAssign):
            targets.append(small.target)
    return [target.value for target in targets if isinstance(target, cst.Name)]


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
            return self._of_import(source, parts)
        value, n = source.namespace[root], 1
        if isinstance(value, types.ModuleType) and _is_kept(value.__name__):
            return Referent("import", root, source, value=value), 1
        place, full = self._followed(source, f"{source.name}.{root}")
        while n < len(parts) and isinstance(value, types.ModuleType):
            if not hasattr(value, parts[n]):
                break
            full, is_torchs = f"{value.__name__}.{parts[n]}", _is_torch(value.__name__)
            owner = None if is_torchs else self.module(value.__name__)
            place, full = self._followed(owner, full)
            value = getattr(value, parts[n])
            n += 1
        if _is_torch(full):
            if value is torch.Tensor and n < len(parts):  # a method, as a function
                full, value = f"{full}.{parts[n]}", getattr(value, parts[n], None)
                n += 1
            return Referent("torch", full, value=value), n
        is_module = isinstance(value, types.ModuleType)
        if _is_kept(value.__name__ if is_module else full):
            return Referent("import", root, source, value=value), 1
        if is_module:
            return Referent("lost", root, source, value=value), 1
        return self._defined(place, full, value, n, parts)

    def _of_import(self, source: SourceFile, parts: list[str]) -> tuple[Referent, int]:
        """Return the meaning of a name that only type checkers import."""
        found = source.import_of(parts[0])
        if found is not None and _is_torch(found.full):
            return Referent("torch", ".".join([found.full, *parts[1:]])), len(parts)
        is_kept = found is not None and _is_kept(found.module)
        return Referent("import" if is_kept else "lost", parts[0], source), 1

    def _followed(
        self, place: SourceFile | None, full: str
    ) -> tuple[SourceFile | None, str]:
        """Return the file that defines a name of a file, and its full name."""
        for _ in range(20):
            name = full.rpartition(".")[2]
            found = None if place is None else place.import_of(name)
            if found is None:
                break
            full = found.full
            outside = found.inner is None or _is_torch(full) or _is_kept(full)
            place = None if outside else self.module(found.module)
        return place, full

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
        place: SourceFile | None,
        full: str,
        value: Any,
        n: int,
        parts: list[str],
    ) -> tuple[Referent, int]:
        """Return the definition that a name means, or a member of a module."""
        path: tuple[str, ...] = (full.rpartition(".")[2],)
        if isinstance(value, type) and issubclass(value, torch.nn.Module):
            # A module itself can't be carried over, only its members.
            if n >= len(parts):
                return Referent("lost", full, value=value), n
            path, value, n = (*path, parts[n]), getattr(value, parts[n], None), n + 1
        if place is None or place.definition(path) is None:
            return Referent("lost", full, value=value), n
        return Referent("unit", path[-1], place, path, value), n


def _is_torch(name: str) -> bool:
    return name.split(".")[0] == "torch"


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
