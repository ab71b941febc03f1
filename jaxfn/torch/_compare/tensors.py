"""Tensors of torch and arrays of NumPy: the inputs and outputs of a Function."""

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
    """The outputs of a call.

    Attributes:
        leaves: Arrays in NumPy, and other objects.
        labels: The name of each leaf.
        inexact: Indices of the leaves that can have a gradient: tensors in no list or
            dict.
        nested: Whether a list or dict has float tensors: torch gives them no gradient.
    """

    leaves: list[Any]
    labels: list[str]
    inexact: list[int]
    nested: bool


def tensor(x: np.ndarray | None) -> Any:
    """Return a new tensor, because rules may write into it."""
    return None if x is None else from_numpy(x)


def array(x: Any) -> np.ndarray | None:
    """Return a copy, because rules may write to the tensor's memory later."""
    return None if x is None else np.array(to_numpy(x))


def tops_of(result: Any) -> tuple[Any, ...]:
    """Return the outputs as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def _is_inexact(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and is_inexact(x.dtype)


def inexact_in(result: Any) -> list[Any]:
    """Return the outputs that can have a gradient."""
    return [x for x in tops_of(result) if _is_inexact(x)]


def tensors_in(value: Any) -> list[Any]:
    """Return all tensors, those in lists and dicts too."""
    return [x for x in leaves_of(value) if isinstance(x, torch.Tensor)]


def memory_of(x: Any) -> Any:
    """Return where a tensor lies: the same for two views of the same elements."""
    return x.data_ptr(), tuple(x.shape), x.stride(), x.dtype


def paired(result: Any, cts: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return the outputs that require grad and have a cotangent, with it."""
    return [
        (x, ct)
        for x, ct in zip(inexact_in(result), cts, strict=True)
        if ct is not None and x.requires_grad
    ]


def gradients(
    pairs: Sequence[tuple[Any, Any]], leaves: Sequence[Any], *, again: bool = False
) -> Sequence[Any]:
    """Return the gradients by the leaves; None for those that torch has none of."""
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
    """Return all leaves of a result, with their labels."""
    leaves: list[Any] = []
    labels: list[str] = []
    inexact: list[int] = []
    nested = False
    for k, top in enumerate(tops_of(result)):
        if _is_inexact(top):
            inexact.append(len(leaves))
        inside = leaves_of(top)
        nested = nested or (not _is_inexact(top) and any(map(_is_inexact, inside)))
        several = len(inside) != 1
        labels += [f"output {k}" + f", leaf {i}" * several for i in range(len(inside))]
        leaves += [array(x) if isinstance(x, torch.Tensor) else x for x in inside]
    return Outs(leaves, labels, inexact, nested)
