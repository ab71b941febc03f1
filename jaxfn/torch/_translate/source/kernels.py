"""Triton kernels, which are carried over word for word, and constants beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxfn.torch._base import experimental
from jaxfn.torch._translate.source.files import SourceFile, literal
from jaxfn.torch._translate.syntax import (
    bound_names,
    code,
    cst,
    dotted,
    find,
    is_line,
    scope_statements,
)


def is_kernel(value: Any) -> bool:
    """Return whether it is a kernel of Triton, perhaps tuned."""
    return experimental.is_kernel(value)


def definition_of(source: SourceFile, path: tuple[str, ...], kernel: Any) -> Any:
    """Return the definition of a kernel: of several in branches, the one that ran."""
    inner = kernel
    while not hasattr(inner, "src") and hasattr(inner, "fn"):
        inner = inner.fn
    options = [
        s
        for s in scope_statements(source.tree.body)
        if isinstance(s, cst.FunctionDef) and path[-1] in set(bound_names(s))
    ]
    same = [s for s in options if _plain(s) in getattr(inner, "src", "")]
    found = (same or options or [source.definition(path)])[-1]
    return _with_triton(source, found, kernel)


def alias_of(source: SourceFile, name: str, value: Any) -> Any:
    """Return `name = tl.name` for a function of Triton that a file gives a name."""
    last = getattr(value, "__name__", "")
    if not getattr(value, "__module__", "").startswith("triton."):
        return None
    for module, found in source.namespace.items():
        is_module = getattr(found, "__name__", "").startswith("triton.")
        if is_module and getattr(found, last, None) is value:
            return cst.parse_statement(f"{name} = {module}.{last}")
    return None


def _plain(function: Any) -> str:
    """Return the text from `def` on."""
    bare = function.with_changes(
        decorators=[], leading_lines=[], lines_after_decorators=[]
    )
    return code(bare).strip()


def _with_triton(source: SourceFile, node: Any, kernel: Any) -> Any:
    """Replace a package's own autotuner by Triton's."""
    if not isinstance(node, cst.FunctionDef) or "triton" not in source.namespace:
        return node
    decorators = []
    for decorator in node.decorators:
        call = decorator.decorator
        of_triton = (dotted(getattr(call, "func", call)) or [""])[0] == "triton"
        if not of_triton and isinstance(call, cst.Call) and hasattr(kernel, "configs"):
            func = cst.parse_expression("triton.autotune")
            decorator = decorator.with_changes(decorator=call.with_changes(func=func))
        decorators.append(decorator)
        kernel = getattr(kernel, "fn", None)
    return node.with_changes(decorators=decorators)


def with_literals(units: dict[Any, Any]) -> dict[Any, Any]:
    """Write constants beside kernels as their values.

    Packages compute them from the GPU, the platform and versions when they are
    imported.
    """
    if not any(is_kernel(unit.value) for unit in units.values()):
        return units
    for unit in units.values():
        text = literal(unit.value)
        if text is not None and _is_computed(unit.node):
            made = cst.parse_statement(f"{unit.path[-1]} = {text}")
            unit.source.origins[made] = unit.node
            unit.node, unit.references, unit.uses = made, {}, []
    return units


def reachable(units: Mapping[Any, Any], roots: list[Any]) -> dict[Any, Any]:
    """Return the units that the first ones use, directly or not."""
    kept: dict[Any, Any] = {}
    left = list(roots)
    while left:
        key = left.pop(0)
        if key in units and key not in kept:
            kept[key] = units[key]
            left.extend(units[key].uses)
    return kept


def _is_computed(node: Any) -> bool:
    if not (is_line(node, cst.Assign) or is_line(node, cst.AnnAssign)):
        return False
    value = node.body[0].value
    return bool(find(value, cst.Call, cst.IfExp, cst.Attribute, cst.Comparison))
