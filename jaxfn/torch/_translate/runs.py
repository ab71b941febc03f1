"""The instrumented original: every expression reports its value. And its runs."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from jaxfn.torch._base import torch
from jaxfn.torch._translate.files import key_of
from jaxfn.torch._translate.observed import Observations, Place, Writes
from jaxfn.torch._translate.syntax import (
    cst,
    dotted,
    is_in_place,
    is_write_name,
    root_of,
)
from jaxfn.torch._translate.units import Unit, in_order, is_for_onnx

# These look at their caller's frame, so nothing may wrap them.
_FRAMES = {"super", "locals", "globals", "vars", "dir", "eval", "exec"}
_SEEN = (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.BinaryOperation)
_SEEN += (cst.UnaryOperation, cst.Comparison, cst.IfExp, cst.Tuple, cst.List)

_SKIPPED = (cst.Decorator, cst.Annotation, cst.Global, cst.Nonlocal)
_SKIPPED += (cst.Import, cst.ImportFrom)
_STATEMENTS = (cst.BaseSmallStatement, cst.If, cst.For, cst.While, cst.With, cst.Try)

_LOOPS = (cst.For, cst.While)


class Instrument(cst.CSTTransformer):
    """A transformer that wraps every expression in a call of `see`."""

    def __init__(
        self, facts: Observations, unit: Unit, names: Mapping[Any, str]
    ) -> None:
        super().__init__()
        self._facts, self._unit, self._names = facts, unit, names
        self._statements: list[Any] = []

    def on_visit(self, node: Any) -> bool:
        if isinstance(node, _STATEMENTS):
            self._statements.append(node)
        if isinstance(node, _SKIPPED) or is_for_onnx(node):
            return False
        return super().on_visit(node)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = super().on_leave(original_node, updated_node)
        if isinstance(original_node, _STATEMENTS):
            updated = self._written_by(original_node, updated)
            self._statements.pop()
        if isinstance(original_node, cst.FunctionDef):
            kept = [d for d in updated.decorators if self._stays(d)]
            return updated.with_changes(decorators=kept)
        names = self._unit.names
        if not isinstance(original_node, _SEEN) or not names.is_read(original_node):
            return updated
        target = self._unit.references.get(original_node)
        if target is not None and target.kind == "unit":
            updated = cst.Name(self._names[key_of(target)])
        if isinstance(original_node, cst.Call):
            updated = self._watched(original_node, updated)
        around: Any = names.parents.get(original_node)
        is_base = isinstance(names.parents.get(around), cst.ClassDef)
        is_called = isinstance(around, cst.Call) and original_node is around.func
        if is_base or is_called:
            return updated
        return self._call("__see__", original_node, updated)

    def _call(
        self, name: str, node: Any, value: Any, place: Any = None, *rest: Any
    ) -> Any:
        number = cst.Integer(str(self._facts.number(node, place)))
        args = [cst.Arg(number), *(cst.Arg(_closed(x)) for x in (value, *rest))]
        return cst.Call(cst.Name(name), args)

    def _watched(self, original: Any, updated: Any) -> Any:
        target = self._unit.references.get(original.func)
        if target is not None and target.kind == "torch":
            return self._written_in(original, updated, target.name)
        names = dotted(original.func) or [""]
        is_builtin = target is not None and target.kind == "builtin"
        if is_builtin or names[0] in _FRAMES:
            return updated
        func = original.func
        if isinstance(func, cst.Attribute) and is_write_name(func.attr.value):
            root = root_of(func.value)
            value = self._write(original, updated.func.value, root)
            return updated.with_changes(func=updated.func.with_changes(value=value))
        if names[-1] == "mark_dirty":
            dirty = self._unit.names.reads(*original.args)
            self._facts.writes.dirty.update(name.value for name in dirty)
        place = self._place(original, None)
        func = self._call("__watch__", original, updated.func, place)
        return updated.with_changes(func=func)

    # ---- writes

    def _written_in(self, original: Any, updated: Any, name: str) -> Any:
        """Wrap the argument to which a function of torch writes."""
        args = list(updated.args)
        for i, arg in enumerate(original.args):
            is_out = arg.keyword is not None and arg.keyword.value == "out"
            short = name.rpartition(".")[2]
            if is_out or (i == 0 and (is_write_name(short) or is_in_place(original))):
                value = self._write(original, args[i].value, _name(arg.value))
                args[i] = args[i].with_changes(value=value)
        return updated.with_changes(args=args)

    def _written_by(self, original: Any, updated: Any) -> Any:
        """Wrap what an assignment writes to."""
        if isinstance(original, cst.AugAssign):
            target, new = original.target, updated.target
        elif isinstance(original, cst.Assign) and len(original.targets) == 1:
            target, new = original.targets[0].target, updated.targets[0].target
        else:
            return updated
        if isinstance(target, cst.Subscript):
            value = self._write(original, new.value, _name(target.value))
            return updated.with_deep_changes(new, value=value)
        if isinstance(original, cst.AugAssign) and isinstance(target, cst.Name):
            value = self._write(original, target, target.value, updated.value)
            return updated.with_changes(value=value)
        return updated

    def _write(self, node: Any, value: Any, root: str | None, *rest: Any) -> Any:
        return self._call("__write__", node, value, self._place(node, root), *rest)

    def _place(self, node: Any, root: str | None) -> Place:
        """Return the names that are read after a write, or after a call.

        In a loop, these are all of the loop. If a name gets another value in between,
        a run shows that: what it reads then has other memory.
        """
        names = self._unit.names
        function = names.function(node)
        if function is None or not self._statements:
            return Place({}, frozenset())
        statement = self._statements[-1]
        loop, arms = self._around(statement, function)
        other = set(names.reads(*arms))
        later = [n for n in names.reads_after(statement, function) if n not in other]
        later += names.reads(loop)
        beside: set[str] = set()
        if isinstance(statement, cst.Assign):
            bound = names.stores(*statement.targets)
            later = [n for n in later if n.value not in bound]
        elif isinstance(statement, (cst.Return, cst.Raise)):
            later = []
        elif not isinstance(statement, cst.BaseSmallStatement):
            later += names.reads(statement)  # its condition, before its blocks
        if not isinstance(node, (cst.Assign, cst.AugAssign)):
            inside = names.reads(node)
            beside = {n.value for n in names.reads(statement) if n not in inside}
        is_own = root is not None and root in names.bound(function)
        beside |= {root} if root is not None and not is_own else set()
        reads: dict[str, list[Any]] = {}
        for name in later:
            reads.setdefault(name.value, []).append(name)
        return Place(reads, frozenset(beside), root)

    def _around(self, node: Any, function: Any) -> tuple[Any, list[Any]]:
        """Return the outermost loop of a function around a statement, or None.

        And the other arms of the conditions that it depends on.
        """
        loop, arms = None, []
        while node is not function:
            loop = node if isinstance(node, _LOOPS) else loop
            around: Any = self._unit.names.parents[node]
            if isinstance(around, cst.If) and node is around.body:
                arms.append(around.orelse)
            node = around
        return loop, arms

    def _stays(self, decorator: Any) -> bool:
        node = decorator.decorator
        node = node.func if isinstance(node, cst.Call) else node
        target = self._unit.references.get(node)
        return not (target is not None and is_compiler(target.name))


def _name(node: Any) -> str | None:
    return node.value if isinstance(node, cst.Name) else None


def _closed(value: Any) -> Any:
    """Return a value with the parentheses that it needs as an argument."""
    bare = isinstance(value, (cst.Tuple, cst.GeneratorExp)) and not value.lpar
    both = {"lpar": [cst.LeftParen()], "rpar": [cst.RightParen()]}
    return value.with_changes(**both) if bare else value


def is_compiler(name: str) -> bool:
    """Return whether a decorator only says how to compile."""
    starts = ("torch.jit", "torch.compile", "torch._dynamo", "torch._disable_dynamo")
    return name.startswith(starts)


class InstrumentedOriginal:
    """The units of a translation, which run in torch and report every expression."""

    def __init__(self, units: Mapping[Any, Unit]) -> None:
        self.facts = Observations()
        self._units = units
        self._names = {key: f"__unit_{i}__" for i, key in enumerate(units)}
        self._spaces: dict[str, dict[str, Any]] = {}
        self._made: dict[str, Any] = {}
        for unit in units.values():
            for target in unit.references.values():
                if target.kind == "unit":
                    new = f"__unit_{len(self._names)}__"
                    name = self._names.setdefault(key_of(target), new)
                    self._made[name] = target.value
        for unit in in_order(units):
            # Members of an enum are compared by identity.
            is_enum = isinstance(unit.value, enum.EnumMeta)
            if unit.is_registry or is_enum:
                self._made[self._names[unit.key]] = unit.value
            else:
                self._define(unit)

    def _space(self, unit: Unit) -> dict[str, Any]:
        name = unit.source.name
        if name not in self._spaces:
            facts = self.facts
            self._spaces[name] = {
                **unit.source.namespace,
                "__see__": facts.see,
                "__watch__": facts.watch,
                "__write__": facts.write,
            }
        return self._spaces[name]

    def _define(self, unit: Unit) -> None:
        space = self._space(unit)
        space.update(unit.closure)
        node = unit.node.visit(Instrument(self.facts, unit, self._names))
        if isinstance(node, cst.SimpleStatementLine):
            node = node.with_changes(leading_lines=[])
        # With this import, annotations are not evaluated.
        text = "from __future__ import annotations\n" + cst.Module([node]).code
        space.update(self._made)
        code = compile(text, f"<{unit.source.name}>", "exec", dont_inherit=True)
        exec(code, space)
        self._made[self._names[unit.key]] = space[unit.path[-1]]
        for other in self._spaces.values():
            other.update(self._made)

    def value(self, unit: Unit) -> Any:
        """Return the instrumented unit."""
        return self._made[self._names[unit.key]]


def _leaves(args: Sequence[Any], *, tracked: bool) -> list[Any]:
    """Return copies. If no tensor requires grad, all inexact ones do, if `tracked`."""
    dense = [isinstance(x, torch.Tensor) and x.layout is torch.strided for x in args]
    given = any(d and x.requires_grad for d, x in zip(dense, args, strict=True))

    def leaf(x: Any, dense: bool) -> Any:
        if not dense:
            return dict(x) if isinstance(x, dict) else x
        can = x.is_floating_point() or x.is_complex()
        wanted = x.requires_grad if given else can
        return x.detach().clone().requires_grad_(wanted and tracked)

    return [leaf(x, d) for x, d in zip(args, dense, strict=True)]


def run(
    cls: Any,
    args: Sequence[Any],
    writes: Writes | None = None,
    *,
    tracked: bool = True,
    twice: bool = False,
) -> None:
    """Run forward of a class in torch, and backward if tensors are `tracked`.

    Args:
        cls: The class.
        args: Arguments of its apply.
        writes: What notes the writes of the run.
        tracked: Whether tensors require a gradient.
        twice: Whether the gradient is differentiated too.
    """
    given = _leaves(args, tracked=tracked)
    torch.manual_seed(0)
    passed = [x * 1 if _requires_grad(x) else x for x in given]
    if writes is not None:
        writes.give(cls.forward, passed)
    out = cls.apply(*passed)
    if writes is not None:
        writes.give_back(out)
    wanted = [x for x in given if _requires_grad(x)]
    for _ in range(1 + twice):
        outs = [x for x in _tuple(out) if _requires_grad(x)]
        if outs and wanted:
            ones = [torch.ones_like(x) for x in outs]
            out = torch.autograd.grad(
                outs, wanted, ones, allow_unused=True, create_graph=twice
            )


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _requires_grad(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad
