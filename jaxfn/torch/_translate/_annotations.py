"""Annotations: the same, in JAX's types, or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxfn.torch._translate._lib import cst
from jaxfn.torch._translate._units import Unit

_TYPES = {
    "torch.Tensor": "jax.Array",
    "torch.FloatTensor": "jax.Array",
    "torch.LongTensor": "jax.Array",
    "torch.BoolTensor": "jax.Array",
    "torch.autograd.Variable": "jax.Array",
    "torch.autograd.function.FunctionCtx": "jaxfn.FunctionCtx",
    "torch.autograd.function.BackwardCFunction": "jaxfn.BackwardCFunction",
}


def annotation(unit: Unit, units: Mapping[Any, Unit], node: Any) -> Any:
    """The annotation with JAX's types; None if it has no meaning in JAX."""
    types = _Types(unit, units)
    found = node.annotation.visit(types)
    return None if types.failed else node.with_changes(annotation=found)


class _Types(cst.CSTTransformer):
    def __init__(self, unit: Unit, units: Mapping[Any, Unit]) -> None:
        super().__init__()
        self._unit, self._units = unit, units
        self.failed = False

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = super().on_leave(original_node, updated_node)
        if isinstance(original_node, (cst.SimpleString, cst.ConcatenatedString)):
            self.failed = True  # it may name anything
        target = self._unit.references.get(original_node)
        if target is None:
            array = self._is_numpys(original_node)
            return cst.parse_expression("jax.Array") if array else updated
        if target.kind == "torch":
            if target.name in _TYPES:
                return cst.parse_expression(_TYPES[target.name])
            self.failed = True
        elif target.kind == "unit":
            assert target.source is not None
            found = self._units.get((target.source.name, target.path))
            self.failed = self.failed or found is None
            return updated if found is None else cst.Name(found.name)
        elif target.kind not in ("import", "builtin"):
            self.failed = True
        return updated

    def _is_numpys(self, node: Any) -> bool:
        """Is it `np.ndarray`?"""
        if not isinstance(node, cst.Attribute) or node.attr.value != "ndarray":
            return False
        owner = self._unit.references.get(node.value)
        return owner is not None and owner.value is np
