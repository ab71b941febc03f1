"""Tensors of torch and arrays of NumPy: what goes into a Function and what it gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxfn.torch._base import from_numpy, is_inexact, to_numpy, torch
from jaxfn.torch._compare.arguments import leaves_of

Found = list[np.ndarray | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Outs:
    """What a call gave.

    Attributes:
        leaves: arrays in NumPy, and anything else.
        labels: what to call each of them.
        moving: those that can have a gradient: float tensors, in no list or dict.
        nested: float tensors in a list or dict, to which torch gives no gradient.
    """

    leaves: list[Any]
    labels: list[str]
    moving: list[int]
    nested: bool


def tensor(x: np.ndarray | None) -> Any:
    """A tensor of its own, as rules may write into it."""
    return None if x is None else from_numpy(x)


def array(x: Any) -> np.ndarray | None:
    """A copy, as what the tensor is a view of may be written to."""
    return None if x is None else np.array(to_numpy(x))


def tops_of(result: Any) -> tuple[Any, ...]:
    """The outputs."""
    return result if isinstance(result, tuple) else (result,)


def _is_moving(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and is_inexact(x.dtype)


def moving_in(result: Any) -> list[Any]:
    """The outputs that can have a gradient."""
    return [x for x in tops_of(result) if _is_moving(x)]


def tensors_in(value: Any) -> list[Any]:
    """Those in lists and dicts too."""
    return [x for x in leaves_of(value) if isinstance(x, torch.Tensor)]


def memory_of(x: Any) -> Any:
    """Where it lies, the same for two that are views of the same elements."""
    return x.data_ptr(), tuple(x.shape), x.stride(), x.dtype


def paired(result: Any, cts: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The outputs that a gradient can come from, with their cotangents."""
    return [
        (x, ct)
        for x, ct in zip(moving_in(result), cts, strict=True)
        if ct is not None and x.requires_grad
    ]


def gradients(
    pairs: Sequence[tuple[Any, Any]], leaves: Sequence[Any], *, again: bool = False
) -> Sequence[Any]:
    """By the leaves, of outputs with their cotangents; None where torch has none."""
    if not pairs or not leaves:
        return [None] * len(leaves)
    return torch.autograd.grad(
        [x for x, _ in pairs],
        list(leaves),
        [ct for _, ct in pairs],
        create_graph=again,
        allow_unused=True,
    )


def outs_of(result: Any) -> Outs:
    """All leaves of what a call gave."""
    leaves: list[Any] = []
    labels: list[str] = []
    moving: list[int] = []
    nested = False
    for k, top in enumerate(tops_of(result)):
        if _is_moving(top):
            moving.append(len(leaves))
        inside = leaves_of(top)
        nested = nested or (not _is_moving(top) and any(map(_is_moving, inside)))
        several = len(inside) != 1
        labels += [f"output {k}" + f", leaf {i}" * several for i in range(len(inside))]
        leaves += [array(x) if isinstance(x, torch.Tensor) else x for x in inside]
    return Outs(leaves, labels, moving, nested)
