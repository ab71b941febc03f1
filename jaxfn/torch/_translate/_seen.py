"""What runs of the original have shown of each expression."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxfn.torch._lib import torch
from jaxfn.torch._translate._facts import UNKNOWN, Fact


class Facts:
    """What was seen of each expression."""

    def __init__(self) -> None:
        self._found: dict[Any, Fact] = {}
        self._nodes: list[Any] = []

    def number(self, node: Any) -> int:
        """A number for an expression."""
        self._nodes.append(node)
        return len(self._nodes) - 1

    def see(self, i: int, value: Any) -> Any:
        """Note what an expression is, and hand it on."""
        self._note(self._nodes[i], fact(value))
        return value

    def watch(self, i: int, function: Any) -> Any:
        """Note whether what a function returns shares memory with its arguments."""
        node = self._nodes[i]

        def call(*args: Any, **kwargs: Any) -> Any:
            before = _memory((args, kwargs, _held(function)))
            found = function(*args, **kwargs)
            after = _memory(found)
            owned = before is not None and after is not None and not before & after
            self._note(node.func, Fact("callable", owned=owned))
            return found

        return call

    def _note(self, node: Any, found: Fact) -> None:
        old = self._found.get(node)
        self._found[node] = found if old is None else old.joined(found)

    def of(self, node: Any) -> Fact:
        """What an expression was."""
        return self._found.get(node, UNKNOWN)

    def was_run(self, node: Any) -> bool:
        """Was it evaluated?"""
        return node in self._found


def fact(value: Any) -> Fact:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return Fact("tensor", dtype, (tuple(value.shape),))
    for kind in (bool, int, float, complex, str):
        if isinstance(value, kind):
            return Fact(kind.__name__, value=value)
    if value is None:
        return Fact("none")
    if isinstance(value, (tuple, list)):
        return Fact("seq", value=_items(value))
    if isinstance(value, torch.dtype):
        return Fact("dtype")
    if isinstance(value, torch.device):
        return Fact("device")
    return Fact("callable" if callable(value) else "other")


def _items(value: Any) -> Any:
    """The items, where all are numbers."""
    if all(isinstance(x, (int, float)) for x in value):
        return tuple(value)
    return None


def _memory(value: Any) -> set[int] | None:
    """Where the tensors are; None where that can't be told (in `torch.func`)."""
    try:
        return {x.untyped_storage().data_ptr() for x in _tensors(value)}
    except RuntimeError:
        return None


def _held(function: Any) -> list[Any]:
    """What a function can return besides its arguments: it may keep tensors."""
    found = [getattr(function, "__self__", None), getattr(function, "__defaults__", ())]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue
    space = getattr(function, "__globals__", {})
    found.extend(x for x in space.values() if isinstance(x, torch.Tensor))
    return [*found, *(vars(x) for x in found if hasattr(x, "__dict__"))]


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, (tuple, list)):
        for x in value:
            yield from _tensors(x)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
