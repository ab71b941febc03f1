"""Arguments and results of a comparison, for both sides: NumPy arrays, and the rest.

Rules of torch may write into their arguments or pop from a dict. Each call therefore
gets its own arrays or tensors, and its own containers.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxfn._core import short, values
from jaxfn.torch._base import Leaf, is_inexact, is_separate, to_numpy, torch


def _is_array(x: Any) -> bool:
    """Return whether `x` is an array of JAX or NumPy, or a dense tensor."""
    if isinstance(x, torch.Tensor):
        return x.layout is torch.strided and not x.is_quantized
    return values.is_array(x)


def _is_none(x: Any) -> bool:
    return x is None


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the value with `change` applied to each leaf, in new containers."""
    return jax.tree.map(change, value, is_leaf=_is_none)


def leaves_of(value: Any) -> list[Any]:
    """Return the leaves in lists, tuples and dicts, or the value itself."""
    return jax.tree.leaves(value, is_leaf=_is_none)


def exchanged(arrays: Sequence[Any], at: Sequence[int], xs: Sequence[Any]) -> list[Any]:
    """Return all arrays, with `xs` in the places `at`."""
    every = list(arrays)
    for i, x in zip(at, xs, strict=True):
        every[i] = x
    return every


@dataclasses.dataclass(frozen=True, slots=True)
class CommonArguments:
    """The arguments that both sides are called on.

    Attributes:
        template: The arguments, with a slot for each array.
        arrays: All arrays among them.
        names: Names of the arguments in the original's forward.
    """

    template: list[Any]
    arrays: list[np.ndarray]
    names: list[str]

    @classmethod
    def of(cls, args: Sequence[Any], names: Sequence[str]) -> CommonArguments:
        """Take the arguments apart. One array in two places is two arguments."""
        arrays: list[np.ndarray] = []

        def change(x: Any) -> Any:
            if not _is_array(x):
                return x
            arrays.append(np.array(to_numpy(x) if isinstance(x, torch.Tensor) else x))
            return Leaf(len(arrays) - 1)

        return cls(replaced(list(args), change), arrays, list(names))

    def join(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the arguments with these arrays."""
        return replaced(self.template, lambda x: arrays[x] if type(x) is Leaf else x)

    @property
    def at(self) -> list[int]:
        """The indices of the float or complex arrays that are whole arguments."""
        return [
            x
            for x in self.template
            if type(x) is Leaf and values.is_inexact(self.arrays[x])
        ]

    def position(self, i: int) -> int:
        """Return the index of the argument that this array is (one of `at`)."""
        return next(
            k for k, x in enumerate(self.template) if type(x) is Leaf and x == i
        )

    def label(self, i: int) -> str:
        """Return the name of this array (one of `at`) in messages."""
        k = self.position(i)
        name = f", {self.names[k]}" if k < len(self.names) else ""
        return f"argument {k}{name} ({short(self.arrays[i])})"

    def wide(self) -> CommonArguments:
        """Return the same in double precision, modules of torch too."""

        def change(x: Any) -> Any:
            return copy.deepcopy(x).double() if isinstance(x, torch.nn.Module) else x

        arrays = [_widened(x) for x in self.arrays]
        return CommonArguments(replaced(self.template, change), arrays, self.names)

    @property
    def has_wide(self) -> bool:
        """Return whether one of the arrays needs x64 in JAX."""
        wide = (np.float64, np.complex128)
        return any(x.dtype in wide for x in self.arrays)

    @property
    def is_wide(self) -> bool:
        """Return whether everything has double precision already."""
        return all(x.dtype == _widened(x).dtype for x in self.arrays) and not any(
            isinstance(x, torch.nn.Module) for x in self.template
        )


def _widened(x: np.ndarray) -> np.ndarray:
    """Return a float or complex array in double precision, any other as it is."""
    if not values.is_inexact(x):
        return x
    is_complex = np.issubdtype(x.dtype, np.complexfloating)
    return x.astype(np.complex128 if is_complex else np.float64)


def names_of(cls: Any, n: int) -> list[str]:
    """Return the names of the arguments of a torch class, at most `n`."""
    try:
        parameters = list(inspect.signature(cls.forward).parameters.values())
    except (TypeError, ValueError):
        return []
    plain = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    return plain[0 if is_separate(cls) else 1 :][:n]


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
