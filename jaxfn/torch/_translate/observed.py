"""The type of an expression, from runs of the original or from its text."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np

from jaxfn.torch._base import torch
from jaxfn.torch._translate.memory import Decision, Place, Writes
from jaxfn.torch._translate.syntax import cst


@dataclasses.dataclass(frozen=True)
class ExprType:
    """The type of an expression.

    Attributes:
        kind: "tensor", "int", "float", "bool", "complex", "none", "str", "seq" (a tuple
            or list), "array" (of NumPy), "dtype", "device", "callable", "other";
            "mixed" if it changed, "unknown" if no run reached it.
        dtype: Dtype of the tensor.
        shapes: Shapes of the tensor, in all runs.
        value: Value of a number, if it was the same in all runs.
    """

    kind: str
    dtype: str | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    value: Any = None

    def __str__(self) -> str:
        if self.kind in ("tensor", "array"):
            sizes = [",".join(map(str, shape)) for shape in self.shapes]
            return " or ".join(f"{self.dtype or 'tensor'}[{s}]" for s in sizes)
        return self.kind if self.value is None else f"{self.kind} {self.value!r}"

    @property
    def is_tensor(self) -> bool:
        """Return whether it was always a tensor."""
        return self.kind == "tensor"

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The only shape that it had, else None."""
        return self.shapes[0] if len(self.shapes) == 1 else None

    @property
    def ndim(self) -> int | None:
        """The only number of axes that it had, else None."""
        found = {len(s) for s in self.shapes}
        return found.pop() if len(found) == 1 else None

    def joined(self, other: ExprType) -> ExprType:
        """Return the type that both have in common."""
        if self == other:
            return self
        shapes = (*self.shapes, *(s for s in other.shapes if s not in self.shapes))
        return ExprType(
            self.kind if self.kind == other.kind else "mixed",
            self.dtype if self.dtype == other.dtype else None,
            shapes[:8],
            self.value if self.value == other.value else None,
        )


UNKNOWN = ExprType("unknown")
TENSOR = ExprType("tensor")


class Observations:
    """The observed type of each expression, and the writes of all runs."""

    def __init__(self) -> None:
        self._found: dict[Any, ExprType] = {}
        self._nodes: list[Any] = []
        self._places: dict[int, Place] = {}
        self.writes = Writes()

    def number(self, node: Any, place: Place | None = None) -> int:
        """Return a number for an expression, which may be a write or a call."""
        self._nodes.append(node)
        if place is not None:
            self._places[len(self._nodes) - 1] = place
        return len(self._nodes) - 1

    def see(self, i: int, value: Any) -> Any:
        """Note the type of an expression, and return its value."""
        node = self._nodes[i]
        self._note(node, fact(value))
        if isinstance(node, cst.Name):
            self.writes.read(node.value, value, sys._getframe(1))
        return value

    def watch(self, i: int, function: Any) -> Any:
        """Return a function whose writes are those of a call."""
        place = self._places[i]

        def watched(*args: Any, **kwargs: Any) -> Any:
            return self.writes.call(place, function, args, kwargs)

        return watched

    def write(self, i: int, written: Any, *value: Any) -> Any:
        """Note that a tensor is written to, and return it, or the value given."""
        frame = sys._getframe(1)
        self.writes.note(self._nodes[i], self._places[i], written, frame)
        return value[0] if value else written

    def decision(self, node: Any) -> Decision:
        """Return whether a write may become a new value."""
        return self.writes.decision(node, lambda n: self.of(n).kind != "unknown")

    def _note(self, node: Any, found: ExprType) -> None:
        old = self._found.get(node)
        self._found[node] = found if old is None else old.joined(found)

    def of(self, node: Any) -> ExprType:
        """Return the type of an expression."""
        return self._found.get(node, UNKNOWN)


def fact(value: Any) -> ExprType:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return ExprType("tensor", dtype, (tuple(value.shape),))
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        value = value.item()
    for kind in (bool, int, float, complex, str):
        if isinstance(value, kind):
            return ExprType(kind.__name__, value=value)
    if value is None:
        return ExprType("none")
    if isinstance(value, (tuple, list)):
        numbers = all(isinstance(x, (int, float)) for x in value)
        found = tuple(value) if numbers else None
        dtype = "Size" if isinstance(value, torch.Size) else None
        return ExprType("seq", dtype, value=found)
    is_scalar_type = isinstance(value, type) and issubclass(value, np.generic)
    if isinstance(value, (torch.dtype, np.dtype)) or is_scalar_type:
        return ExprType("dtype")
    if isinstance(value, torch.device):
        return ExprType("device")
    if isinstance(value, np.ndarray):
        return ExprType("array", str(value.dtype), (tuple(value.shape),))
    return ExprType("callable" if callable(value) else "other")
