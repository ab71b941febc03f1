"""A definition in torch's terms, rewritten in JAX's."""

from __future__ import annotations

from typing import Any

from jaxfn.torch._translate.calls import Calls
from jaxfn.torch._translate.references import annotation, decorators
from jaxfn.torch._translate.statements import FRAMED, is_check, leave
from jaxfn.torch._translate.syntax import (
    code,
    cst,
    find,
    is_line,
)
from jaxfn.torch._translate.units import is_for_onnx


class Rewriter(Calls):
    """A transformer of statements and, with its base classes, of a whole unit."""

    # ---- statements

    def on_visit(self, node: Any) -> bool:
        if isinstance(node, FRAMED):
            self.frames.append([])
        if isinstance(node, (cst.Annotation, cst.Decorator)) or is_for_onnx(node):
            return False
        if isinstance(node, (cst.Import, cst.ImportFrom)):
            return False
        return super().on_visit(node)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = super().on_leave(original_node, updated_node)
        if isinstance(original_node, FRAMED):
            found = leave(self, original_node, updated, self.frames[-1])
            self.frames.pop()
            return found
        return updated

    def visit_FunctionDef(self, node: Any) -> None:
        for name in ("jax", "jnp", "jaxfn"):
            if name in self.unit.names.bound(node):
                self.problem(f"rename `{name}`, which is a module in the translation")

    def leave_FunctionDef(self, original_node: Any, updated_node: Any) -> Any:
        if is_for_onnx(original_node):
            return cst.RemoveFromParent()
        return updated_node.with_changes(**decorators(self, original_node))

    def leave_ClassDef(self, original_node: Any, updated_node: Any) -> Any:
        return updated_node.with_changes(**decorators(self, original_node))

    def leave_Annotation(self, original_node: Any, updated_node: Any) -> Any:
        if isinstance(self.parents.get(original_node), cst.AnnAssign):
            return updated_node  # see leave_AnnAssign
        found = annotation(self.unit, self.units, original_node)
        return cst.RemoveFromParent() if found is None else found

    def leave_AnnAssign(self, original_node: Any, updated_node: Any) -> Any:
        found = annotation(self.unit, self.units, original_node.annotation)
        if found is not None:
            return updated_node.with_changes(annotation=found)
        if updated_node.value is None:
            return cst.RemoveFromParent()
        return cst.Assign([cst.AssignTarget(updated_node.target)], updated_node.value)

    # ---- conditions

    def _condition(self, test: Any) -> None:
        if isinstance(test, cst.BooleanOperation):
            self._condition(test.left)
            self._condition(test.right)
        elif self.infer.of(test).is_tensor or self._compares(test):
            self.problem("a branch on the values of a tensor: JAX needs jnp.where")
        elif self.infer.of(test).kind == "device":
            self.problem(f"a branch on {code(test)}: JAX has other devices")

    def _compares(self, test: Any) -> bool:
        """Return whether it is a function of torch that compares values."""
        name = self.infer.name(test) if isinstance(test, cst.Call) else ""
        return name.rpartition(".")[2] in ("equal", "allclose", "is_nonzero")

    def visit_UnaryOperation(self, node: Any) -> None:
        if isinstance(node.operator, cst.Not):
            self._condition(node.expression)

    def visit_Comparison(self, node: Any) -> None:
        sides = [node.left, *(c.comparator for c in node.comparisons)]
        tensors = [self.infer.of(side).is_tensor for side in sides]
        chained, last = len(tensors) > 2, node.comparisons[-1].operator
        asks = isinstance(last, (cst.In, cst.NotIn)) and tensors[-1]
        if any(tensors) and (chained or asks):
            self.problem("a branch on the values of a tensor: JAX needs jnp.where")
        if any(self.infer.of(side).kind == "device" for side in sides):
            self.problem(f"{code(node)}: JAX has other devices")

    def leave_Comparison(self, original_node: Any, updated_node: Any) -> Any:
        """Decide comparisons of a device: the lines for the CPU are translated."""
        only = updated_node.comparisons[-1]
        text = getattr(only.comparator, "evaluated_value", None)
        asks = isinstance(only.operator, (cst.Equal, cst.NotEqual))
        if code(updated_node.left) != '"cpu"' or not (asks and isinstance(text, str)):
            return updated_node
        return cst.Name(str((text == "cpu") == isinstance(only.operator, cst.Equal)))

    def leave_If(self, original_node: Any, updated_node: Any) -> Any:
        """Remove code for other devices."""
        known = _value(original_node.test, updated_node.test)
        if known is None:
            return updated_node
        chained, orelse = self.is_elif(original_node), updated_node.orelse
        if known:
            body = updated_node.body
            return cst.Else(body) if chained else cst.FlattenSentinel(body.body)
        if chained or orelse is None or isinstance(orelse, cst.If):
            return orelse if orelse is not None else cst.RemoveFromParent()
        return cst.FlattenSentinel(orelse.body.body)

    def visit_IndentedBlock(self, node: Any) -> bool:
        """Leave out what a check raises that becomes a comment."""
        check = self.parents.get(node)
        return not (self.frames[-1] and is_check(self, check))

    def leave_IndentedBlock(self, original_node: Any, updated_node: Any) -> Any:
        """Remove what follows a return, and `pass`, whose comments stay."""
        body: list[Any] = []
        lines: list[Any] = []
        for statement in updated_node.body:
            lines = [*lines, *statement.leading_lines]
            if is_line(statement, cst.Pass) and statement is not updated_node.body[-1]:
                continue
            body.append(statement.with_changes(leading_lines=lines))
            lines = []
            line = isinstance(statement, cst.SimpleStatementLine)
            if line and isinstance(statement.body[-1], cst.Return):
                break
        return updated_node.with_changes(body=body)

    def visit_If(self, node: Any) -> None:
        self._condition(node.test)

    def visit_While(self, node: Any) -> None:
        self._condition(node.test)

    def visit_IfExp(self, node: Any) -> None:
        self._condition(node.test)

    def visit_BooleanOperation(self, node: Any) -> None:
        self._condition(node.left)

    def visit_Try(self, node: Any) -> None:
        computed = find(node.body, cst.BinaryOperation, cst.Subscript)
        uses = any(self.infer.of(n).is_tensor for n in computed)
        calls = any(self.infer.name(n) for n in find(node.body, cst.Call))
        if node.handlers and (uses or calls):
            self.problem("a try: JAX raises other errors than torch")

    def visit_Assert(self, node: Any) -> None:
        self._condition(node.test)

    def visit_CompIf(self, node: Any) -> None:
        self._condition(node.test)

    # ---- assignments

    def visit_Assign(self, node: Any) -> None:
        self.masks.plan(node, node.targets[0].target)

    def visit_AugAssign(self, node: Any) -> None:
        self.masks.plan(node, node.target)


def _value(old: Any, new: Any) -> bool | None:
    """Return the value of a condition that was not True or False before."""
    negated = isinstance(new, cst.UnaryOperation) and isinstance(new.operator, cst.Not)
    inner = new.expression if negated else new
    was = old.expression if negated and hasattr(old, "expression") else old
    if not isinstance(inner, cst.Name) or inner.value not in ("True", "False"):
        return None
    if isinstance(was, cst.Name) and was.value == inner.value:
        return None
    return (inner.value == "True") != negated
