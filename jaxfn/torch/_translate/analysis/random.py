"""Random draws: JAX's need a key, so a Function that draws in forward takes one.

The key is the first argument of `apply`, as for `from_torch(cls, random=True)`. So
forward gets one more parameter, backward gives one more None, and what counts the
arguments from the left counts one more. Where backward draws, ctx keeps a key for it.
DrawAnalysis elsewhere than in forward and backward are marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxfn.torch._base import key_name, torch
from jaxfn.torch._translate.analysis.infer import Inference
from jaxfn.torch._translate.analysis.keys import (
    BACKWARD,
    WithKey,
    counts_arguments,
    index_of,
    unpacks,
)
from jaxfn.torch._translate.source import Unit
from jaxfn.torch._translate.syntax import code, cst, cst_params
from jaxfn.torch._translate.table import DRAWS

# So many parameters by place each rule has: ctx, and what counts the arguments.
_LEAST = {"forward": 1, "setup_context": 3, "backward": 0, "vjp": 0, "jvp": 1}
_LOOPS = (cst.For, cst.While)
_INNER = (cst.Lambda, cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)


class DrawAnalysis(cst.CSTVisitor):
    """The random draws of a unit.

    Args:
        unit: the definition.
        infer: what is known of its expressions.

    Attributes:
        problems: why a node can't be translated.
        key: the name of the key in forward.
        keys: the name of the key of each draw.
        lines: the statements before which the key is split.
    """

    def __init__(self, unit: Unit, infer: Inference) -> None:
        super().__init__()
        self._unit, self._infer = unit, infer
        self._around: list[Any] = []
        self._found: dict[str, list[tuple[Any, Any, bool]]] = {}
        self.problems: dict[Any, str] = {}
        self.keys: dict[Any, str] = {}
        self.lines: set[Any] = set()
        unit.node.visit(self)
        self.key = key_name(_taken(unit.node))
        for rule, found in self._found.items():
            alone = len(found) == 1 and not found[0][2]
            only = self.key if rule == "forward" else f"ctx.{self.key}"
            for call, line, _ in found:
                self.keys[call] = only if alone else f"sub{self.key}"
                if not alone:
                    self.lines.add(line)
        if self.takes_key:
            unit.node.visit(_Counting(infer, self.problems))
            self._check_rules()

    @property
    def takes_key(self) -> bool:
        """Is it a Function whose `apply` takes a key?"""
        return bool(self.keys)

    @property
    def rules(self) -> frozenset[str]:
        """The rules that draw."""
        return frozenset(self._found)

    def refuse_beside(self, keyed: Sequence[type]) -> None:
        """Mark what relies on how many arguments these classes take."""
        unit = self._unit
        if not unit.is_function_class:
            unit.node.visit(_CountingElsewhere(self.problems))
        elif not self.takes_key and issubclass(unit.value, tuple(keyed)):
            why = "it inherits from a Function that draws, which takes a key"
            self.problems[unit.node] = why
        unit.node.visit(_Uses(unit, keyed, self.problems))

    def _check_rules(self) -> None:
        """Mark a class whose rules are written as nothing here expects them."""
        members = self._unit.node.body.body
        found = {m.name.value: m for m in members if isinstance(m, cst.FunctionDef)}
        has_setup = _own(self._unit.value, "setup_context")
        for name, least in _LEAST.items():
            rule = found.get(name)
            if rule is None:
                if _own(self._unit.value, name):
                    self.problems[self._unit.node] = f"{name} is no def of its own"
                continue
            if name == "forward" and has_setup:
                least = 0  # it gets no ctx
            static = any(code(d.decorator) == "staticmethod" for d in rule.decorators)
            params = rule.params
            if params.posonly_params or len(params.params) < least or not static:
                self.problems[rule] = "its signature, which gets one more for the key"
        if has_setup and len(self._found) > 1:
            why = "random draws in forward and backward, beside setup_context"
            self.problems[self._unit.node] = why

    def with_key(self, node: Any) -> Any:
        """The translated class, whose arguments are one more."""
        has_setup = _own(self._unit.value, "setup_context")
        split = {rule: found[0][1] in self.lines for rule, found in self._found.items()}
        return node.visit(WithKey(self.key, has_setup, split))

    # ---- where it draws

    def on_visit(self, node: Any) -> bool:
        if isinstance(node, (cst.Decorator, cst.Annotation)):
            return False
        if isinstance(node, cst.Call) and self._draws(node):
            problem = self._problem()
            if problem:
                self.problems[node] = problem
            else:
                line = self._around[-1]
                in_loop = any(isinstance(n, _LOOPS) for n in self._around)
                rule = self._function().name.value
                self._found.setdefault(rule, []).append((node, line, in_loop))
        if isinstance(node, (*_FRAMES, *_LOOPS, *_INNER)):
            self._around.append(node)
        return True

    def on_leave(self, original_node: Any) -> None:
        if self._around and original_node is self._around[-1]:
            self._around.pop()

    def _draws(self, call: Any) -> bool:
        target = self._unit.references.get(call.func)
        if target is not None and target.kind == "torch":
            return target.name in DRAWS
        if not isinstance(call.func, cst.Attribute):
            return False
        name = f"Tensor.{call.func.attr.value}"
        return name in DRAWS and self._infer.of(call.func.value).is_tensor

    def _function(self) -> Any:
        """The outermost function around the node at hand."""
        return next((n for n in self._around if isinstance(n, cst.FunctionDef)), None)

    def _problem(self) -> str:
        """Why the draw at hand can't have a key."""
        functions = [n for n in self._around if isinstance(n, cst.FunctionDef)]
        names = [f.name.value for f in functions]
        if not self._unit.is_function_class:
            return "random draws in a helper: draw in forward, and hand them on"
        if _inherits(self._unit.value):
            return "random draws in a class that inherits rules"
        if _own(self._unit.value, "vmap"):
            return "random draws beside a vmap rule"
        if not names or names[0] not in ("forward", *BACKWARD):
            return (
                f"random draws in {names[0] if names else 'the class'}: draw in forward"
            )
        line = self._around[-1]
        if len(functions) > 1 or not isinstance(line, cst.SimpleStatementLine):
            return "random draws in a nested function, or in the head of a block"
        found = [other for of in self._found.values() for _, other, _ in of]
        if len(line.body) > 1 or any(line is other for other in found):
            return "a second random draw in one line"
        if names[0] in BACKWARD and not self._has_ctx(functions[0]):
            return "random draws in backward, whose first parameter is not called ctx"
        return ""

    def _has_ctx(self, backward: Any) -> bool:
        """Is it called so in backward, and in what saves for it?"""
        members = self._unit.node.body.body
        name = "setup_context" if _own(self._unit.value, "setup_context") else "forward"
        functions = [m for m in members if isinstance(m, cst.FunctionDef)]
        saving = [f for f in functions if f.name.value == name]
        return all(
            [p.name.value for p in f.params.params[:1]] == ["ctx"]
            for f in (*saving, backward)
        )


