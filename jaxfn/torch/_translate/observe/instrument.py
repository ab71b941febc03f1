"""The instrumented text of the original: every expression reports its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxfn.torch._translate.observe.observations import Observations
from jaxfn.torch._translate.source import Unit, is_for_onnx, key_of
from jaxfn.torch._translate.syntax import NoImports, Targets, cst, dotted

# These look at their caller's frame, so nothing may wrap them.
_FRAMES = {"super", "locals", "globals", "vars", "dir", "eval", "exec"}
_SEEN = (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.BinaryOperation)
_SEEN += (cst.UnaryOperation, cst.Comparison, cst.IfExp, cst.Tuple, cst.List)

_OWN_NAMES = {
    cst.FunctionDef: ("name",),
    cst.ClassDef: ("name",),
    cst.Param: ("name",),
    cst.Arg: ("keyword",),
    cst.Attribute: ("attr",),
    cst.Call: ("func",),
}


class Instrument(Targets, NoImports, cst.CSTTransformer):
    """A transformer that wraps every expression in a call of `see`."""

    def __init__(
        self, facts: Observations, unit: Unit, names: Mapping[Any, str]
    ) -> None:
        super().__init__()
        self._facts, self._unit, self._names = facts, unit, names
        self._skip: set[Any] = set()
        self._called: set[Any] = set()

    # ---- nodes that are not wrapped

    def _store(self, target: Any) -> None:
        self._skip.add(target)
        for element in getattr(target, "elements", ()):
            self._store(element.value)
        if isinstance(target, cst.StarredElement):
            self._store(target.value)

    def visit_Del(self, node: Any) -> None:
        self._store(node.target)

    def visit_FunctionDef(self, node: Any) -> bool:
        return not is_for_onnx(node)

    def visit_ClassDef(self, node: Any) -> None:
        self._skip.update(base.value for base in node.bases)

    def on_visit(self, node: Any) -> bool:
        for name in _OWN_NAMES.get(type(node), ()):
            self._skip.add(getattr(node, name))
        return super().on_visit(node)

    def visit_Call(self, node: Any) -> None:
        self._called.add(node.func)

    def _pass_over(self, node: Any) -> bool:
        return False

    visit_Decorator = visit_Annotation = visit_Global = visit_Nonlocal = _pass_over

    # ---- nodes that are

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = super().on_leave(original_node, updated_node)
        if isinstance(original_node, cst.FunctionDef):
            kept = [d for d in updated.decorators if self._stays(d)]
            return updated.with_changes(decorators=kept)
        if not isinstance(original_node, _SEEN):
            return updated
        target = self._unit.references.get(original_node)
        is_own = isinstance(original_node, cst.Name) and original_node in self._skip
        called = original_node in self._called
        if target is not None and target.kind == "unit" and (called or not is_own):
            updated = cst.Name(self._names[key_of(target)])
        if isinstance(original_node, cst.Call):
            updated = self._watched(original_node, updated)
        if original_node in self._skip:
            return updated
        return self._call("__see__", original_node, updated)

    def _call(self, name: str, node: Any, value: Any) -> Any:
        if isinstance(value, (cst.Tuple, cst.GeneratorExp)) and not value.lpar:
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        number = cst.Integer(str(self._facts.number(node)))
        return cst.Call(cst.Name(name), [cst.Arg(number), cst.Arg(value)])

    def _watched(self, original: Any, updated: Any) -> Any:
        target = self._unit.references.get(original.func)
        if target is not None and target.kind in ("torch", "builtin"):
            return updated
        names = dotted(original.func)
        if names is None or names[0] in _FRAMES:
            return updated
        return updated.with_changes(
            func=self._call("__watch__", original, updated.func)
        )

    def _stays(self, decorator: Any) -> bool:
        node = decorator.decorator
        node = node.func if isinstance(node, cst.Call) else node
        target = self._unit.references.get(node)
        return not (target is not None and is_compiler(target.name))


def is_compiler(name: str) -> bool:
    """Return whether a decorator only says how to compile."""
    starts = ("torch.jit", "torch.compile", "torch._dynamo", "torch._disable_dynamo")
    return name.startswith(starts)
