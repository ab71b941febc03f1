"""What code asks of the machine is answered, for code that launches kernels.

Code for other devices goes, and questions about the GPU become what the runs showed:

    if x.device.type == "xpu": ...             goes
    with torch.cuda.device(x.device.index):    goes; its statements stay
    torch.cuda.get_device_properties(x.device).multi_processor_count    a number
"""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

from jaxfn.torch._base import torch
from jaxfn.torch._translate.observe.observations import Observations
from jaxfn.torch._translate.source import Unit, is_kernel, literal
from jaxfn.torch._translate.syntax import (
    NameUses,
    Scopes,
    code,
    cst,
    dotted,
    find,
    is_line,
)

_TORCH = ("torch.cuda.", "torch.version.", "torch.xpu.", "torch.backends.")
_TORCH += ("torch.compiler.is_", "torch.distributed.is_")
_ALONE = {"torch.distributed.get_world_size": "1", "torch.distributed.get_rank": "0"}
_WORDS = r"torch\.(cuda|version|xpu|npu|mps|backends)\b|__version__|device_capability"
_WORDS += r"|is_available|get_current_target|environ|find_spec|runtime\.driver"
_WORDS += r"|get_device_properties|multi_?processor_count"
_DECIDING = (bool, str, type(None))
_PASSED_OVER = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom)
_CONTEXTS = {"torch.cuda.device", "torch.cuda.device_of", "torch.device"}


def answered(unit: Unit, facts: Observations) -> Any:
    """Return the tree of a unit without questions to the machine."""
    return unit.node.visit(_Answers(unit, facts))


class _Answers(cst.CSTTransformer):
    def __init__(self, unit: Unit, facts: Observations) -> None:
        super().__init__()
        self._unit, self._facts = unit, facts
        self._answers: dict[Any, Any] = {}
        self._known: set[Any] = set()
        self._chained: set[Any] = set()
        self._numbers: list[str] = []
        self._scopes = Scopes()
        unit.node.visit(self._scopes)
        self._names: dict[tuple[Any, str], Any] = {}

    def on_visit(self, node: Any) -> bool:
        if isinstance(node, _PASSED_OVER):
            return False
        if isinstance(node, cst.If) and isinstance(node.orelse, cst.If):
            self._chained.add(node.orelse)
        if isinstance(node, cst.WithItem):
            return not self._is_context(node)
        if isinstance(node, (cst.Call, cst.Attribute, cst.Name)):
            found = self._answer(node)
            if found is not None:
                self._answers[node] = cst.parse_expression(found)
                if isinstance(node, cst.Attribute) and found.isdecimal():
                    self._numbers.append(f"# {found}: {code(node)}")
                return False
        return super().on_visit(node)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        found = self._answers.get(original_node)
        if found is not None:
            self._known.add(found)
            return found
        found = super().on_leave(original_node, updated_node)
        if isinstance(found, cst.CSTNode) and found is not original_node:
            self._unit.source.origins[found] = original_node
            self._facts.same(found, original_node)
        return found

    # ---- questions

    def _answer(self, node: Any) -> str | None:
        """Return the text of what a question gave; None if it is none."""
        value = self._facts.of(node)
        if isinstance(node, cst.Name):
            return self._local(node) or self._constant(node)
        owner = self._facts.of(getattr(node, "value", None))
        asked = node.attr.value if isinstance(node, cst.Attribute) else ""
        if asked == "type" and owner.kind == "device":
            return literal(value.value)
        if asked == "is_cuda" and owner.is_tensor:
            return "True"
        if isinstance(node, cst.Call) and self._is_other_tensor(node):
            return "False"
        target = self._unit.references.get(getattr(node, "func", None))
        if target is not None and target.name in _ALONE:
            return _ALONE[target.name]
        if target is not None and target.name == "torch.device":
            return "None"
        root = node
        while not self._asks(root):
            if not isinstance(root, (cst.Attribute, cst.Call)):
                return None
            root = root.func if isinstance(root, cst.Call) else root.value
        if value.kind == "none":
            return "None"
        if value.value is None and value.kind == "unknown" and root is node:
            return self._asked(node)
        return None if value.value is None else literal(value.value)

    def _local(self, node: Any) -> str | None:
        """Return the answer that a name of a function is bound to, and nothing else."""
        around = self._scopes.around
        function = around.get(node)
        while function is not None and not self._uses(function, node.value).stores:
            function = around.get(function)
        found = self._names.get((function, node.value))
        return None if found is None else code(found)

    def _uses(self, function: Any, name: str) -> NameUses:
        return self._scopes.names.get(function, {}).get(name, NameUses())

    def leave_Assign(self, original_node: Any, updated_node: Any) -> Any:
        target, value = original_node.targets[0].target, self._value(updated_node.value)
        function = self._scopes.around.get(original_node)
        is_alone = isinstance(target, cst.Name) and len(original_node.targets) == 1
        if function is None or not is_alone or find(self._unit.node, cst.Nonlocal):
            return updated_node
        # A number keeps its name, which says what it is.
        uses = self._uses(function, target.value)
        is_only = [v for _, v in uses.stores] == [original_node.value]
        if uses.is_augmented or not is_only or not isinstance(value, _DECIDING):
            return updated_node
        self._names[function, target.value] = updated_node.value
        return cst.RemoveFromParent()

    def _constant(self, node: Any) -> str | None:
        """Return the value of a flag that its module has computed."""
        target = self._unit.references.get(node)
        if target is None or not isinstance(target.value, bool):
            return None
        if target.kind != "unit":
            return None
        source: Any = target.source
        found = source.definition(target.path)
        is_flag = is_line(found, cst.Assign) or is_line(found, cst.AnnAssign)
        computed = is_flag and dotted(found.body[0].value) is None
        return str(target.value) if computed or not is_flag else None

    def _asks(self, node: Any) -> bool:
        """Return whether a name of torch, or a call of a function, asks the machine."""
        target = self._unit.references.get(node)
        if target is not None and target.kind == "torch":
            return target.name.startswith(_TORCH)
        if not isinstance(node, cst.Call):
            return False
        target = self._unit.references.get(node.func)
        if target is None or target.kind not in ("unit", "lost"):
            return False
        fixed = all(self._is_fixed(arg.value) for arg in node.args)
        return fixed and _names_machine(target.value)

    def _is_fixed(self, node: Any) -> bool:
        """Return whether an argument is written out, or names a device."""
        if self._facts.of(node).kind == "device" or code(node).endswith(
            ".device.index"
        ):
            return True
        target = self._unit.references.get(node)
        if target is not None and target.kind in ("import", "builtin"):
            return True
        try:
            ast.literal_eval(code(node))
        except (ValueError, SyntaxError):
            return dotted(node) in (["True"], ["False"], ["None"])
        return True

    def _asked(self, node: Any) -> str | None:
        """Return what a question gives that no run has asked."""
        text = re.sub(r"[\w.]+\.device\.index", "0", code(node))
        if ".device" in text:
            return None
        try:
            found = eval(text, dict(self._unit.source.namespace))
        except Exception:  # noqa: BLE001  (it is another platform's)
            return None
        plain = found is None or isinstance(found, (bool, int, float, str))
        return literal(found) if plain else None

    def _is_other_tensor(self, call: Any) -> bool:
        """Return whether it asks if a tensor is of a class that JAX lacks."""
        if code(call.func) != "isinstance" or len(call.args) != 2:
            return False
        target = self._unit.references.get(call.args[1].value)
        cls = getattr(target, "value", None)
        if not isinstance(cls, type) or cls is torch.Tensor:
            return False
        return issubclass(cls, torch.Tensor) and cls is not torch.nn.Parameter

    # ---- what the answers decide

    def _value(self, node: Any) -> Any:
        """Return the value of an answer; NotImplemented for other expressions."""
        return ast.literal_eval(code(node)) if node in self._known else NotImplemented

    def _computed(self, original_node: Any, updated_node: Any) -> Any:
        """Return the value of an operation on answers, and on what is written out."""
        parts = [p for c in updated_node.children for p in (c, *c.children)]
        if not any(part in self._known for part in parts):
            return updated_node
        try:
            found = cst.parse_expression(
                repr(eval(code(updated_node), {"__builtins__": {}}))
            )
        except Exception:  # noqa: BLE001  (other names)
            return updated_node
        self._known.add(found)
        return found

    leave_UnaryOperation = leave_Comparison = _computed

    def leave_BooleanOperation(self, original_node: Any, updated_node: Any) -> Any:
        ends = isinstance(updated_node.operator, cst.Or)  # the value that decides
        sides = [updated_node.left, updated_node.right]
        values = [self._value(side) for side in sides]
        if values[0] is not NotImplemented:
            return sides[0] if bool(values[0]) == ends else sides[1]
        if values[1] is NotImplemented or bool(values[1]) == ends:
            return updated_node
        return sides[0]

    def leave_IfExp(self, original_node: Any, updated_node: Any) -> Any:
        value = self._value(updated_node.test)
        if value is NotImplemented:
            return updated_node
        return updated_node.body if value else updated_node.orelse

    def leave_If(self, original_node: Any, updated_node: Any) -> Any:
        value, orelse = self._value(updated_node.test), updated_node.orelse
        chained = original_node in self._chained
        if value is NotImplemented:
            return updated_node
        if value:
            body = updated_node.body
            return cst.Else(body) if chained else cst.FlattenSentinel(body.body)
        if chained or orelse is None or isinstance(orelse, cst.If):
            return orelse if orelse is not None else cst.RemoveFromParent()
        return cst.FlattenSentinel(orelse.body.body)

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: Any) -> Any:
        lines = [cst.EmptyLine(comment=cst.Comment(n)) for n in self._numbers]
        self._numbers = []
        leading = [*updated_node.leading_lines, *lines]
        is_assert = is_line(updated_node, cst.Assert)
        if is_assert and self._value(updated_node.body[0].test) is True:
            return cst.RemoveFromParent()
        return updated_node.with_changes(leading_lines=leading)

    def leave_IndentedBlock(self, original_node: Any, updated_node: Any) -> Any:
        if updated_node.body:
            return updated_node
        return updated_node.with_changes(body=[cst.parse_statement("pass")])

    # ---- devices

    def _is_context(self, item: Any) -> bool:
        """Return whether a `with` only chooses a device: JAX places arrays itself."""
        call = item.item
        if not isinstance(call, cst.Call):
            return False
        target = self._unit.references.get(call.func)
        if target is not None and target.name in _CONTEXTS:
            return True
        devices = [self._facts.of(arg.value).kind == "device" for arg in call.args]
        named = code(call).endswith((".device)", ".device.index)"))
        return (named and len(devices) == 1) or (any(devices) and all(devices))

    def leave_With(self, original_node: Any, updated_node: Any) -> Any:
        pairs = zip(original_node.items, updated_node.items, strict=True)
        kept = [new for old, new in pairs if not self._is_context(old)]
        if not kept:
            return cst.FlattenSentinel(updated_node.body.body)
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(items=kept)


def _names_machine(function: Any, depth: int = 3) -> bool:
    """Return whether a function, or one that it calls, asks the machine."""
    inner = inspect.unwrap(function) if callable(function) else None
    if not inspect.isfunction(inner):
        return False
    try:
        text = inspect.getsource(inner)
    except (OSError, TypeError):
        return False
    if re.search(_WORDS, text):
        return True
    names = (inner.__globals__.get(n) for n in inner.__code__.co_names)
    return depth > 0 and any(
        _names_machine(f, depth - 1) for f in names if callable(f) and not is_kernel(f)
    )
