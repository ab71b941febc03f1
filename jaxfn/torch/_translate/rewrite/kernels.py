"""Triton kernels, whose text stays: only names of other definitions may change."""

from __future__ import annotations

from typing import Any

from jaxfn.torch._translate.analysis import Analysis
from jaxfn.torch._translate.rewrite.base import Untranslated
from jaxfn.torch._translate.source import Unit, key_of
from jaxfn.torch._translate.syntax import code, cst


def kernel(unit: Unit, program: Analysis) -> tuple[Any, list[Untranslated]]:
    """Return the definition of a kernel, and the names in it that can't be had."""
    names = _KernelNames(unit, program)
    return unit.node.visit(names), names.left


class _KernelNames(cst.CSTTransformer):
    def __init__(self, unit: Unit, program: Analysis) -> None:
        super().__init__()
        self._unit, self._program = unit, program
        self.left: list[Untranslated] = []

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = super().on_leave(original_node, updated_node)
        target = self._unit.references.get(original_node)
        if target is None or target.kind in ("import", "builtin"):
            return updated
        found = target.kind == "unit" and self._program.units.get(key_of(target))
        if found:
            is_own = isinstance(original_node, cst.Name)
            same = is_own and original_node.value == found.name
            return updated if same else cst.Name(found.name)
        where = f"{self._unit.source.file}:{self._unit.line(self._unit.node)}"
        reason = f"{target.name}, which the kernel uses and can't be carried over"
        self.left.append(Untranslated(where, code(original_node), reason))
        return updated
