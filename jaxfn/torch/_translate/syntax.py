"""LibCST expressions: parsed, filled in, with the parentheses that they need.

Only this module imports LibCST.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

cst: Any = importlib.import_module("libcst")
matchers: Any = importlib.import_module("libcst.matchers")
metadata: Any = importlib.import_module("libcst.metadata")
codemod: Any = importlib.import_module("libcst.codemod")
visitors: Any = importlib.import_module("libcst.codemod.visitors")


_ATOMS = (
    cst.Name,
    cst.Attribute,
    cst.Subscript,
    cst.Call,
    cst.BaseNumber,
    cst.BaseString,
)
_ATOMS += (cst.List, cst.Set, cst.Dict, cst.BaseComp, cst.Ellipsis)


class _Mark(cst.SimpleWhitespace):
    """Whitespace that marks our own parentheses, which go if nothing needs them."""


_LEFT = cst.LeftParen(whitespace_after=_Mark(""))


_WHOLE = (cst.Tuple, cst.GeneratorExp)


class Sizes(list):
    """One argument that holds all sizes."""


def paren(node: Any) -> Any:
    """Return an expression that can stand anywhere."""
    own = getattr(node, "lpar", ())
    if len(own) == 1 and not isinstance(node, _WHOLE) and "\n" not in code(node):
        return node.with_changes(lpar=[_LEFT])  # its new place may need none
    if own or isinstance(node, _ATOMS):
        return node
    return node.with_changes(lpar=[_LEFT], rpar=[cst.RightParen()])


@functools.cache
def _parsed(text: str) -> Any:
    return cst.parse_expression(text)


def fill(template: str, values: Mapping[str, Any]) -> Any:
    """Return the template with expressions in place of names.

    An argument whose value is a name that `values` maps to None is dropped. A starred
    name that maps to a list of arguments becomes these arguments.
    """
    return _parsed(template).visit(_Filling(values))


class _Filling(cst.CSTTransformer):
    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__()
        self._values = values

    def leave_Name(self, original_node: Any, updated_node: Any) -> Any:
        found = self._values.get(original_node.value, original_node)
        if isinstance(found, Sizes):
            return paren(found[0].value)
        if isinstance(found, list):
            return _as_tuple(found)
        return updated_node if found is None else paren(found)

    def leave_Attribute(self, original_node: Any, updated_node: Any) -> Any:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: Any, updated_node: Any) -> Any:
        value = original_node.value
        if isinstance(value, cst.Name) and value.value in self._values:
            found = self._values[value.value]
            if found is None:
                return cst.RemoveFromParent()
            if isinstance(found, list) and original_node.star == "*":
                return cst.FlattenSentinel([plain(arg) for arg in found])
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Call(self, original_node: Any, updated_node: Any) -> Any:
        args = list(updated_node.args)
        if args:  # the last comma may belong to an argument that was dropped
            args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(args=args)


def plain(arg: Any) -> Any:
    """Return an argument without its comma and whitespace."""
    return arg.with_changes(
        comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=cst.SimpleWhitespace("")
    )


def _as_tuple(args: Sequence[Any]) -> Any:
    if len(args) == 1 and args[0].star == "*" and dotted(args[0].value):
        return args[0].value  # a list of sizes works too
    elements = [
        cst.StarredElement(arg.value) if arg.star == "*" else cst.Element(arg.value)
        for arg in args
    ]
    if len(args) == 1:
        only = elements[0].with_changes(
            comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(""))
        )
        elements = [only]
    return cst.Tuple(elements)


def code(node: Any) -> str:
    """Return the text of a node."""
    return cst.Module([]).code_for_node(node)


def dotted(node: Any) -> list[str] | None:
    """Return ["a", "b"] for `a.b`; None for anything but names and dots."""
    if isinstance(node, cst.Name):
        return [node.value]
    if isinstance(node, cst.Attribute):
        head = dotted(node.value)
        return None if head is None else [*head, node.attr.value]
    return None


_AROUND: dict[type, str] = {
    cst.Arg: "f({})",
    cst.Index: "x[{}]",
    cst.Slice: "x[{}]",
    cst.Element: "[{}]",
    cst.DictElement: "{{{}}}",
    cst.ComparisonTarget: "x {}",
}
"""What makes a piece of code a statement."""


class Unparen(cst.CSTTransformer):
    """A transformer that removes our own parentheses if nothing needs them."""

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = super().on_leave(original_node, updated_node)
        for field in dataclasses.fields(updated):
            part = getattr(updated, field.name)
            if not _is_ours(part) or _is_kept(updated, part):
                continue
            bare = part.with_changes(lpar=part.lpar[1:], rpar=part.rpar[1:])
            shorter = updated.with_changes(**{field.name: bare})
            if _meaning(shorter) == _meaning(updated):
                updated = shorter
        return updated


def _is_ours(node: Any) -> bool:
    own = getattr(node, "lpar", None)
    return bool(own) and isinstance(own[0].whitespace_after, _Mark)


def _is_kept(node: Any, part: Any) -> bool:
    """Return whether a part is better read with parentheses, or has several lines."""
    logic = cst.BooleanOperation
    both = isinstance(node, logic) and isinstance(part, logic)
    return both or isinstance(part, _WHOLE) or "\n" in code(part)


def _meaning(node: Any) -> Any:
    """Return the syntax tree of a piece of code; of what can't stand alone, nothing."""
    plain = "({})" if isinstance(node, cst.BaseExpression) else "{}"
    text = _AROUND.get(type(node), plain).format(code(node))
    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:
        return object()


