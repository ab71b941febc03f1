"""Names that code reads, binds and imports, and those of each function."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from typing import Any

from jaxfn.torch._translate.syntax import cst, dotted


class Targets:
    """Mixin that passes every target that code binds to `_store`."""

    def _store(self, target: Any) -> None:
        raise NotImplementedError

    def _store_target(self, node: Any) -> None:
        self._store(node.target)

    visit_AssignTarget = visit_AugAssign = visit_AnnAssign = _store_target
    visit_For = visit_CompFor = visit_NamedExpr = _store_target

    def visit_AsName(self, node: Any) -> None:
        self._store(node.name)


class NoImports:
    """Mixin that skips imports, whose names are no expressions."""

    def visit_Import(self, node: Any) -> bool:
        return False

    def visit_ImportFrom(self, node: Any) -> bool:
        return False


class ValuesOnly:
    """Mixin that skips names of attributes and keywords, which have no value."""

    def visit_Attribute(self, node: Any) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: Any) -> bool:
        node.value.visit(self)
        return False


class _Loads(ValuesOnly, cst.CSTVisitor):
    """The names that a piece of code reads."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[Any] = []
        self._stored: set[Any] = set()

    def _store(self, node: Any) -> None:
        self._stored.update(stored_nodes(node.target))

    visit_AssignTarget = visit_For = visit_CompFor = _store

    def visit_Annotation(self, node: Any) -> bool:
        return False

    def visit_Name(self, node: Any) -> None:
        if node not in self._stored:
            self.names.append(node)


def loads(*nodes: Any) -> list[Any]:
    """Return the names that nodes read, in order."""
    found = _Loads()
    for node in nodes:
        if node is not None:
            node.visit(found)
    return found.names


def names_read(*nodes: Any) -> set[str]:
    """Return the names that nodes read, as text."""
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

    def _definition(self, node: Any) -> bool:
        self._found.add(node.name.value)
        return False

    visit_FunctionDef = visit_ClassDef = _definition

    def visit_Lambda(self, node: Any) -> bool:
        return False

    def visit_Global(self, node: Any) -> None:
        self.elsewhere |= {item.name.value for item in node.names}

    def _store(self, target: Any) -> None:
        self._found.update(stored(target))


def stored_nodes(target: Any) -> list[Any]:
    """Return the names that a target binds, as nodes."""
    if isinstance(target, cst.Name):
        return [target]
    if isinstance(target, (cst.Tuple, cst.List)):
        return [n for e in target.elements for n in stored_nodes(e.value)]
    return stored_nodes(target.value) if isinstance(target, cst.StarredElement) else []


def stored(target: Any) -> list[str]:
    """Return the names that a target binds."""
    return [name.value for name in stored_nodes(target)]


def stored_names(nodes: Iterable[Any]) -> set[str]:
    """Return the names that nodes bind."""
    found: set[str] = set()
    for node in nodes:
        store_names(node, found)
    return found


def scope_statements(body: Any) -> Iterator[Any]:
    """Yield the statements of a block, and of inner blocks without a scope."""
    for statement in body:
        yield statement
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            continue
        for name in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(statement, name, None)
            for part in inner if isinstance(inner, (list, tuple)) else [inner]:
                if isinstance(part, cst.If):
                    yield from scope_statements([part])
                    continue
                whole = isinstance(part, cst.IndentedBlock)
                block: Any = part if whole else getattr(part, "body", None)
                if isinstance(block, cst.IndentedBlock):
                    yield from scope_statements(block.body)


def small_statements(statement: Any) -> Any:
    """Return the statements of a line."""
    return statement.body if isinstance(statement, cst.SimpleStatementLine) else ()


def bound_names(statement: Any) -> Iterator[str]:
    """Yield the names that a statement binds."""
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        yield statement.name.value
    elif isinstance(statement, cst.SimpleStatementLine):
        for small in statement.body:
            yield from _bound_by(small)


def _bound_by(small: Any) -> Iterator[str]:
    if isinstance(small, (cst.Import, cst.ImportFrom)):
        if not isinstance(small.names, cst.ImportStar):
            for alias in small.names:
                yield alias_name(alias)
    elif isinstance(small, cst.Assign):
        for target in small.targets:
            if isinstance(target.target, cst.Name):
                yield target.target.value
    elif isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name):
        yield small.target.value


def alias_name(alias: Any) -> str:
    """Return the name that a part of an import binds."""
    if alias.asname is not None:
        return alias.asname.name.value
    return (dotted(alias.name) or [""])[0]


