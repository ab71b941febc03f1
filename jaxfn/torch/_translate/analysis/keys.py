"""Classes of Functions whose `apply` takes a key before the other arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxfn.torch._translate.syntax import cst

BACKWARD = ("backward", "vjp")


def counts_arguments(node: Any, functions: list[Any]) -> bool:
    """Has it an element for each argument: `ctx.needs_input_grad`, or inputs?"""
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
    """The index from the left that is written out: `x[1]`."""
    if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        value = node.slice[0].slice.value
        if isinstance(value, cst.Integer):
            return int(value.evaluated_value)
    return None


def unpacks(node: Any) -> bool:
    target = node.targets[0].target
    return len(node.targets) == 1 and isinstance(target, (cst.Tuple, cst.List))


class WithKey(cst.CSTTransformer):
    """Rewrites a class that is translated.

    Args:
        key: the name of the key in forward.
        has_setup: does the class define setup_context, so that forward has no ctx?
        splits: the rules that draw; does each split its key?
    """

    def __init__(self, key: str, has_setup: bool, splits: Mapping[str, bool]) -> None:
        super().__init__()
        self._key, self._has_setup, self._splits = key, has_setup, splits
        self._functions: list[Any] = []

    def visit_FunctionDef(self, node: Any) -> None:
        self._functions.append(node)

    def leave_FunctionDef(self, original_node: Any, updated_node: Any) -> Any:
        self._functions.pop()
        if self._functions:
            return updated_node
        name, key = updated_node.name.value, self._key
        saving = "setup_context" if self._has_setup else "forward"
        if name == saving and not self._splits.keys().isdisjoint(BACKWARD):
            updated_node = _begun(updated_node, self._saved(updated_node))
        if name in BACKWARD and self._splits.get(name):
            updated_node = _begun(updated_node, f"{key} = ctx.{key}")
        if name == "forward":
            return _inserted(updated_node, key, 0 if self._has_setup else 1)
        if name == "jvp":  # it gets a tangent of the key, which is none
            return _inserted(updated_node, f"_{self._key}", 1)
        return updated_node

    def _saved(self, function: Any) -> str:
        """Keep a key for backward: that of the call, or one of its own."""
        key = self._key
        if self._has_setup:
            return f"ctx.{key} = {function.params.params[1].name.value}[0]"
        if "forward" in self._splits:
            return f"{key}, ctx.{key} = jax.random.split({key})"
        return f"ctx.{key} = {key}"

    def leave_Return(self, original_node: Any, updated_node: Any) -> Any:
        names = [f.name.value for f in self._functions]
        if len(names) != 1 or names[0] not in BACKWARD or updated_node.value is None:
            return updated_node
        return updated_node.with_changes(value=_preceded(updated_node.value, "None"))

    def leave_Subscript(self, original_node: Any, updated_node: Any) -> Any:
        index = index_of(original_node)
        counts = counts_arguments(original_node.value, self._functions)
        if index is None or not counts:
            return updated_node
        more = cst.Index(cst.Integer(str(index + 1)))
        return updated_node.with_changes(slice=[cst.SubscriptElement(more)])

    def leave_Assign(self, original_node: Any, updated_node: Any) -> Any:
        counts = counts_arguments(original_node.value, self._functions)
        if not unpacks(original_node) or not counts:
            return updated_node
        target = updated_node.targets[0]
        more = target.with_changes(target=_preceded(target.target, f"_{self._key}"))
        return updated_node.with_changes(targets=[more])


def _inserted(function: Any, name: str, place: int) -> Any:
    """A function with one more parameter."""
    params = function.params
    every = list(params.params)
    annotated = any(p.annotation is not None for p in every)
    note = cst.Annotation(cst.parse_expression("jax.Array")) if annotated else None
    # On a line of its own, where the others are.
    commas = [p.comma for p in every[:-1]] or [cst.MaybeSentinel.DEFAULT]
    every.insert(place, cst.Param(cst.Name(name), note, comma=commas[0]))
    return function.with_changes(params=params.with_changes(params=every))


def _begun(function: Any, text: str) -> Any:
    """A function with one more statement at its beginning."""
    place = 1 if function.get_docstring() is not None else 0
    body = list(function.body.body)
    body.insert(place, cst.parse_statement(text))
    return function.with_changes(body=function.body.with_changes(body=body))


def _preceded(value: Any, name: str) -> Any:
    """A tuple with one more in front, made of one value where it is none."""
    first = cst.Element(cst.Name(name))
    if isinstance(value, (cst.Tuple, cst.List)):
        rest = list(value.elements)
        if len(rest) == 1:  # its comma made it a tuple
            rest[0] = rest[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            value = value.with_changes(lpar=[], rpar=[]) if _is_tuple(value) else value
        return value.with_changes(elements=[first, *rest])
    return cst.Tuple([first, cst.Element(value)], lpar=[], rpar=[])


def _is_tuple(value: Any) -> bool:
    return isinstance(value, cst.Tuple)


def split(key: str) -> Any:
    """The statement `key, subkey = jax.random.split(key)`."""
    return cst.parse_statement(f"{key}, sub{key} = jax.random.split({key})").body[0]