def find(tree: Any, *kinds: type) -> list[Any]:
    """Return all nodes of these types in a tree."""
    return matchers.findall(tree, matchers.MatchIfTrue(lambda n: isinstance(n, kinds)))


def is_line(node: Any, kind: type) -> bool:
    """Return whether it is a line of one statement, of this type."""
    line = isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1
    return line and isinstance(node.body[0], kind)


def keywords(call: Any) -> dict[str, Any]:
    """Return the arguments of a call that are given by name."""
    return {a.keyword.value: a.value for a in call.args if a.keyword is not None}


def indices(node: Any) -> list[Any]:
    """Return the expressions in a subscript that are no slices."""
    found = []
    for element in node.slice:
        if isinstance(element.slice, cst.Index):
            value = element.slice.value
            if isinstance(value, cst.Tuple):
                found.extend(e.value for e in value.elements)
            else:
                found.append(value)
    return found


def observed_parts(node: Any) -> list[Any]:
    """Return the node, or its parts if no run shows its own type."""
    if isinstance(node, (cst.ListComp, cst.GeneratorExp, cst.SetComp)):
        return observed_parts(node.elt)
    if isinstance(node, cst.BooleanOperation):
        return [*observed_parts(node.left), *observed_parts(node.right)]
    if isinstance(node, (cst.Dict, cst.Set)):
        return [part for e in node.elements for part in observed_parts(e.value)]
    return observed_parts(node.value) if isinstance(node, cst.NamedExpr) else [node]


def is_write_name(name: str) -> bool:
    """Return whether a method of this name writes to its tensor."""
    special = name.endswith("__") or name in ("requires_grad_", "retain_grad")
    return name.endswith("_") and not special


def is_in_place(call: Any) -> bool:
    """Return whether the call has `inplace=True`."""
    inplace = keywords(call).get("inplace")
    return inplace is not None and dotted(inplace) == ["True"]


def writes_of(node: Any) -> list[Any]:
    """Return the calls in a chain of writes, `x.mul_(2).add_(1)`, last one first."""
    found: list[Any] = []
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if not is_write_name(node.func.attr.value):
            break
        found.append(node)
        node = node.func.value
    return found


def view_of(node: Any) -> str | None:
    """Return the name of which an expression is a part that shares its memory."""
    is_part = isinstance(node, cst.Subscript) and isinstance(node.value, cst.Name)
    return node.value.value if is_part else None


def root_of(node: Any) -> str | None:
    """Return the name that an expression is, or is a part of, without its writes."""
    writes = writes_of(node)
    if writes:
        node = writes[-1].func.value
    return node.value if isinstance(node, cst.Name) else view_of(node)
