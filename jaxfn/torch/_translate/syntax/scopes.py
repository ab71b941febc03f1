"""The names that each function reads and binds."""

from __future__ import annotations

from typing import Any

from jaxfn.torch._translate.syntax.expressions import cst
from jaxfn.torch._translate.syntax.names import ValuesOnly, store_names, stored


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