_FRAMES = (cst.FunctionDef, cst.SimpleStatementLine)


def _inherits(cls: Any) -> bool:
    parents = [c for c in cls.__mro__[1:] if not c.__module__.startswith("torch.")]
    return parents != [object]


def _own(cls: Any, rule: str) -> bool:
    return getattr(cls, rule) is not getattr(torch.autograd.Function, rule)


def _taken(node: Any) -> set[str]:
    """Names that would meet names of the class: as they are, or in a longer one."""
    words = _Words()
    node.visit(words)
    short = {w.removeprefix(p) for w in words.found for p in ("sub", "_")}
    return words.found | short


class _Words(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def visit_Name(self, node: Any) -> None:
        self.found.add(node.value)


# ---- what counts the arguments


class _CountingElsewhere(cst.CSTVisitor):
    """Finds what counts arguments of a class, in a helper: it is not rewritten."""

    def __init__(self, problems: dict[Any, str]) -> None:
        super().__init__()
        self._problems = problems
        self._functions: list[Any] = []  # of the class, around a node

    def on_visit(self, node: Any) -> bool:
        if self._is_left(node) and counts_arguments(node, self._functions):
            self._problems[node] = f"{code(node)} has one more for the key"
        return super().on_visit(node)

    def _is_left(self, node: Any) -> bool:
        return True


class _Counting(_CountingElsewhere):
    """Finds what counts arguments in a way that can't be made to count one more."""

    def __init__(self, infer: Inference, problems: dict[Any, str]) -> None:
        super().__init__(problems)
        self._infer = infer
        self._rewritten: set[Any] = set()

    def _is_left(self, node: Any) -> bool:
        return node not in self._rewritten

    def visit_FunctionDef(self, node: Any) -> None:
        self._functions.append(node)
        self._rewritten.update(param.name for param in cst_params(node.params))

    def leave_FunctionDef(self, original_node: Any) -> None:
        self._functions.pop()

    def visit_Assign(self, node: Any) -> None:
        if unpacks(node):
            self._rewritten.add(node.value)

    def visit_Subscript(self, node: Any) -> None:
        if index_of(node) is not None:
            self._rewritten.add(node.value)

    def visit_Call(self, node: Any) -> None:
        if isinstance(node.func, cst.Name) and node.func.value == "any":
            self._rewritten.update(arg.value for arg in node.args)

    def visit_Return(self, node: Any) -> None:
        names = [f.name.value for f in self._functions]
        if len(names) != 1 or names[0] not in BACKWARD or node.value is None:
            return
        if not isinstance(node.value, cst.Tuple) and not self._is_one(node.value):
            self._problems[node] = "one more gradient is needed, for the key"

    def _is_one(self, node: Any, depth: int = 0) -> bool:
        """Is it one gradient, on each path, and never a tuple of them?"""
        if isinstance(node, cst.IfExp):
            return all(self._is_one(n, depth) for n in (node.body, node.orelse))
        if isinstance(node, cst.Name) and depth < 9:
            stores = self._infer.stores(node)
            if any(how not in ("value", "param", "item") for how, _ in stores):
                return False
            bound = [value for how, value in stores if how == "value"]
            if not all(self._is_one(value, depth + 1) for value in bound):
                return False
        return self._infer.of(node).kind in ("tensor", "none")


class _Uses(cst.CSTVisitor):
    """Finds uses of classes that take a key, whose callers have none for them."""

    def __init__(
        self, unit: Unit, keyed: Sequence[type], problems: dict[Any, str]
    ) -> None:
        super().__init__()
        self._unit, self._keyed, self._problems = unit, keyed, problems
        self._names = {cls.__name__ for cls in keyed}
        self._depth = 0

    def visit_FunctionDef(self, node: Any) -> None:
        self._depth += 1

    def leave_FunctionDef(self, original_node: Any) -> None:
        self._depth -= 1

    def on_visit(self, node: Any) -> bool:
        target = self._unit.references.get(node)
        value = getattr(target, "value", None)
        owner = getattr(value, "__self__", None)
        named = isinstance(node, cst.Name) and node.value in self._names
        is_keyed = any(value is cls or owner is cls for cls in self._keyed)
        if self._depth and (named or is_keyed):
            why = "a Function that draws is used, which takes a key"
            self._problems.setdefault(node, why)
        return super().on_visit(node)
