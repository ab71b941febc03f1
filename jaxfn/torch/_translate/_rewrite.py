"""A definition in torch's terms, rewritten in JAX's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxfn.torch._translate import _decorators, _marks, _statements
from jaxfn.torch._translate._annotations import annotation
from jaxfn.torch._translate._expressions import code, fill, paren
from jaxfn.torch._translate._flow import is_write_name
from jaxfn.torch._translate._lib import cst
from jaxfn.torch._translate._names import ATTRIBUTES, DTYPES, ROWS
from jaxfn.torch._translate._names._row import Given
from jaxfn.torch._translate._sources import Target, literal
from jaxfn.torch._translate._units import Unit, is_for_onnx
from jaxfn.torch._translate._writes import Program, Writes

_VALUES = {
    "torch.pi": "jnp.pi",
    "torch.e": "jnp.e",
    "torch.inf": "jnp.inf",
    "torch.nan": "jnp.nan",
    "torch.Tensor": "jax.Array",
    "torch.dtype": "jnp.dtype",
    "torch.Size": "tuple",
    "torch.autograd.Function": "jaxfn.Function",
    "torch.autograd.function.Function": "jaxfn.Function",
    "torch.autograd.function.FunctionCtx": "jaxfn.FunctionCtx",
}
_LONG = {"float": "float32", "double": "float64", "half": "float16", "int": "int32"}
_LONG |= {"long": "int64", "short": "int16", "cfloat": "complex64"}
_LONG |= {"cdouble": "complex128"}
_MATH = {n: n for n in ("exp", "log", "sqrt", "sin", "cos", "tan", "tanh", "floor")}
_MATH |= {"ceil": "ceil", "fabs": "abs", "atan": "arctan", "isnan": "isnan"}
_HOST = {"item", "tolist", "numpy", "nonzero", "backward", "register_hook"}
_NUMBERS = {"float", "int", "bool", "complex"}
PAIRS = ("values", "indices")


@dataclasses.dataclass
class Left:
    """What was not translated.

    Attributes:
        where: file and line of the original.
        text: the line.
        reason: why not.
    """

    where: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}\n    {self.text}"


class Rewriter(cst.CSTTransformer):
    """Rewrite one unit.

    Args:
        unit: the definition.
        program: all units, and what is known of them.
        constants: where values of closures are noted, by name.
    """

    def __init__(self, unit: Unit, program: Program, constants: dict[str, str]) -> None:
        super().__init__()
        self.unit, self.units, self.constants = unit, program.units, constants
        self.infer = program.inference[unit.key]
        self.writes = Writes(unit, program)
        self.left: list[Left] = []
        self.frames: list[list[str]] = [[]]
        self.called: set[Any] = set()
        self.parts: dict[Any, int | str] = {}
        self.paired: set[Any] = set()
        self.functions: list[Any] = []
        self.dropped: set[Any] = set()
        self.heads: set[Any] = set()
        self.late: list[str] = []
        self.chained: set[Any] = set()
        self.single: dict[Any, Any] = {}
        self.pairs: dict[Any, Any] = {}
        self.masked: dict[Any, str] = {}
        self.views: dict[Any, Any] = {}
        self.arguments: dict[Any, Any] = {}

    def problem(self, reason: str) -> None:
        """Note why the statement at hand can't be translated."""
        if reason not in self.frames[-1]:
            self.frames[-1].append(reason)

    # ---- statements

    def on_visit(self, node: Any) -> bool:
        if isinstance(node, _statements.FRAMED):
            self.frames.append([])
        if isinstance(node, (cst.Annotation, cst.Decorator)) or is_for_onnx(node):
            return False
        if isinstance(node, (cst.Import, cst.ImportFrom)):
            return False
        return super().on_visit(node)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = super().on_leave(original_node, updated_node)
        if isinstance(original_node, _statements.FRAMED):
            reasons = self.frames.pop()
            return _statements.leave(self, original_node, updated, reasons)
        return updated

    def visit_FunctionDef(self, node: Any) -> None:
        self.functions.append(node)

    def leave_FunctionDef(self, original_node: Any, updated_node: Any) -> Any:
        if is_for_onnx(original_node):
            return cst.RemoveFromParent()
        self.functions.pop()
        return _decorators.rewritten(self, original_node, updated_node)

    def leave_ClassDef(self, original_node: Any, updated_node: Any) -> Any:
        return updated_node.with_changes(
            decorators=_decorators.of_class(self, original_node)
        )

    def leave_Annotation(self, original_node: Any, updated_node: Any) -> Any:
        if original_node in self.dropped:
            return updated_node  # of a variable: it is dealt with there
        found = annotation(self.unit, self.units, original_node)
        return cst.RemoveFromParent() if found is None else found

    def leave_AnnAssign(self, original_node: Any, updated_node: Any) -> Any:
        found = annotation(self.unit, self.units, original_node.annotation)
        if found is not None:
            return updated_node.with_changes(annotation=found)
        if updated_node.value is None:
            return cst.RemoveFromParent()
        return cst.Assign([cst.AssignTarget(updated_node.target)], updated_node.value)

    def visit_AnnAssign(self, node: Any) -> None:
        self.dropped.add(node.annotation)

    # ---- conditions

    def _condition(self, test: Any) -> None:
        if self.infer.of(test).is_tensor:
            self.problem("a branch on the values of a tensor: JAX needs jnp.where")

    def visit_If(self, node: Any) -> None:
        if isinstance(node.orelse, cst.If):
            self.chained.add(node.orelse)
        self._condition(node.test)

    def visit_While(self, node: Any) -> None:
        self._condition(node.test)

    def visit_With(self, node: Any) -> None:
        self.heads.update(item.item for item in node.items)

    def visit_IfExp(self, node: Any) -> None:
        self._condition(node.test)

    def visit_BooleanOperation(self, node: Any) -> None:
        self._condition(node.left)

    def visit_Assert(self, node: Any) -> None:
        self._condition(node.test)

    def visit_CompIf(self, node: Any) -> None:
        self._condition(node.test)

    # ---- names

    def visit_Call(self, node: Any) -> None:
        self.called.add(node.func)

    def leave_Name(self, original_node: Any, updated_node: Any) -> Any:
        return self._named(original_node, updated_node)

    def leave_Attribute(self, original_node: Any, updated_node: Any) -> Any:
        if original_node in self.unit.references:
            return self._named(original_node, updated_node)
        updated = updated_node.with_changes(attr=original_node.attr)
        name = original_node.attr.value
        if original_node.value in self.paired and name in PAIRS:
            return updated_node.value
        if name == "saved_variables":
            return updated.with_changes(attr=cst.Name("saved_tensors"))
        if original_node in self.called or original_node in self.dropped:
            return updated
        if self.infer.of(original_node.value).is_tensor:
            return self._attribute(original_node, updated, name)
        return updated

    def _attribute(self, original: Any, updated: Any, name: str) -> Any:
        if name == "requires_grad":
            return self._requires_grad(original, updated)
        if name == "device":
            return updated
        template = ATTRIBUTES.get(name)
        if template is None:
            self.problem(f"Tensor.{name}")
            return updated
        return self.filled(template, {"x": updated.value})

    def _requires_grad(self, original: Any, updated: Any) -> Any:
        i = self.position(original.value)
        if i is None:
            self.problem("Tensor.requires_grad: JAX has ctx.needs_input_grad alone")
            return updated
        return cst.parse_expression(f"ctx.needs_input_grad[{i}]")

    def position(self, node: Any) -> int | None:
        """Which argument of forward a name is, in forward itself."""
        function = self.functions[-1] if self.functions else None
        if function is None or function.name.value != "forward":
            return None
        if not self.unit.is_function_class or not isinstance(node, cst.Name):
            return None
        names = [p.name.value for p in function.params.params]
        skipped = 2 if names[:1] == ["cls"] else 1
        if names[skipped - 1 : skipped] != ["ctx"] or node.value not in names[skipped:]:
            return None
        return names.index(node.value) - skipped

    def _named(self, original: Any, updated: Any) -> Any:
        target = self.unit.references.get(original)
        if target is None or (original in self.called and target.kind == "torch"):
            return updated
        if target.kind == "torch":
            return self._torch_value(target, updated)
        if target.kind == "unit":
            return self._unit_name(target, updated)
        if target.kind == "value":
            return self._closed_value(target, updated)
        if target.kind == "lost":
            self.problem(f"{target.name}, whose text can't be carried over")
        return updated

    def _unit_name(self, target: Target, updated: Any) -> Any:
        assert target.source is not None
        found = self.units.get((target.source.name, target.path))
        if found is None:
            self.problem(f"{target.name}, whose text can't be carried over")
            return updated
        return cst.Name(found.name)

    def _closed_value(self, target: Target, updated: Any) -> Any:
        text = literal(target.value)
        if text is None:
            self.problem(f"{target.name}, which the class closes over")
            return updated
        self.constants[target.name] = text
        return updated

    def _torch_value(self, target: Target, updated: Any) -> Any:
        short = target.name.rpartition(".")[2]
        dtype = DTYPES.get(_LONG.get(short, short))
        if type(target.value).__name__ == "dtype" and dtype is not None:
            return cst.parse_expression(dtype)
        if target.name in _VALUES:
            return cst.parse_expression(_VALUES[target.name])
        for row in ROWS.get(target.name, ()):
            text = row.gives
            if isinstance(text, str) and text.endswith("(x)"):
                return cst.parse_expression(text[: -len("(x)")])
        self.problem(target.name)
        return updated

    # ---- assignments

    def visit_Assign(self, node: Any) -> None:
        target = node.targets[0].target
        if isinstance(target, cst.Subscript):
            self._plan_mask(node, target)
        if isinstance(target, cst.Attribute):
            self.dropped.add(target)
        if isinstance(target, cst.Tuple) and len(target.elements) == 2:
            self._plan_pair(node, target)

    def visit_AugAssign(self, node: Any) -> None:
        if isinstance(node.target, cst.Subscript):
            self._plan_mask(node, node.target)

    def _plan_mask(self, node: Any, target: Any) -> None:
        self.dropped.add(target)
        if self.writes.masks.is_masked(target):
            found = self.writes.masks.plan(target, node.value)
            if found is not None:
                self.masked[node] = found

    def _plan_pair(self, node: Any, target: Any) -> None:
        """Of two results, those that are read."""
        call = node.value
        if not isinstance(call, cst.Call) or len(node.targets) > 1:
            return
        names = [e.value for e in target.elements]
        read = [
            not isinstance(n, cst.Name) or self.infer.loads(call, n.value) > 0
            for n in names
        ]
        if read in ([True, False], [False, True]):
            self.parts[call] = read.index(True)
            self.single[call] = names[read.index(True)]
        else:
            self.parts[call] = "both"

    # ---- calls

    def visit_Subscript(self, node: Any) -> None:
        index = _only_index(node)
        if isinstance(node.value, cst.Call) and index in ("0", "1", "-1", "-2"):
            self.parts[node.value] = int(index) % 2

    def visit_Attribute(self, node: Any) -> None:
        if isinstance(node.value, cst.Call) and node.attr.value in PAIRS:
            self.parts[node.value] = PAIRS.index(node.attr.value)

    def leave_Subscript(self, original_node: Any, updated_node: Any) -> Any:
        if original_node.value in self.paired:
            return updated_node.value
        if original_node in self.dropped:
            return updated_node
        return self.writes.masks.read(self, original_node, updated_node)

    def leave_Call(self, original_node: Any, updated_node: Any) -> Any:
        target = self.unit.references.get(original_node.func)
        if original_node in self.heads:
            return updated_node  # of a block: it is dealt with there
        if target is not None and target.kind == "torch":
            return self._function(original_node, updated_node, target.name)
        func = original_node.func
        if isinstance(func, cst.Attribute):
            if self.infer.of(func.value).is_tensor:
                return self._method(original_node, updated_node)
            if f"Tensor.{func.attr.value}" in ROWS and self._is_doubtful(func):
                self.problem(
                    f"{code(func.value)}.{func.attr.value}: {code(func.value)} is not "
                    "known to be a tensor (give arguments that reach this line)"
                )
        if self._is_imported(func):
            return self._imported(original_node, updated_node)
        if self._is_number_of_tensor(func, original_node.args):
            self.problem(f"{func.value}() of a tensor: the value is not known")
        found = self.writes.call_problem(original_node)
        if found:
            self.problem(found)
        return updated_node

    def _is_number_of_tensor(self, func: Any, args: Any) -> bool:
        if not isinstance(func, cst.Name) or func.value not in _NUMBERS or not args:
            return False
        return self.infer.of(args[0].value).is_tensor

    def _is_imported(self, func: Any) -> bool:
        while isinstance(func, cst.Attribute):
            func = func.value
        target = self.unit.references.get(func)
        return target is not None and target.kind == "import"

    def _imported(self, original: Any, updated: Any) -> Any:
        """A function of another library, which knows no tensors."""
        tensors = [a for a in original.args if self.infer.of(a.value).is_tensor]
        if not tensors:
            return updated
        name = code(original.func)
        short = name.rpartition(".")[2]
        if name.startswith("math.") and short in _MATH:
            return self.filled(f"jnp.{_MATH[short]}(x)", {"x": updated.args[0].value})
        self.problem(f"{name} of a tensor (jaxfn.host_function can run it)")
        return updated

    def _is_doubtful(self, func: Any) -> bool:
        """Could it be a tensor, for all that is known?"""
        if self.infer.of(func.value).kind not in ("unknown", "mixed"):
            return False
        return func not in self.unit.references and not self._is_ours(func.value)

    def _is_ours(self, node: Any) -> bool:
        """Is it a module, a class or self, which is no tensor?"""
        if isinstance(node, cst.Name) and node.value in ("ctx", "self", "cls"):
            return True
        target = self.unit.references.get(node)
        return target is not None and target.kind in ("unit", "import", "builtin")

    def _function(self, original: Any, updated: Any, name: str) -> Any:
        head, _, short = name.rpartition(".")
        if name == "torch.Size":
            return updated.with_changes(func=cst.Name("tuple"))
        if head == "torch.Tensor" and original.args:
            name = f"Tensor.{short}"
        rows = ROWS.get(name) or ROWS.get(f"torch.{short}", ())
        args = self._given(original.args, updated.args)
        if is_write_name(short) and args:
            decision = self.writes.decision(original)
            if decision.reason or decision.back:
                self.problem(f"{name}: {decision.reason or 'it is read again'}")
            name, rows = name[:-1], ROWS.get(f"torch.{short[:-1]}", ())
        return self._by_rows(original, updated, name, rows, args, method=False)

    def _method(self, original: Any, updated: Any) -> Any:
        func, name = original.func, original.func.attr.value
        receiver = Given(
            None, "", func.value, updated.func.value, self.infer.of(func.value)
        )
        args = [receiver, *self._given(original.args, updated.args)]
        if name in _HOST:
            self.problem(f"Tensor.{name}: values are not known while JAX traces")
            return updated
        if self.writes.is_write(original):
            return self._in_place(original, updated, name, args)
        rows = ROWS.get(f"Tensor.{name}", ())
        return self._by_rows(
            original, updated, f"Tensor.{name}", rows, args, method=True
        )

    def _in_place(
        self, original: Any, updated: Any, name: str, args: list[Given]
    ) -> Any:
        decision = self.writes.decision(original)
        if decision.reason:
            self.problem(f"Tensor.{name}: {decision.reason}")
        self.views[original] = updated.func.value
        self.arguments[original] = updated.args
        special = self.writes.special(name, args)
        if special is not None:
            return special
        rows = ROWS.get(f"Tensor.{name[:-1]}", ())
        return self._by_rows(
            original, updated, f"Tensor.{name}", rows, args, method=True
        )

    def _given(self, originals: Any, updateds: Any) -> list[Given]:
        found = []
        for old, new in zip(originals, updateds, strict=True):
            keyword = old.keyword.value if old.keyword is not None else None
            if old.keyword is not None and keyword == "out":
                continue
            fact = self.infer.of(old.value)
            found.append(Given(keyword, old.star, old.value, new.value, fact))
        return found

    def _by_rows(
        self,
        original: Any,
        updated: Any,
        name: str,
        rows: Any,
        args: list[Given],
        *,
        method: bool,
    ) -> Any:
        reason = ""
        if self._has_out(original):
            reason = self.writes.out_problem(original)
            if reason:
                self.problem(f"{name}(out=...): {reason}")
        for row in rows:
            bound = row.bind(args, self.infer.of(original))
            if isinstance(bound, str):
                reason = bound
                continue
            found = self._part(original, row, bound, method=method)
            if found is not None:
                return found if self.parts.get(original) == "both" else paren(found)
            reason = "these arguments"
        if name.partition(".")[2] in _HOST:
            reason = "values are not known while JAX traces"
        self.problem(f"{name} with {reason}" if rows else name)
        return updated

    def _has_out(self, node: Any) -> bool:
        return any(
            a.keyword is not None and a.keyword.value == "out" for a in node.args
        )

    def _part(self, original: Any, row: Any, bound: Any, *, method: bool) -> Any:
        if row.second is None:
            return bound.expression(method=method)
        part = self.parts.get(original)
        if part is not None:
            self.paired.add(original)
        if original in self.single:
            self.pairs[original] = self.single[original]
        if part in (0, 1):
            return bound.expression("gives" if part == 0 else "second", method=method)
        if row.pair is not None:
            return bound.expression("pair")
        first = bound.expression("gives", method=method)
        second = bound.expression("second", method=method)
        pair = cst.Tuple([cst.Element(first), cst.Element(second)])
        if part == "both":
            return pair.with_changes(lpar=[], rpar=[])
        return pair

    def filled(self, template: str, values: Mapping[str, Any]) -> Any:
        """A template with values, to stand anywhere."""
        return paren(fill(template, values))

    # ---- marks

    def note(self, original: Any, reason: str, text: str | None = None) -> Left:
        """Tell of what is left."""
        if text is None:
            text = code(original.with_changes(leading_lines=[])).strip()
        where = f"{self.unit.source.file}:{self.unit.line(original)}"
        return Left(where, text.splitlines()[0], reason)

    def drop(self, original: Any, reason: str) -> None:
        """Tell of what has no meaning in JAX, and is gone."""
        where = f"{self.unit.source.file}:{self.unit.line(original)}"
        self.left.append(Left(where, code(original).strip(), f"dropped: {reason}"))

    def mark(
        self, original: Any, reasons: list[str], text: str | None = None
    ) -> list[Any]:
        """The statement as a comment, and a line that raises."""
        position = self.unit.line(original)
        name = self.unit.source.file
        if text is None:
            text = code(original.with_changes(leading_lines=[])).strip()
        self.left.append(self.note(original, "; ".join(reasons), text))
        return _marks.marked(original, text, reasons, name, position)


def _only_index(node: Any) -> str:
    if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
        return ""
    return code(node.slice[0].slice.value)
