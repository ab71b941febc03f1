"""What is known of an expression: from runs of the original, or from its text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from jaxfn.torch._base import torch
from jaxfn.torch._translate.observe.computed import Computed, is_numpy
from jaxfn.torch._translate.syntax import cst


@dataclasses.dataclass(frozen=True)
class ExprType:
    """What an expression was.

    Attributes:
        kind: "tensor" (also an array of NumPy that was computed from one), "int",
            "float", "bool", "complex", "none", "str", "seq" (a tuple or list), "array"
            (of NumPy, of constants), "dtype", "device", "callable", "other"; "mixed" if
            it changed, "unknown" if it was not seen.
        dtype: of the tensor.
        shapes: of the tensor, in all runs.
        value: of a number, if it was the same in all runs.
        owned: did no argument of this call share memory with its result?
        numpy: is it an array of NumPy, or a tuple or list that holds one?
    """

    kind: str
    dtype: str | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    value: Any = None
    owned: bool = False
    numpy: bool = False

    @property
    def is_tensor(self) -> bool:
        """Was it always a tensor?"""
        return self.kind == "tensor"

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The one shape that it had."""
        return self.shapes[0] if len(self.shapes) == 1 else None

    @property
    def ndim(self) -> int | None:
        """The one number of axes that it had."""
        found = {len(s) for s in self.shapes}
        return found.pop() if len(found) == 1 else None

    def joined(self, other: ExprType) -> ExprType:
        """What both are."""
        if self == other:
            return self
        shapes = (*self.shapes, *(s for s in other.shapes if s not in self.shapes))
        alike = self.kind == other.kind and self.numpy == other.numpy
        # Once of constants, once computed: it is what the second is.
        computed = any(f.is_tensor and f.numpy for f in (self, other))
        both = computed and all(f.kind == "array" or f.numpy for f in (self, other))
        kind = self.kind if alike else "tensor" if both else "mixed"
        return ExprType(
            kind,
            self.dtype if self.dtype == other.dtype else None,
            shapes[:8],
            self.value if self.value == other.value else None,
            self.owned and other.owned,
            both or (self.numpy and other.numpy),
        )


UNKNOWN = ExprType("unknown")
TENSOR = ExprType("tensor")


class Observations:
    """What was seen of each expression."""

    def __init__(self) -> None:
        self._found: dict[Any, ExprType] = {}
        self._nodes: list[Any] = []
        self.computed = Computed(self._holds)

    def number(self, node: Any) -> int:
        """A number for an expression."""
        self._nodes.append(node)
        return len(self._nodes) - 1

    def see(self, i: int, value: Any) -> Any:
        """Note what an expression is, and hand it on."""
        node = self._nodes[i]
        computed = self.computed.any_of(node, value)
        self._note(node, array_fact(value) if computed else fact(value))
        return value

    def _is_constant(self, node: Any) -> bool:
        if isinstance(node, (cst.BaseNumber, cst.UnaryOperation)):
            inner = getattr(node, "expression", node)
            if isinstance(inner, cst.BaseNumber):
                return True
        return self.was_run(node) and not self._holds(node)

    def _holds(self, node: Any) -> bool:
        found = self.of(node)
        return found.is_tensor or found.numpy

    def settle(self) -> bool:
        """Arrays that only constants are written to are constants: was there one?

        Then all that was seen is forgotten, and the next run sees it as it is.
        """
        written = self.computed.written
        constants = [
            node
            for node, values in written.items()
            if self.was_run(node) and all(self._is_constant(v) for v in values)
        ]
        for node in constants:
            del written[node]
        if constants:
            self._found.clear()
            self.computed.forget()
        return bool(constants)

    def watch(self, i: int, function: Any) -> Any:
        """Note whether what a function returns shares memory with its arguments."""
        node = self._nodes[i]

        def call(*args: Any, **kwargs: Any) -> Any:
            before = _memory((args, kwargs, _held(function)))
            found = function(*args, **kwargs)
            after = _memory(found)
            owned = before is not None and after is not None
            owned = owned and not _overlap(before or [], after or [])
            self._note(node.func, ExprType("callable", owned=owned))
            return found

        return call

    def _note(self, node: Any, found: ExprType) -> None:
        old = self._found.get(node)
        self._found[node] = found if old is None else old.joined(found)

    def of(self, node: Any) -> ExprType:
        """What an expression was."""
        return self._found.get(node, UNKNOWN)

    def was_run(self, node: Any) -> bool:
        """Was it evaluated?"""
        return node in self._found


def fact(value: Any) -> ExprType:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return ExprType("tensor", dtype, (tuple(value.shape),))
    if isinstance(value, np.generic) and is_numpy(value):
        value = value.item()
    for kind in (bool, int, float, complex, str):
        if isinstance(value, kind):
            return ExprType(kind.__name__, value=value)
    if value is None:
        return ExprType("none")
    if isinstance(value, (tuple, list)):
        return ExprType("seq", value=_items(value))
    is_scalar_type = isinstance(value, type) and issubclass(value, np.generic)
    if isinstance(value, (torch.dtype, np.dtype)) or is_scalar_type:
        return ExprType("dtype")
    if isinstance(value, torch.device):
        return ExprType("device")
    if isinstance(value, np.ndarray):
        return ExprType("array", str(value.dtype), (tuple(value.shape),))
    return ExprType("callable" if callable(value) else "other")


def array_fact(value: Any) -> ExprType:
    """Of an array of NumPy that was computed from tensors, or of several."""
    if is_numpy(value):
        return ExprType("tensor", str(value.dtype), (tuple(value.shape),), numpy=True)
    return ExprType("seq", numpy=True)


def _items(value: Any) -> Any:
    """The items, where all are numbers."""
    if all(isinstance(x, (int, float)) for x in value):
        return tuple(value)
    return None


def _memory(value: Any) -> list[tuple[int, int]] | None:
    """Where the arrays begin and end; None where that can't be told (`torch.func`)."""
    try:
        return [_bounds(x) for x in _tensors(value)]
    except RuntimeError:
        return None


def _bounds(x: Any) -> tuple[int, int]:
    if isinstance(x, np.ndarray):
        return byte_bounds(x)
    storage = x.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _overlap(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> bool:
    return any(a[0] < b[1] and b[0] < a[1] for a in before for b in after)


def _held(function: Any) -> list[Any]:
    """What a function can return besides its arguments: it may keep tensors."""
    found = [getattr(function, "__self__", None), getattr(function, "__defaults__", ())]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue
    space = getattr(function, "__globals__", {})
    held = (torch.Tensor, np.ndarray)
    found.extend(x for x in space.values() if isinstance(x, held))
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
