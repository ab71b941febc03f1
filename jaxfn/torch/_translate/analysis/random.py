"""Random draws: JAX's need a key, so a Function that draws in forward takes one.

The key is the first argument of `apply`, as for `from_torch(cls, random=True)`. So
forward gets one more parameter, and backward returns one more None. Code that counts
arguments from the left counts one more. Draws outside of forward are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxfn.torch._base import key_name, torch
from jaxfn.torch._translate.analysis.infer import Inference
from jaxfn.torch._translate.source import Unit
from jaxfn.torch._translate.syntax import code, cst, cst_params, find, members
from jaxfn.torch._translate.table import DRAWS

BACKWARD = ("backward", "vjp")
# The least number of positional parameters of each rule.
_LEAST = {"forward": 1, "setup_context": 3, "backward": 0, "vjp": 0, "jvp": 1}
_LOOPS = (cst.For, cst.While)
_FRAMES = (cst.FunctionDef, cst.SimpleStatementLine, *_LOOPS, cst.Lambda)
_FRAMES += (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)


class DrawAnalysis(cst.CSTVisitor):
    """The random draws of a unit.

    Attributes:
        problems: Reasons that nodes can't be translated.
        key: Name of the key in forward.
        keys: Name of the key of each draw.
        lines: Statements before which the key is split.
    """

    def __init__(self, unit: Unit, infer: Inference) -> None:
        super().__init__()
        self._unit, self._infer = unit, infer
        self._around: list[Any] = []
        self._in_loop = False
        self.problems: dict[Any, str] = {}
        self.keys: dict[Any, str] = {}
        self.lines: set[Any] = set()
        unit.node.visit(self)
        self.key = key_name(_taken(unit.node))
        alone = len(self.keys) == 1 and not self._in_loop
        self.keys = dict.fromkeys(self.keys, self.key if alone else f"sub{self.key}")
        self.lines = set() if alone else self.lines
        if self.takes_key:
            unit.node.visit(_Counting(infer, self.problems))
            self._check_rules()

    @property
    def takes_key(self) -> bool:
        """Return whether it is a Function whose `apply` takes a key."""
        return bool(self.keys)

    @property
    def has_setup(self) -> bool:
        """Return whether it defines setup_context, and forward has no ctx."""
        return _own(self._unit.value, "setup_context")

    def refuse_beside(self, keyed: Sequence[type]) -> None:
        """Mark code that relies on how many arguments these classes take."""
        unit = self._unit
        if not unit.is_function_class:
            unit.node.visit(_CountingElsewhere(self.problems))
        elif not self.takes_key and issubclass(unit.value, tuple(keyed)):
            why = "it inherits from a Function that draws, which takes a key"
            self.problems[unit.node] = why
        for function in find(unit.node, cst.FunctionDef):
            for node in find(function, cst.Name, cst.Attribute):
                if self._is_use(node, keyed):
                    why = "a Function that draws is used, which takes a key"
                    self.problems.setdefault(node, why)

    def _is_use(self, node: Any, keyed: Sequence[type]) -> bool:
        """Return whether it is one of these classes, or its `apply`."""
        value = getattr(self._unit.references.get(node), "value", None)
        owner = getattr(value, "__self__", None)
        named = isinstance(node, cst.Name) and node.value in {
            cls.__name__ for cls in keyed
        }
        return named or any(value is cls or owner is cls for cls in keyed)

    def _check_rules(self) -> None:
        """Mark a class whose rules have unexpected signatures."""
        found = members(self._unit.node)
        for name, least in _LEAST.items():
            rule = found.get(name)
            if rule is None:
                if _own(self._unit.value, name):
                    self.problems[self._unit.node] = f"{name} is not defined by a def"
                continue
            if name == "forward" and self.has_setup:
                least = 0  # it gets no ctx
            static = any(code(d.decorator) == "staticmethod" for d in rule.decorators)
            params = rule.params
            if params.posonly_params or len(params.params) < least or not static:
                self.problems[rule] = "its signature, because the key needs a parameter"

    # ---- draws

    def on_visit(self, node: Any) -> bool:
        if isinstance(node, (cst.Decorator, cst.Annotation)):
            return False
        if isinstance(node, cst.Call) and self._draws(node):
            problem = self._problem()
            if problem:
                self.problems[node] = problem
            else:
                self.lines.add(self._around[-1])
                self._in_loop |= any(isinstance(n, _LOOPS) for n in self._around)
                self.keys[node] = ""
        if isinstance(node, _FRAMES):
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

    def _problem(self) -> str:
        """Return why the current draw can't have a key."""
        names = [n.name.value for n in self._around if isinstance(n, cst.FunctionDef)]
        if not self._unit.is_function_class:
            return "random draws in a helper: draw in forward, and pass them on"
        if _inherits(self._unit.value):
            return "random draws in a class that inherits rules"
        if _own(self._unit.value, "vmap"):
            return "random draws beside a vmap rule"
        if names[:1] != ["forward"]:
            where = names[0] if names else "the class"
            return f"random draws in {where}: draw in forward, and save what was drawn"
        line = self._around[-1]
        if len(names) > 1 or not isinstance(line, cst.SimpleStatementLine):
            return "random draws in a nested function, or in the head of a block"
        if len(line.body) > 1 or line in self.lines:
            return "a second random draw in one line"
        return ""


