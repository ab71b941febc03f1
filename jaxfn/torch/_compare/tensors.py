"""Tensors of torch and arrays of NumPy: the inputs and outputs of a Function."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxfn.torch._base import is_inexact, to_numpy, torch
from jaxfn.torch._compare.arguments import leaves_of

Arrays = list[np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True)
class Outs:
    """The outputs of a call.

    Attributes:
        leaves: Arrays in NumPy, and other objects.
        labels: The name of each leaf.
        inexact: Indices of the leaves that can have a gradient: tensors in no list or
            dict.
    """

    leaves: list[Any]
    labels: list[str]
    inexact: list[int]


def array(x: Any) -> np.ndarray:
    """Return a copy, because rules may write to the tensor's memory later."""
    return np.array(to_numpy(x))


def tops_of(result: Any) -> tuple[Any, ...]:
    """Return the outputs as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def _is_inexact(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and is_inexact(x.dtype)


def inexact_in(result: Any) -> list[Any]:
    """Return the outputs that can have a gradient."""
    return [x for x in tops_of(result) if _is_inexact(x)]


def gradients(
    outs: Sequence[Any], cts: Sequence[Any], xs: Sequence[Any], *, again: bool = False
) -> Sequence[Any]:
    """Return the gradients by tensors, with zeros for those that torch has none of.

    Args:
        outs: The outputs.
        cts: Their cotangents; None counts as zero.
        xs: The tensors to differentiate by.
        again: Whether the gradients are differentiated again.
    """
    both = zip(outs, cts, strict=True)
    pairs = [(x, ct) for x, ct in both if ct is not None and x.requires_grad]
    if not pairs or not xs:
        return [torch.zeros_like(x) for x in xs]
    outs, cts = map(list, zip(*pairs, strict=True))
    how = {"create_graph": again, "allow_unused": True, "materialize_grads": True}
    return torch.autograd.grad(outs, list(xs), cts, **how)


def outs_of(result: Any) -> Outs:
    """Return all leaves of a result, with their labels."""
    leaves: list[Any] = []
    labels: list[str] = []
    inexact: list[int] = []
    for k, top in enumerate(tops_of(result)):
        if _is_inexact(top):
            inexact.append(len(leaves))
        inside = leaves_of(top)
        several = len(inside) != 1
        labels += [f"output {k}" + f", leaf {i}" * several for i in range(len(inside))]
        leaves += [array(x) if isinstance(x, torch.Tensor) else x for x in inside]
    return Outs(leaves, labels, inexact)
