"""`torch.empty` and zeros that launches fill: a shape and dtype is enough for these.

`Y = torch.empty_like(X)` becomes `Y = jax.ShapeDtypeStruct(X.shape, X.dtype)` if the
first use of its elements is a launch that writes to it. Names are followed statement by
statement. If a name may be such a shape and an array in one place, it is an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from jaxfn.torch._translate.analysis.infer import Inference
from jaxfn.torch._translate.syntax import (
    cst,
    cst_params,
    dotted,
    find,
    keywords,
    names_read,
    stored,
    stored_names,
)

# A launch gets zeros for a shape.
_EMPTY = {"empty", "empty_like", "new_empty", "zeros", "zeros_like", "new_zeros"}
_ASKED = {"shape", "dtype", "ndim", "device", "size", "stride", "numel", "dim"}
_ASKED |= {"is_contiguous", "nelement", "ndimension", "element_size"}
_ARRAY = "an array"
_ARRAYS = frozenset({_ARRAY})
Values = dict[str, frozenset[Any]]


class Structs:
    """The calls of `torch.empty` in functions that may be shapes.

    Attributes:
        made: These calls.
        given: The expressions that launches write to, and that are such shapes.
    """

    def __init__(
        self, functions: list[Any], infer: Inference, plan: Callable[[Any], Any]
    ) -> None:
        self._infer, self._plan = infer, plan
        self._refused: set[Any] = set()
        self.made: set[Any] = set()
        self.given: set[Any] = set()
        refused = -1
        while refused != len(self._refused):
            refused = len(self._refused)
            self.made, self.given = set(), set()
            for function in functions:
                names = [p.name.value for p in cst_params(function.params)]
                self._block(function.body.body, dict.fromkeys(names, _ARRAYS))

    # ---- statements

    def _block(self, body: Iterable[Any], values: Values) -> Values:
        for statement in body:
            values = self._statement(statement, values)
        return values

    def _statement(self, node: Any, values: Values) -> Values:
        if isinstance(node, cst.If):
            self._read(node.test, values)
            one = self._block(node.body.body, dict(values))
            return _joined(one, self._orelse(node.orelse, values))
        if isinstance(node, (cst.For, cst.While)):
            self._read(node.iter if isinstance(node, cst.For) else node.test, values)
            for _ in range(2):
                values = _joined(self._block(node.body.body, dict(values)), values)
            return self._orelse(node.orelse, values)
        if isinstance(node, cst.With):
            for item in node.items:
                self._read(item.item, values)
            return self._block(node.body.body, values)
        if isinstance(node, cst.SimpleStatementLine):
            for small in node.body:
                values = self._small(small, values)
            return values
        self._refuse(names_read(node) | stored_names([node]), values)
        return values  # it may run at any time

    def _orelse(self, node: Any, values: Values) -> Values:
        if node is None:
            return dict(values)
        return self._block(
            [node] if isinstance(node, cst.If) else node.body.body, values
        )

    def _small(self, small: Any, values: Values) -> Values:
        if isinstance(small, cst.Expr):
            plan = isinstance(small.value, cst.Call) and self._plan(small.value)
            if plan and not plan.problem:
                return self._launch(small.value, plan, values)
        if isinstance(small, cst.Assign) and len(small.targets) == 1:
            calls, target = self._empties(small.value), small.targets[0].target
            is_none = dotted(small.value) == ["None"]
            if (calls or is_none) and isinstance(target, cst.Name):
                self._read(small.value, values)
                self.made |= calls
                return values | {target.value: frozenset(calls)}
        self._read(small, values)
        names = [n for t in find(small, cst.AssignTarget) for n in stored(t.target)]
        return values | dict.fromkeys(names, frozenset({_ARRAY}))

    def _empties(self, node: Any) -> set[Any]:
        """Return the calls of `torch.empty` that a value is, if it is nothing else."""
        if isinstance(node, cst.IfExp):
            arms = [self._empties(n) for n in (node.body, node.orelse)]
            nones = [dotted(n) == ["None"] for n in (node.body, node.orelse)]
            fine = all(a or n for a, n in zip(arms, nones, strict=True))
            return set().union(*arms) if fine else set()
        if not isinstance(node, cst.Call) or node in self._refused:
            return set()
        dtype: Any = keywords(node).get("dtype")
        if dtype is not None and self._infer.of(dtype).kind != "dtype":
            return set()
        target = self._infer.target(node.func)
        name = getattr(target, "name", "") if target is not None else ""
        if target is None and isinstance(node.func, cst.Attribute):
            name = f"torch.{node.func.attr.value}"
        return {node} if name.removeprefix("torch.") in _EMPTY else set()

    # ---- uses

    def _launch(self, call: Any, plan: Any, values: Values) -> Values:
        nodes = list(plan.written.values())
        for arg in call.args:
            if arg.value not in nodes:
                self._read(arg.value, values)
        self._read(call.func, values)
        for name, node in plan.written.items():
            is_name = isinstance(node, cst.Name)
            found = values.get(node.value, _ARRAYS) if is_name else _ARRAYS
            if _ARRAY in found or name in plan.maybe:
                self._refuse(names_read(node), values)
            else:
                self.given.add(node)
        return values | {name: _ARRAYS for n in nodes for name in names_read(n)}

    def _read(self, node: Any, values: Values) -> None:
        uses = _Uses()
        node.visit(uses)
        self._refuse(uses.names, values)

    def _refuse(self, names: Iterable[str], values: Values) -> None:
        for name in names:
            self._refused |= values.get(name, frozenset()) - {_ARRAY}


def _joined(one: Values, two: Values) -> Values:
    none: frozenset[Any] = frozenset()
    return {n: one.get(n, none) | two.get(n, none) for n in one | two}


class _Uses(cst.CSTVisitor):
    """The names of which more than the shape and dtype is read."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_Attribute(self, node: Any) -> bool:
        is_asked = isinstance(node.value, cst.Name) and node.attr.value in _ASKED
        if not is_asked:
            node.value.visit(self)
        return False

    def visit_Comparison(self, node: Any) -> bool:
        alone = len(node.comparisons) == 1 and isinstance(node.left, cst.Name)
        operator = node.comparisons[0].operator
        return not (alone and isinstance(operator, (cst.Is, cst.IsNot)))

    def visit_Arg(self, node: Any) -> bool:
        node.value.visit(self)
        return False

    def visit_AssignTarget(self, node: Any) -> bool:
        return not isinstance(node.target, (cst.Name, cst.Tuple))

    def visit_Name(self, node: Any) -> None:
        self.names.add(node.value)