def _inherits(cls: Any) -> bool:
    parents = [c for c in cls.__mro__[1:] if not c.__module__.startswith("torch.")]
    return parents != [object]


def _own(cls: Any, rule: str) -> bool:
    return getattr(cls, rule) is not getattr(torch.autograd.Function, rule)


def _taken(node: Any) -> set[str]:
    """Return names that the key may not have: the class's, also without prefix."""
    words = {name.value for name in find(node, cst.Name)}
    return words | {w.removeprefix(p) for w in words for p in ("sub", "_")}


# ---- code that counts the arguments


def counts_arguments(node: Any, functions: list[Any]) -> bool:
    """Return whether it has an element for each argument of `apply`."""
    if isinstance(node, cst.Attribute):
        return node.attr.value == "needs_input_grad"
    if isinstance(node, cst.SimpleString):
        return "needs_input_grad" in node.value
    if not functions or functions[0].name.value != "setup_context":
        return False
    params = functions[0].params.params
    is_name = isinstance(node, cst.Name) and len(params) > 1
    return is_name and node.value == params[1].name.value


def index_of(node: Any) -> int | None:
    """Return the index from the left that is written out: `x[1]`."""
    if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        value = node.slice[0].slice.value
        if isinstance(value, cst.Integer):
            return int(value.evaluated_value)
    return None


def unpacks(node: Any) -> bool:
    """Return whether it is `a, b = ...`."""
    target = node.targets[0].target
    return len(node.targets) == 1 and isinstance(target, (cst.Tuple, cst.List))


class _CountingElsewhere(cst.CSTVisitor):
    """A visitor that marks code of a helper that counts a class's arguments."""

    def __init__(self, problems: dict[Any, str]) -> None:
        super().__init__()
        self._problems = problems
        self._functions: list[Any] = []  # the class's functions around a node
        self._rewritten: set[Any] = set()

    def on_visit(self, node: Any) -> bool:
        if node not in self._rewritten and counts_arguments(node, self._functions):
            self._problems[node] = f"{code(node)} has one more for the key"
        return super().on_visit(node)


class _Counting(_CountingElsewhere):
    """A visitor that marks code that can't be made to count one more argument."""

    def __init__(self, infer: Inference, problems: dict[Any, str]) -> None:
        super().__init__(problems)
        self._infer = infer

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
        """Return whether it is one gradient on each path, and never a tuple."""
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
