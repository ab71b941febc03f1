"""Reads and writes with boolean masks: `jnp.where`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxfn.torch._translate.analysis.infer import Inference
from jaxfn.torch._translate.syntax import code, cst, fill, indices
from jaxfn.torch._translate.table import ROWS

_KEPT = {"clone", "detach", "to", "float", "double", "type", "contiguous", "type_as"}
_REDUCED = {"sum", "mean", "any", "all", "prod"}


class Masks:
    """The subscripts that are boolean masks."""

    def __init__(self, infer: Inference) -> None:
        self._infer = infer
        self._whole: set[Any] = set()
        self._reduced: set[Any] = set()
        self._read: dict[Any, Any] = {}

    def mask(self, subscript: Any) -> Any:
        """Return the mask if it is all that stands in the brackets, else None."""
        found = indices(subscript)
        if len(subscript.slice) != 1 or len(found) != 1:
            return None
        fact = self._infer.of(found[0])
        return found[0] if fact.is_tensor and fact.dtype == "bool" else None

    def is_masked(self, subscript: Any) -> bool:
        """Return whether a mask stands in the brackets."""
        if not self._infer.of(subscript.value).is_tensor:
            return False
        facts = [self._infer.of(i) for i in indices(subscript)]
        return any(f.is_tensor and f.dtype in ("bool", "uint8") for f in facts)

    def read(self, problem: Callable[[str], None], original: Any, updated: Any) -> Any:
        """Return a subscript that is read; `problem` takes reasons for a refusal."""
        if original in self._whole:
            self._read[original] = updated.slice[0].slice.value
            return updated.value
        if self.is_masked(original):
            problem("a read with a mask has no fixed shape: JAX needs jnp.where")
        if self._infer.of(original.value).is_tensor:
            return _with_arrays(updated)
        return updated

    def plan(self, target: Any, value: Any) -> str | None:
        """Return how to write `x[mask] = value`: "where...", or None to refuse."""
        mask = self.mask(target)
        if mask is None:
            return None
        x, m = self._infer.of(target.value), self._infer.of(mask)
        if x.ndim is None or m.ndim is None or m.ndim > x.ndim:
            return None
        text = code(mask)
        found: list[Any] = []
        if not self._elementwise(value, text, found):
            return None
        self._whole.update(found)
        return "where" + (
            ""
            if m.ndim == x.ndim
            else f"[{', '.join(['...'] + ['None'] * (x.ndim - m.ndim))}]"
        )

    def _elementwise(self, node: Any, mask: str, found: list[Any]) -> bool:
        """Return whether it is elementwise, and reads everything with this mask."""
        fact = self._infer.of(node)
        if isinstance(node, cst.Subscript) and self.mask(node) is not None:
            found.append(node)
            return code(self.mask(node)) == mask
        if fact.kind in ("int", "float", "bool", "complex"):
            return True
        if fact.is_tensor and fact.shapes and all(s == () for s in fact.shapes):
            return True
        if isinstance(node, cst.BinaryOperation):
            sides = (node.left, node.right)
            return all(self._elementwise(n, mask, found) for n in sides)
        if isinstance(node, cst.UnaryOperation):
            return self._elementwise(node.expression, mask, found)
        if isinstance(node, cst.Call):
            return self._call(node, mask, found)
        return False

    def _call(self, node: Any, mask: str, found: list[Any]) -> bool:
        func = node.func
        target = self._infer.target(func)
        parts = [a.value for a in node.args]
        if target is not None and target.kind == "torch":
            rows = ROWS.get(target.name, [])
        elif isinstance(func, cst.Attribute) and self._infer.of(func.value).is_tensor:
            rows = ROWS.get(f"Tensor.{func.attr.value}", [])
            if func.attr.value in _KEPT:
                return self._elementwise(func.value, mask, found)
            parts = [func.value, *parts]
        else:
            return False
        if not rows or not all(row.elementwise for row in rows):
            return False
        return all(self._elementwise(p, mask, found) for p in parts)

    def plan_reduction(self, call: Any) -> None:
        """Note `x[mask].sum()`, which is `where=` in JAX."""
        func = call.func
        if call.args or not isinstance(func, cst.Attribute):
            return
        subscript = func.value
        if func.attr.value not in _REDUCED or not isinstance(subscript, cst.Subscript):
            return
        mask, x = self.mask(subscript), self._infer.of(subscript.value)
        if mask is None or not x.is_tensor or x.ndim is None:
            return
        if self._infer.of(mask).ndim == x.ndim:
            self._whole.add(subscript)
            self._reduced.add(call)

    def reduction(self, original: Any, updated: Any) -> Any:
        """Return `x.sum(where=mask)` for `x[mask].sum()`; None for anything else."""
        if original not in self._reduced:
            return None
        values = {"_x": updated.func.value, "_mask": self._read[original.func.value]}
        return fill(f"_x.{original.func.attr.value}(where=_mask)", values)


def _with_arrays(updated: Any) -> Any:
    """Replace lists by arrays: torch takes lists as indices, JAX doesn't."""
    changed = []
    for element in updated.slice:
        index = element.slice
        if isinstance(index, cst.Index) and isinstance(index.value, cst.List):
            value = cst.parse_expression(f"jnp.array({code(index.value)})")
            element = element.with_changes(slice=cst.Index(value))
        changed.append(element)
    return updated.with_changes(slice=changed)
