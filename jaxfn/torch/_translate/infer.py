"""The types of expressions, also of those that no run has reached."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn.torch._base import torch
from jaxfn.torch._translate.observed import TENSOR, UNKNOWN, ExprType, Observations
from jaxfn.torch._translate.syntax import code, cst
from jaxfn.torch._translate.table import DTYPES, ROWS
from jaxfn.torch._translate.units import Unit, cst_params

_SEQ, _INT, _DTYPE = ExprType("seq"), ExprType("int"), ExprType("dtype")
_SIZE = ExprType("seq", "Size")
_BUSY = ExprType("busy")  # inference is under way: a name is bound to itself
_TENSORS = ("torch.Tensor", "torch.LongTensor")
_RULES = ("backward", "vjp")
_CONSTANTS = {"True": "bool", "False": "bool", "None": "none"}


class Inference:
    """The types of a unit's expressions."""

    def __init__(self, unit: Unit, facts: Observations) -> None:
        self._unit, self._facts = unit, facts
        self._busy: set[Any] = set()

    def of(self, node: Any) -> ExprType:
        """Return the type of an expression."""
        found = self._facts.of(node)
        if found.kind != "unknown":
            return found
        if node in self._busy:
            return _BUSY
        self._busy.add(node)
        try:
            found = self._guess(node)
        finally:
            self._busy.discard(node)
        return UNKNOWN if found.kind == "busy" and not self._busy else found

    # ---- from the text

    def _guess(self, node: Any) -> ExprType:
        if isinstance(node, (cst.Integer, cst.Float)):
            number: Any = node.evaluated_value
            return ExprType(type(number).__name__, value=number)
        if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)):
            return ExprType("str")
        if isinstance(node, (cst.Tuple, cst.List, cst.ListComp)):
            return _SEQ
        if isinstance(node, (cst.Dict, cst.DictComp, cst.Set, cst.SetComp, cst.Lambda)):
            return ExprType("other")
        if isinstance(node, cst.BinaryOperation):
            return self._either(node.left, node.right)
        guess = {
            cst.UnaryOperation: self._unary,
            cst.Comparison: self._comparison,
            cst.Name: self._name,
            cst.Attribute: self._attribute,
            cst.Subscript: self._subscript,
            cst.Call: self._call,
        }.get(type(node))
        return UNKNOWN if guess is None else guess(node)

    def _unary(self, node: Any) -> ExprType:
        is_not = isinstance(node.operator, cst.Not)
        return ExprType("bool") if is_not else self._either(node.expression)

    def _comparison(self, node: Any) -> ExprType:
        plain = (cst.Is, cst.IsNot, cst.In, cst.NotIn)
        if any(isinstance(c.operator, plain) for c in node.comparisons):
            return ExprType("bool")
        found = self._either(node.left, *(c.comparator for c in node.comparisons))
        return found if found.kind in ("tensor", "unknown") else ExprType("bool")

    def _either(self, *nodes: Any) -> ExprType:
        kinds = [self.of(n).kind for n in nodes]
        if "tensor" in kinds:
            return TENSOR
        if "busy" in kinds:
            return _BUSY
        if "unknown" in kinds or "mixed" in kinds:
            return UNKNOWN
        if "float" in kinds:
            return ExprType("float")
        return ExprType(kinds[0])

    def _name(self, node: Any) -> ExprType:
        name = node.value
        if name in _CONSTANTS:
            return ExprType(_CONSTANTS[name])
        if node in self._unit.references:
            return self._reference(self._unit.references[node])
        return self._variable(node)

    def _variable(self, node: Any) -> ExprType:
        """Return the type of a name, from other uses or from what it is bound to."""
        names = self._unit.names
        seen = [self._facts.of(n) for n in names.uses(node)]
        seen = [f for f in seen if f.kind != "unknown"]
        if not seen:
            seen = [self._bound(*names.value(b)) for b in names.bindings(node)]
        seen = [f for f in seen if f.kind != "busy"]
        found = functools.reduce(ExprType.joined, seen) if seen else UNKNOWN
        return UNKNOWN if found.kind == "mixed" else found

    def _bound(self, how: str, value: Any) -> ExprType:
        if how == "param":
            return self._param(value, self._unit.names.function(value))
        if how == "value":
            return self.of(value)
        return TENSOR if how == "item" and _is_saved(value) else UNKNOWN

    def _param(self, param: Any, function: Any) -> ExprType:
        annotation = param.annotation
        if annotation is not None:
            target = self._unit.references.get(annotation.annotation)
            text = code(annotation.annotation)
            if target is not None and target.name in _TENSORS:
                return TENSOR
            if text in ("int", "float", "bool", "str"):
                return ExprType(text)
        if not self._unit.is_function_class or function is None:
            return UNKNOWN
        params = cst_params(function.params)
        skipped = 2 if params and params[0].name.value == "cls" else 1
        is_gradient = function.name.value in _RULES and param in params[skipped:]
        return TENSOR if is_gradient and param.star not in ("*", "**") else UNKNOWN

    def _reference(self, target: Any) -> ExprType:
        if target.kind == "torch":
            name = target.name.rpartition(".")[2]
            return _DTYPE if name in DTYPES or _is_dtype(target) else UNKNOWN
        return TENSOR if isinstance(target.value, torch.Tensor) else UNKNOWN

    def _attribute(self, node: Any) -> ExprType:
        target = self._unit.references.get(node)
        if target is not None:
            return self._reference(target)
        if _is_saved(node):
            return _SEQ
        if node.attr.value == "dtype":
            return _DTYPE
        if self.of(node.value).is_tensor:
            name = node.attr.value
            if name in ("T", "mT", "H", "mH", "real", "imag", "data"):
                return TENSOR
            return {"shape": _SIZE, "dtype": _DTYPE, "ndim": _INT}.get(
                name, ExprType("device") if name == "device" else UNKNOWN
            )
        return UNKNOWN

    def _subscript(self, node: Any) -> ExprType:
        inner = node.value
        if self.of(inner).is_tensor or _is_saved(inner):
            return TENSOR
        is_shape = isinstance(inner, cst.Attribute) and inner.attr.value == "shape"
        is_part = is_shape and isinstance(node.slice[0].slice, cst.Index)
        return _INT if is_part else UNKNOWN

    def _call(self, node: Any) -> ExprType:
        """Return a tensor for a function or method whose rows are elementwise."""
        return TENSOR if is_elementwise(self.name(node)) else UNKNOWN

    def name(self, call: Any) -> str:
        """Return the name in the table that a call has; empty if it has none."""
        func, target = call.func, self._unit.references.get(call.func)
        if target is not None:
            return target.name if target.kind == "torch" else ""
        is_method = isinstance(func, cst.Attribute) and self.of(func.value).is_tensor
        return f"Tensor.{func.attr.value}" if is_method else ""


def is_elementwise(name: str) -> bool:
    """Return whether all rows of a name are elementwise."""
    rows = ROWS.get(name, ())
    return bool(rows) and all(row.elementwise for row in rows)


def widens(facts: Sequence[ExprType], wanted: str | None) -> bool:
    """Return whether JAX finds another dtype for these than torch did.

    In torch, a 0-d tensor does not widen an array, and a tensor that is written to
    keeps its dtype. In JAX all arrays widen.
    """
    dtypes: list[Any] = [f.dtype for f in facts if f.is_tensor or f.kind == "array"]
    if not dtypes or None in dtypes or wanted in (None, "bool"):
        return False
    with jax.enable_x64(True):
        found = jnp.result_type(*dtypes, *[1.0 for f in facts if f.kind == "float"])
    return str(found) != wanted


def _is_saved(node: Any) -> bool:
    found = isinstance(node, cst.Attribute) and node.attr.value
    return found in ("saved_tensors", "saved_variables")


def _is_dtype(target: Any) -> bool:
    return type(target.value).__name__ == "dtype"
