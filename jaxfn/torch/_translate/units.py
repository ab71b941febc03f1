"""The definitions that a translation is made of, and the names in them.

A name is read and bound in a scope; a unit knows where, and what names of the module
mean.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxfn.torch._base import experimental, torch
from jaxfn.torch._translate.files import Referent, SourceFile, SourceFiles, key_of
from jaxfn.torch._translate.syntax import code, cst, metadata

_LOAD, _STORE = metadata.ExpressionContext.LOAD, metadata.ExpressionContext.STORE
_NAMELESS = (cst.Import, cst.ImportFrom, cst.Global, cst.Nonlocal)
_ASIDE = (cst.Annotation, cst.Decorator)
_TOPS = (metadata.GlobalScope, metadata.BuiltinScope)


def is_for_onnx(node: Any) -> bool:
    """Return whether it is a rule for ONNX, which JAX has no use for."""
    return isinstance(node, cst.FunctionDef) and node.name.value == "symbolic"


class Names(cst.CSTVisitor):
    """The names of a tree.

    Attributes:
        parents: The node around each node.
        all: All names, in order, without those of imports, attributes and keywords.
        aside: The names in annotations and decorators, which are never read.
    """

    def __init__(self, tree: Any) -> None:
        super().__init__()
        module = cst.Module([tree])
        wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
        self.parents = wrapper.resolve(metadata.ParentNodeProvider)
        self._contexts = wrapper.resolve(metadata.ExpressionContextProvider)
        self._scopes = wrapper.resolve(metadata.ScopeProvider)
        self.all: list[Any] = []
        self.aside: set[Any] = set()
        self._asides = 0
        self._starts: dict[Any, int] = {}
        self._ends: dict[Any, int] = {}
        module.visit(self)
        self._found = {*self.all}

    def on_visit(self, node: Any) -> bool:
        self._starts[node] = len(self.all)
        self._asides += isinstance(node, _ASIDE)
        around: Any = self.parents.get(node)
        is_keyword = isinstance(around, cst.Arg) and around.keyword is node
        if isinstance(node, cst.Name) and node in self._contexts and not is_keyword:
            self.all.append(node)
            if self._asides:
                self.aside.add(node)
        return not (isinstance(node, _NAMELESS) or is_for_onnx(node))

    def on_leave(self, original_node: Any) -> None:
        self._asides -= isinstance(original_node, _ASIDE)
        self._ends[original_node] = len(self.all)

    def _between(self, start: int, end: int) -> list[Any]:
        augmented = cst.AugAssign  # it reads its target too
        return [
            name
            for name in self.all[start:end]
            if self.is_read(name) or isinstance(self.parents.get(name), augmented)
        ]

    def is_read(self, node: Any) -> bool:
        """Return whether an expression has a value: it is no target and no keyword."""
        is_other = isinstance(node, cst.Name) and node not in self._found
        if is_other or node in self.aside:
            return False
        return self._contexts.get(node, _LOAD) is _LOAD

    def reads(self, *nodes: Any) -> list[Any]:
        """Return the names that nodes read, in order."""
        spans = [(self._starts.get(n, 0), self._ends.get(n, 0)) for n in nodes]
        return [name for span in spans for name in self._between(*span)]

    def reads_after(self, node: Any, function: Any) -> list[Any]:
        """Return the names that the rest of a function reads."""
        return self._between(self._ends[node], self._ends[function])

    def stores(self, *nodes: Any) -> set[str]:
        """Return the names that nodes bind, without those of inner functions."""
        return {
            name.value
            for node in nodes
            for name in self.all[self._starts[node] : self._ends[node]]
            if self._contexts[name] is _STORE
            and self._scopes.get(name) is self._scopes.get(node)
        }

    def bound(self, function: Any) -> set[str]:
        """Return the names that a function binds, parameters included."""
        return {a.name for a in self._scopes[function.body].assignments}

    def bindings(self, name: Any) -> list[Any]:
        """Return the nodes that bind a name, or none if no function does."""
        scope = self._scopes.get(name)
        found = () if scope is None else scope[name.value]
        local = [a for a in found if not isinstance(a.scope, _TOPS)]
        imports = metadata.ImportAssignment  # as if they stood at the top of the file
        nodes = [a.node for a in local if not isinstance(a, imports)]
        return [n for n in nodes if not isinstance(self.parents[n], cst.AugAssign)]

    def uses(self, name: Any) -> list[Any]:
        """Return the names that read the same variable."""
        bound = {*self.bindings(name)}
        same = [other for other in self.all if other.value == name.value]
        return [n for n in same if self.is_read(n) and bound & {*self.bindings(n)}]

    def function(self, node: Any) -> Any:
        """Return the function around a node, or None."""
        while node is not None and not isinstance(node, cst.FunctionDef):
            node = self.parents.get(node)
        return node

    def value(self, binding: Any) -> tuple[str, Any]:
        """Return how a node binds a name, and to what.

        "param" and the parameter, "value" and the expression, "item" and the expression
        that is unpacked, or "other".
        """
        if isinstance(binding, cst.Param):
            return "param", binding
        target: Any = self.parents.get(binding)
        places = []
        while isinstance(target, (cst.Element, cst.Tuple, cst.List)):
            if isinstance(target, cst.Element):
                places.append((self.parents[target], target))
            target = self.parents.get(target)
        if isinstance(target, cst.AssignTarget):
            target = self.parents[target]
        if not isinstance(target, (cst.Assign, cst.AnnAssign, cst.NamedExpr)):
            return "other", None
        value = target.value
        for group, element in reversed(places):
            values: Any = getattr(value, "elements", ())
            if len(values) != len(group.elements):
                return "item", value
            value = values[group.elements.index(element)].value
        return ("value", value) if value is not None else ("other", None)


def cst_params(params: Any) -> list[Any]:
    """Return all parameters of a function, in order."""
    found = [*params.posonly_params, *params.params]
    if isinstance(params.star_arg, cst.Param):
        found.append(params.star_arg)
    found.extend(params.kwonly_params)
    if params.star_kwarg is not None:
        found.append(params.star_kwarg)
    return found


_MOST = 60  # definitions of a translation; more are a package, not a Function


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
    uses: list[tuple[str, tuple[str, ...]]] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def names(self) -> Names:
        """The names in its tree."""
        return Names(self.node)

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
        lines = self.node.body if is_filled else ()
        return any(code(line).endswith(("= {}", "= []")) for line in lines)

    @property
    def place(self) -> int:
        """The line in its file."""
        return self.source.line(self.source.definition(self.path))


def collect(
    library: SourceFiles, roots: list[Any], more: Sequence[tuple[Any, ...]] = ()
) -> dict[Any, Unit]:
    """Return the units of these classes, and of all that they use.

    `more` are other definitions: the file, the names in it, and the object.

    Raises:
        ValueError: One of them is a Triton kernel.
    """
    units: dict[Any, Unit] = {}
    left: list[Any] = [*((*library.of(root), root) for root in roots), *more]
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
        found = _refer(library, unit)
        unit.uses = [key_of(target) for target in found]
        left += [(t.source, t.path, t.value) for t in found]
    _rename(list(units.values()))
    return units


def in_order(units: Mapping[Any, Unit]) -> list[Unit]:
    """Sort the units: what a definition needs comes first, unless in a circle."""
    found: dict[Any, Unit] = {}

    def add(key: Any, path: tuple[Any, ...]) -> None:
        if key in found or key in path or key not in units:
            return
        for other in units[key].uses:
            add(other, (*path, key))
        found[key] = units[key]

    for key in units:
        add(key, ())
    return list(found.values())


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


def _refer(library: SourceFiles, unit: Unit) -> list[Referent]:
    """Note the meaning of each name that is not local, and return the units."""
    names, own, used = unit.names, unit.names.stores(unit.node), []
    for name in names.all:
        if names.bindings(name) or name is getattr(unit.node, "name", None):
            continue
        chain, parts = [name], [name.value]
        while isinstance(around := names.parents.get(chain[-1]), cst.Attribute):
            chain.append(around)
            parts.append(around.attr.value)
        target, n = library.resolve(unit.source, unit.closure, parts)
        if target.kind == "lost" and name.value in own:
            continue
        unit.references[chain[n - 1]] = target
        if target.kind == "unit" and name not in names.aside:
            used.append(target)
    return used
