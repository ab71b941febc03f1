"""The definitions that a translation is made of, and the meaning of their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from jaxfn.torch._base import experimental, torch
from jaxfn.torch._translate.files import Referent, SourceFile, SourceFiles, key_of
from jaxfn.torch._translate.names import (
    NoImports,
    ValuesOnly,
    alias_name,
    cst_params,
    local_names,
    small_statements,
    stored_names,
)
from jaxfn.torch._translate.syntax import code, cst, dotted

_MOST = 60  # definitions of a translation; more are a package, not a Function


def is_for_onnx(node: Any) -> bool:
    """Return whether it is a rule for ONNX, which JAX has no use for."""
    return isinstance(node, cst.FunctionDef) and node.name.value == "symbolic"


@dataclasses.dataclass
class Unit:
    """A class, function or constant that is carried over.

    Attributes:
        source: File that defines it.
        path: Its names from the top of the file.
        node: Its tree.
        value: The object in torch.
        name: Its name in the translation.
        references: Meaning of each name in it that it does not bind itself.
        uses: Keys of the units that it uses.
    """

    source: SourceFile
    path: tuple[str, ...]
    node: Any
    value: Any
    name: str
    closure: dict[str, Any]
    references: dict[Any, Referent] = dataclasses.field(default_factory=dict)
    aside: set[Any] = dataclasses.field(default_factory=set)
    uses: list[tuple[str, tuple[str, ...]]] = dataclasses.field(default_factory=list)

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        """The key of this unit."""
        return self.source.name, self.path

    @property
    def is_function_class(self) -> bool:
        """Return whether it is a torch.autograd.Function."""
        cls = self.value
        return isinstance(cls, type) and issubclass(cls, torch.autograd.Function)

    @property
    def is_registry(self) -> bool:
        """Return whether it is made empty, and the module fills it later."""
        is_filled = isinstance(self.value, (dict, list)) and bool(self.value)
        lines = small_statements(self.node) if is_filled else ()
        return any(code(line).endswith(("= {}", "= []")) for line in lines)

    def line(self, node: Any) -> int:
        """Return the line of a statement in its file."""
        return self.source.line(node)

    def units(self) -> Iterator[Referent]:
        """Yield the units that its code refers to."""
        for node, target in self.references.items():
            if target.kind == "unit" and node not in self.aside:
                yield target


def collect(library: SourceFiles, roots: list[Any]) -> dict[Any, Unit]:
    """Return the units of these classes, and of all that they use.

    Raises:
        ValueError: One of them is a Triton kernel.
    """
    units: dict[Any, Unit] = {}
    left: list[Any] = [(*library.of(root), root) for root in roots]
    while left and len(units) < _MOST:
        source, path, value = left.pop(0)
        if (source.name, path) in units:
            continue
        if experimental.is_kernel(value):
            raise ValueError(
                f"`{path[-1]}` is a Triton kernel, which translate can't rewrite. Run "
                "the class unmodified with jaxfn.torch.from_torch, or write the port "
                "by hand, with jaxfn.triton_call for the kernel."
            )
        unit = _unit(source, path, value)
        if unit is None:
            continue
        units[unit.key] = unit
        unit.node.visit(_References(library, unit))
        unit.uses = [key_of(target) for target in unit.units()]
        left += [(t.source, t.path, t.value) for t in unit.units()]
    _rename(list(units.values()))
    return units


def _unit(source: SourceFile, path: tuple[str, ...], value: Any) -> Unit | None:
    node = source.definition(path)
    if node is None:
        return None
    if len(path) > 1 and isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        node = _lifted(node)
    name = path[len(path) - 1]
    return Unit(source, path, node, value, name, _closure(value))


def _lifted(node: Any) -> Any:
    """Return a member of a class as a function, or class, of its own."""
    names = {d: code(d.decorator) for d in node.decorators}
    dropped = ("staticmethod", "classmethod")
    kept = [d for d, name in names.items() if name not in dropped]
    node = node.with_changes(decorators=kept)
    if "classmethod" in names.values() and isinstance(node, cst.FunctionDef):
        params = node.params.params
        return node.with_changes(params=node.params.with_changes(params=params[1:]))
    return node


def _rename(units: list[Unit]) -> None:
    """Put the file's name before the name of a unit that another one has too."""
    for unit in units:
        same = [u for u in units if u.path[-1] == unit.path[-1]]
        if len(same) > 1 and unit is not same[0]:
            unit.name = f"{unit.source.name.rpartition('.')[2]}_{unit.path[-1]}"


