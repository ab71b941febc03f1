"""What runs of the original have shown: types of expressions, and writes to memory.

A write is safe unless another name that is read later has the same memory.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from jaxfn.torch._base import torch
from jaxfn.torch._translate.syntax import cst

Span = tuple[int, int]
"""First address, and the address after the last element."""
_DEPTH = 4
_INNER = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_Ctx: Any = torch.autograd.function.FunctionCtx


@dataclasses.dataclass(frozen=True)
class Place:
    """A write, or a call in which a write may happen, as the text shows it.

    Attributes:
        later: Names that may be read after the statement, each with its reads.
        beside: Names that are read elsewhere in the statement.
        root: Name of the tensor that is written to, if it is a name of this function.
    """

    later: Mapping[str, Sequence[Any]]
    beside: frozenset[str]
    root: str | None = None


@dataclasses.dataclass(frozen=True)
class Decision:
    """The decision whether a write may become a new value.

    Attributes:
        reason: Why it may not; empty if it may.
        back: Whether the name must get the new value, because it may be read later.
    """

    reason: str = ""
    back: bool = False


class Writes:
    """The writes of all runs.

    Attributes:
        dirty: Names of arguments that forward marks with `ctx.mark_dirty`.
        applied: Functions that were applied in a rule, with their arguments.

    A write may become a new binding unless another name with the same memory is read
    after it: in the same run, or at a place that no run has reached.
    """

    def __init__(self) -> None:
        self._found: dict[Any, Decision] = {}
        self._calls: list[tuple[Place, Any]] = []
        self._waiting: dict[Any, list[tuple[Any, Any]]] = {}
        self._reads: dict[Any, list[Any]] = {}
        # The tensors themselves: memory that is free may be used again.
        self._given: list[tuple[str, Any]] = []
        self.applied: dict[Any, Any] = {}
        self.dirty: set[str] = set()

    def decision(self, node: Any, is_reached: Callable[[Any], bool]) -> Decision:
        """Return whether a write may become a new value."""
        found = self._found.get(node, Decision("no run has reached this write"))
        unseen = [r for r in self._reads.get(node, ()) if not is_reached(r)]
        return found if found.reason or not unseen else _shared(unseen[0].value)

    def give(self, function: Any, args: Sequence[Any]) -> None:
        """Note the arguments of apply, which belong to its caller."""
        names = [p for p in inspect.signature(function).parameters if p != "ctx"]
        self._given = []
        names += names[-1:] * (len(args) - len(names))  # of `*args`
        for name, arg in zip(names, args, strict=False):
            self._given.append((f"the argument {name}", arg))

    def give_back(self, results: Any) -> None:
        """Note the results of apply, which belong to its caller."""
        self._given.append(("a result of forward", results))

    def call(self, place: Place, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function in which writes may happen, for the caller's frame."""
        owner = getattr(function, "__self__", None)
        if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            self.applied.setdefault(owner, args)
        self._calls.append((place, sys._getframe(2)))
        try:
            return function(*args, **kwargs)
        finally:
            self._calls.pop()

    def read(self, name: str, value: Any, frame: Any) -> None:
        """Note that a name is read: it may show what was written before."""
        while (frame, name) not in self._waiting and frame.f_code.co_name in _INNER:
            frame = frame.f_back
        for node, written in self._waiting.get((frame, name), ()):
            if _overlap(_memory(value), _memory(written)):
                self._found[node] = _shared(name)

    def note(self, node: Any, place: Place, written: Any, frame: Any) -> None:
        """Note that a tensor is about to be written to."""
        before = self._found.setdefault(node, Decision())
        if not isinstance(written, torch.Tensor):
            return
        try:
            now = self._judge(node, place, written, frame)
        except RuntimeError:
            now = Decision("torch.func hides the memory that it writes to")
        reason, back = before.reason or now.reason, before.back or now.back
        self._found[node] = Decision(reason, back)

    def _judge(self, node: Any, place: Place, written: Any, frame: Any) -> Decision:
        memory = _memory(written)
        for name, given in self._given:
            if _overlap(_memory(given), memory) and name.split()[-1] not in self.dirty:
                return Decision(f"it writes to {name}")
        if frame.f_code.co_name == "setup_context":
            return Decision("it writes to what forward returns")
        if place.root is not None and place.root in place.beside:
            return Decision(f"{place.root} is read in the same statement")
        for at, outer in [(place, frame), *self._calls]:
            outer, names = _function(outer), _locals(outer)
            holders = _holders(names)
            for name in sorted({*at.later, *at.beside, *holders} & {*names}):
                is_root = at is place and name == place.root
                seen = _seen_later(name, names, at)
                if is_root or not _overlap(_memory(seen), memory):
                    continue
                if name in at.beside or name in holders:
                    return _shared(name)
                self._waiting.setdefault((outer, name), []).append((node, written))
                self._reads.setdefault(node, []).extend(at.later[name])
        return Decision(back=place.root in place.later)


def _shared(name: str) -> Decision:
    return Decision(f"{name} shares the memory that it writes to")


def _holders(names: dict[str, Any]) -> set[str]:
    """Return the names of objects that other functions can see."""
    return {n for n, x in names.items() if n in ("self", "cls") or isinstance(x, _Ctx)}


def _seen_later(name: str, names: dict[str, Any], place: Place) -> Any:
    """Return what can be reached by a name later."""
    value = names[name]
    if not isinstance(value, _Ctx):
        return value
    saved = value.saved_tensors if name in place.later else ()
    return [vars(value), getattr(value, "to_save", None), saved]


def _function(frame: Any) -> Any:
    """Return the frame of the function around a comprehension."""
    while frame.f_code.co_name in _INNER:
        frame = frame.f_back
    return frame


def _locals(frame: Any) -> dict[str, Any]:
    """Return the local names of a function, from a comprehension in it too."""
    found: dict[str, Any] = {}
    while frame.f_code.co_name in _INNER:
        found = {**frame.f_locals, **found}
        frame = frame.f_back
    return {**frame.f_locals, **found}


def _overlap(one: list[Span], two: list[Span]) -> bool:
    return any(a < d and c < b for a, b in one for c, d in two)


def _memory(value: Any) -> list[Span]:
    return [_span(x) for x in _arrays(value, _DEPTH)]


def _span(x: Any) -> Span:
    if isinstance(x, np.ndarray):
        return byte_bounds(x)
    start = x.data_ptr()
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return start, start + (last + 1) * x.element_size() * bool(x.numel())


def _arrays(value: Any, depth: int) -> Iterator[Any]:
    """Yield the arrays that can be reached from a value."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        if isinstance(value, np.ndarray) or value.layout is torch.strided:
            yield value
        return
    parts: Any = ()
    if isinstance(value, (tuple, list, set)):
        parts = value
    elif isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, types.FunctionType):
        cells = [c.cell_contents for c in value.__closure__ or () if _is_bound(c)]
        parts = [*cells, *(value.__defaults__ or ())]
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        parts = vars(value).values()
    if depth:
        for part in list(parts):
            yield from _arrays(part, depth - 1)


def _is_bound(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


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
