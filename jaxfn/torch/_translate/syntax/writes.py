"""Writes into tensors, as the text shows them."""

from __future__ import annotations

from typing import Any

from jaxfn.torch._translate.syntax.expressions import code, cst, dotted, keywords

_LAST = {"offset": "0", "dim1": "-2", "dim2": "-1"}


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
    if isinstance(node, cst.Subscript):
        return node.value.value if isinstance(node.value, cst.Name) else None
    return diagonal_of(node)


def root_of(node: Any) -> str | None:
    """Return the name that an expression is, or is a part of, without its writes."""
    writes = writes_of(node)
    if writes:
        node = writes[-1].func.value
    return node.value if isinstance(node, cst.Name) else view_of(node)


def diagonal_of(node: Any) -> str | None:
    """Return the name of which this is the main diagonal, in its last two axes."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    if node.func.attr.value != "diagonal":
        return None
    values = [a.value for a in node.args if a.keyword is None]
    said = {name: code(value) for name, value in keywords(node).items()}
    x = values.pop(0) if dotted(node.func.value) == ["torch"] else node.func.value
    said |= dict(zip(_LAST, map(code, values), strict=False))
    known = {"offset": "0", **said} == _LAST
    return x.value if known and isinstance(x, cst.Name) else None