def _closure(value: Any) -> dict[str, Any]:
    """Return what a function, or the functions of a class, close over."""
    found: dict[str, Any] = {}
    members = vars(value).values() if isinstance(value, type) else [value]
    for member in members:
        function = getattr(member, "__func__", member)
        code = getattr(function, "__code__", None)
        cells = getattr(function, "__closure__", None) or ()
        for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False):
            try:
                found[name] = cell.cell_contents
            except ValueError:
                continue
    found.pop("__class__", None)
    return found


class _References(NoImports, ValuesOnly, cst.CSTVisitor):
    """A visitor that finds the meaning of each name that is not local."""

    def __init__(self, library: SourceFiles, unit: Unit) -> None:
        super().__init__()
        self._library, self._unit = library, unit
        self._scopes: list[set[str]] = []
        self._aside = 0

    # ---- scopes

    def visit_FunctionDef(self, node: Any) -> bool:
        if is_for_onnx(node):
            return False
        for decorator in node.decorators:
            decorator.visit(self)
        for inner in node.body.body if isinstance(node.body, cst.IndentedBlock) else ():
            _note_imports(inner, self._unit.source)
        for param in cst_params(node.params):
            if param.default is not None:
                param.default.visit(self)
        self._scopes.append(local_names(node))
        node.params.visit(self)
        if node.returns is not None:
            node.returns.visit(self)
        node.body.visit(self)
        self._scopes.pop()
        return False

    def visit_Lambda(self, node: Any) -> None:
        self._scopes.append({p.name.value for p in cst_params(node.params)})

    def leave_Lambda(self, original_node: Any) -> None:
        self._scopes.pop()

    def _enter(self, node: Any) -> None:
        self._aside += 1

    def _leave(self, original_node: Any) -> None:
        self._aside -= 1

    visit_Decorator = visit_Annotation = _enter
    leave_Decorator = leave_Annotation = _leave

    # ---- names

    def visit_Param(self, node: Any) -> bool:
        if node.annotation is not None:
            node.annotation.visit(self)
        return False

    def visit_Global(self, node: Any) -> bool:
        return False

    def visit_ClassDef(self, node: Any) -> bool:
        for part in (*node.decorators, *node.bases, *node.keywords, node.body):
            part.visit(self)
        return False

    def visit_Attribute(self, node: Any) -> bool:
        parts = dotted(node)
        if parts is None:
            node.value.visit(self)
        else:
            self._refer(node, parts)
        return False

    def visit_Name(self, node: Any) -> None:
        self._refer(node, [node.value])

    def visit_SimpleStatementLine(self, node: Any) -> None:
        _note_imports(node, self._unit.source)

    def _refer(self, node: Any, parts: list[str]) -> None:
        if any(parts[0] in scope for scope in self._scopes):
            return
        unit = self._unit
        target, n = self._library.resolve(unit.source, unit.closure, parts)
        for _ in range(len(parts) - n):
            node = node.value
        if target.kind == "lost" and self._is_own(parts[0]):
            return
        unit.references[node] = target
        if self._aside:
            unit.aside.add(node)

    def _is_own(self, name: str) -> bool:
        node = self._unit.node
        own = [node] if isinstance(node, cst.SimpleStatementLine) else []
        own = [node.body] if isinstance(node, cst.ClassDef) else own
        return name == self._unit.path[-1] or name in stored_names(own)


def _note_imports(statement: Any, source: SourceFile) -> None:
    """Treat imports in a function as if they stood at the top."""
    for small in small_statements(statement):
        is_import = isinstance(small, (cst.Import, cst.ImportFrom))
        if is_import and not isinstance(small.names, cst.ImportStar):
            for alias in small.names:
                source.tops.setdefault(alias_name(alias), []).append(statement)
