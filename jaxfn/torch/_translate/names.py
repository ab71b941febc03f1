"""The names of a definition: where each is read and bound, and in which scope."""

from __future__ import annotations

from typing import Any

from jaxfn.torch._translate.syntax import cst, metadata

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