def import_of(small: Any, name: str, package: str) -> tuple[str, str | None] | None:
    """Return the module, and the name in it, that an import binds to a name."""
    if isinstance(small, cst.Import):
        for alias in small.names:
            if alias_name(alias) == name:
                parts = dotted(alias.name) or []
                whole = alias.asname is not None
                return (".".join(parts) if whole else parts[0]), None
    if isinstance(small, cst.ImportFrom) and not isinstance(
        small.names, cst.ImportStar
    ):
        for alias in small.names:
            if alias_name(alias) == name:
                module = ".".join(dotted(small.module) or [] if small.module else [])
                level = "." * len(small.relative)
                if level:
                    module = importlib.util.resolve_name(level + module, package)
                return module, ".".join(dotted(alias.name) or [])
    return None


class NameUses:
    """The places at which a function reads a name, and the values that it binds.

    Attributes:
        loads: The places at which it is read.
        stores: How it is bound, and to what.
    """

    def __init__(self) -> None:
        self.loads: list[Any] = []
        self.stores: list[tuple[str, Any]] = []


class Scopes(ValuesOnly, cst.CSTVisitor):
    """The function around each node, and the names of each function."""

    def __init__(self) -> None:
        super().__init__()
        self.around: dict[Any, Any] = {}
        self.names: dict[Any, dict[str, NameUses]] = {}
        self._stack: list[Any] = []
        self._stored: set[Any] = set()

    def _use(self, name: str) -> NameUses:
        own = self.names.setdefault(self._stack[-1] if self._stack else None, {})
        return own.setdefault(name, NameUses())

    def on_visit(self, node: Any) -> bool:
        self.around[node] = self._stack[-1] if self._stack else None
        if isinstance(node, (cst.Annotation, cst.Decorator)):
            return False
        return super().on_visit(node)

    def visit_FunctionDef(self, node: Any) -> None:
        self._stack.append(node)
        for param in cst_params(node.params):
            self._use(param.name.value).stores.append(("param", param))

    def leave_FunctionDef(self, original_node: Any) -> None:
        self._stack.pop()

    def visit_Param(self, node: Any) -> bool:
        if node.default is not None:
            node.default.visit(self)
        return False

    def _bind(self, target: Any, value: Any, how: str = "value") -> None:
        self._stored.add(target)
        if isinstance(target, cst.Name):
            self._use(target.value).stores.append((how, value))
        elif isinstance(target, (cst.Tuple, cst.List)):
            values = getattr(value, "elements", ())
            same = len(values) == len(target.elements)
            for i, element in enumerate(target.elements):
                if isinstance(element, cst.StarredElement):
                    self._bind(element.value, value, "rest")
                elif same:
                    self._bind(element.value, values[i].value)
                else:
                    self._bind(element.value, value, "item")

    def visit_Assign(self, node: Any) -> None:
        for target in node.targets:
            self._bind(target.target, node.value)

    def visit_AugAssign(self, node: Any) -> None:
        # An augmented assignment also reads its target.
        for name in stored(node.target):
            self._use(name).loads.append(node.target)
        self._stored.add(node.target)

    def visit_AnnAssign(self, node: Any) -> None:
        if node.value is not None:
            self._bind(node.target, node.value)

    def _loop(self, node: Any) -> None:
        self._bind(node.target, node.iter, "other")

    visit_For = visit_CompFor = _loop

    def visit_NamedExpr(self, node: Any) -> None:
        self._bind(node.target, node.value)

    def visit_AsName(self, node: Any) -> None:
        self._bind(node.name, None, "other")

    def visit_Name(self, node: Any) -> None:
        if node not in self._stored:
            self._use(node.value).loads.append(node)


def cst_params(params: Any) -> list[Any]:
    """Return all parameters of a function, in order."""
    found = [*params.posonly_params, *params.params]
    if isinstance(params.star_arg, cst.Param):
        found.append(params.star_arg)
    found.extend(params.kwonly_params)
    if params.star_kwarg is not None:
        found.append(params.star_kwarg)
    return found


def local_names(function: Any) -> set[str]:
    """Return the names that a function binds, parameters included."""
    found = {p.name.value for p in cst_params(function.params)}
    store_names(function.body, found)
    return found


def members(definition: Any) -> dict[str, Any]:
    """Return the functions that a class defines, by name."""
    if not isinstance(definition, cst.ClassDef):
        return {}
    functions = [m for m in definition.body.body if isinstance(m, cst.FunctionDef)]
    return {function.name.value: function for function in functions}
