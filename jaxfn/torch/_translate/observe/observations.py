"""The type of an expression, from runs of the original or from its text."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from jaxfn.torch._base import torch


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
        owned: Whether the result of this call shared no memory with the arguments.
        dense: Whether the tensor was always contiguous; of a tuple, whether its tensors
            shared no memory.
    """

    kind: str
    dtype: str | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    value: Any = None
    owned: bool = False
    dense: bool = False

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
            self.owned and other.owned,
            self.dense and other.dense,
        )


UNKNOWN = ExprType("unknown")
TENSOR = ExprType("tensor")


class Observations:
    """The observed type of each expression."""

    def __init__(self) -> None:
        self._found: dict[Any, ExprType] = {}
        self._nodes: list[Any] = []

    def number(self, node: Any) -> int:
        """Return a number for an expression."""
        self._nodes.append(node)
        return len(self._nodes) - 1

    def see(self, i: int, value: Any) -> Any:
        """Note the type of an expression, and return its value."""
        node = self._nodes[i]
        self._note(node, fact(value))
        return value

    def watch(self, i: int, function: Any) -> Any:
        """Note whether a function's result shares memory with its arguments."""
        node = self._nodes[i]

        def watched_call(*args: Any, **kwargs: Any) -> Any:
            before = _memory((args, kwargs, _reachable(function)))
            found = function(*args, **kwargs)
            after = _memory(found)
            owned = before is not None and after is not None
            if before and after:
                owned = not any(a < d and c < b for a, b in before for c, d in after)
            self._note(node.func, ExprType("callable", owned=owned))
            return found

        return watched_call

    def _note(self, node: Any, found: ExprType) -> None:
        old = self._found.get(node)
        self._found[node] = found if old is None else old.joined(found)

    def of(self, node: Any) -> ExprType:
        """Return the type of an expression."""
        return self._found.get(node, UNKNOWN)


def fact(value: Any) -> ExprType:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return ExprType("tensor", dtype, (tuple(value.shape),), dense=_is_dense(value))
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
        return ExprType("seq", value=found, dense=_are_apart(value))
    is_scalar_type = isinstance(value, type) and issubclass(value, np.generic)
    if isinstance(value, (torch.dtype, np.dtype)) or is_scalar_type:
        return ExprType("dtype")
    if isinstance(value, torch.device):
        return ExprType("device")
    if isinstance(value, np.ndarray):
        return ExprType("array", str(value.dtype), (tuple(value.shape),))
    return ExprType("callable" if callable(value) else "other")


def _is_dense(x: Any) -> bool:
    """Return whether the elements are in order, for other sizes than 1 too."""
    if x.layout is not torch.strided:
        return False
    step = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if stride != step:
            return False
        step *= max(size, 1)
    return True


def _are_apart(values: Any) -> bool:
    """Return whether tensors of a tuple share no memory."""
    bounds = sorted(_memory(list(values)) or ())
    return all(a[1] <= b[0] for a, b in itertools.pairwise(bounds))


def _memory(value: Any) -> list[tuple[int, int]] | None:
    """Return the bounds of the arrays, or None inside `torch.func`."""
    try:
        return [_bounds(x) for x in _tensors(value)]
    except RuntimeError:
        return None


def _bounds(x: Any) -> tuple[int, int]:
    if isinstance(x, np.ndarray):
        return byte_bounds(x)
    storage = x.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _reachable(function: Any) -> list[Any]:
    """Return what a function can return besides its arguments: its own tensors."""
    found = [getattr(function, "__self__", None), getattr(function, "__defaults__", ())]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue
    space = getattr(function, "__globals__", {})
    arrays = (torch.Tensor, np.ndarray)
    found.extend(x for x in space.values() if isinstance(x, arrays))
    return [*found, *(vars(x) for x in found if hasattr(x, "__dict__"))]


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list)):
        for x in value:
            yield from _tensors(x)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
