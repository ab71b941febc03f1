"""The definitions that a translation is made of, and the meaning of their names."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxfn.torch._base import experimental, torch
from jaxfn.torch._translate.files import Referent, SourceFile, SourceFiles, key_of
from jaxfn.torch._translate.names import Names
from jaxfn.torch._translate.syntax import code, cst

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
