"""Functions whose `apply` takes a key before the other arguments."""

from __future__ import annotations

from typing import Any

from jaxfn.torch._translate.analysis import (
    BACKWARD,
    counts_arguments,
    index_of,
    unpacks,
)
from jaxfn.torch._translate.syntax import cst


class WithKey(cst.CSTTransformer):
    """A transformer that adds the key to a class."""

    def __init__(self, key: str, has_setup: bool) -> None:
        super().__init__()
        self._key, self._has_setup = key, has_setup
        self._functions: list[Any] = []

    def visit_FunctionDef(self, node: Any) -> None:
        self._functions.append(node)

    def leave_FunctionDef(self, original_node: Any, updated_node: Any) -> Any:
        self._functions.pop()
        name = "" if self._functions else updated_node.name.value
        if name == "forward":
            return _inserted(updated_node, self._key, 0 if self._has_setup else 1)
        if name == "jvp":  # it also gets the tangent of the key, None
            return _inserted(updated_node, f"_{self._key}", 1)
        return updated_node

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
    """Return a function with one more parameter."""
    params = function.params
    every = list(params.params)
    annotated = any(p.annotation is not None for p in every)
    note = cst.Annotation(cst.parse_expression("jax.Array")) if annotated else None
    # On a line of its own, if the others are.
    commas = [p.comma for p in every[:-1]] or [cst.MaybeSentinel.DEFAULT]
    every.insert(place, cst.Param(cst.Name(name), note, comma=commas[0]))
    return function.with_changes(params=params.with_changes(params=every))


def _preceded(value: Any, name: str) -> Any:
    """Return a tuple with one more element in front; another value becomes one."""
    first = cst.Element(cst.Name(name))
    if not isinstance(value, (cst.Tuple, cst.List)):
        return cst.Tuple([first, cst.Element(value)], lpar=[], rpar=[])
    rest = list(value.elements)
    if len(rest) == 1:  # its comma made it a tuple
        rest[0] = rest[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        if isinstance(value, cst.Tuple):
            value = value.with_changes(lpar=[], rpar=[])
    return value.with_changes(elements=[first, *rest])


def split(key: str) -> Any:
    """Return the statement `key, subkey = jax.random.split(key)`."""
    return cst.parse_statement(f"{key}, sub{key} = jax.random.split({key})").body[0]
