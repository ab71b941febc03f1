"""The arguments of a comparison, which both sides get: arrays of NumPy, and the rest.

Each call makes its own arrays or tensors of them, as rules of torch may write into what
they get, and its own containers, as rules may pop from a dict.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxfn._base import pytree, short
from jaxfn.torch._base import Leaf, is_separate, to_numpy, torch


def is_array(x: Any) -> bool:
    """Is it an array of JAX or NumPy, or a dense tensor?"""
    if isinstance(x, torch.Tensor):
        return x.layout is torch.strided and not x.is_quantized
    return pytree.is_array(x)


def as_numpy(x: Any) -> np.ndarray:
    """An array in NumPy, of its own."""
    return np.array(to_numpy(x) if isinstance(x, torch.Tensor) else x)


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with `change` at each leaf; lists, tuples and dicts are new.

    Of other objects nobody knows how they are made again: they are leaves.
    """
    if type(value) in (list, tuple):
        return type(value)([replaced(x, change) for x in value])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[replaced(x, change) for x in value])
    if isinstance(value, dict):
        made = {} if type(value) is dict else copy.copy(value)
        made.update({k: replaced(x, change) for k, x in value.items()})
        return made
    return change(value)


def exchanged(arrays: Sequence[Any], at: Sequence[int], xs: Sequence[Any]) -> list[Any]:
    """All arrays, with `xs` in the places `at`."""
    every = list(arrays)
    for i, x in zip(at, xs, strict=True):
        every[i] = x
    return every


@dataclasses.dataclass(frozen=True, slots=True)
class CommonArguments:
    """What both are called on.

    Attributes:
        template: the arguments, with a slot for each array.
        arrays: all of them.
        names: what the original's forward calls its arguments.
    """

    template: list[Any]
    arrays: list[np.ndarray]
    names: list[str]

    @classmethod
    def of(cls, args: Sequence[Any], names: Sequence[str]) -> CommonArguments:
        """Take the arguments apart. One array in two places is two arguments."""
        arrays: list[np.ndarray] = []

        def change(x: Any) -> Any:
            if not is_array(x):
                return x
            arrays.append(as_numpy(x))
            return Leaf(len(arrays) - 1)

        template = [replaced(x, change) for x in args]
        return cls(template, arrays, list(names))

    def join(self, arrays: Sequence[Any]) -> list[Any]:
        """The arguments with these arrays."""

        def change(x: Any) -> Any:
            return arrays[x] if type(x) is Leaf else x

        return [replaced(x, change) for x in self.template]

    @property
    def at(self) -> list[int]:
        """Which arrays are arguments of their own, and float or complex."""
        return [
            x
            for x in self.template
            if type(x) is Leaf and pytree.is_inexact(self.arrays[x])
        ]

    def position(self, i: int) -> int:
        """Which argument is this array (one of `at`)?"""
        return next(
            k for k, x in enumerate(self.template) if type(x) is Leaf and x == i
        )

    def label(self, i: int) -> str:
        """What to call this array (one of `at`) in messages."""
        k = self.position(i)
        name = f", {self.names[k]}" if k < len(self.names) else ""
        return f"argument {k}{name} ({short(self.arrays[i])})"

    def wide(self) -> CommonArguments:
        """The same in double precision, modules of torch too."""

        def change(x: Any) -> Any:
            return copy.deepcopy(x).double() if isinstance(x, torch.nn.Module) else x

        template = [replaced(x, change) for x in self.template]
        arrays = [widened(x) for x in self.arrays]
        return dataclasses.replace(self, template=template, arrays=arrays)

    @property
    def has_wide(self) -> bool:
        """Is there an array that JAX holds with x64 on alone?"""
        wide = (np.float64, np.complex128)
        return any(x.dtype in wide for x in self.arrays)

    @property
    def is_wide(self) -> bool:
        """Is there nothing to widen?"""
        return all(x.dtype == widened(x).dtype for x in self.arrays) and not any(
            isinstance(x, torch.nn.Module) for x in self.template
        )


def widened(x: np.ndarray) -> np.ndarray:
    """A float or complex array in double precision; any other as it is."""
    if not pytree.is_inexact(x):
        return x
    is_complex = np.issubdtype(x.dtype, np.complexfloating)
    return x.astype(np.complex128 if is_complex else np.float64)


def names_of(cls: Any, n: int) -> list[str]:
    """The names of the arguments of a torch class, `n` of them at most."""
    try:
        parameters = list(inspect.signature(cls.forward).parameters.values())
    except (TypeError, ValueError):
        return []
    plain = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    return plain[0 if is_separate(cls) else 1 :][:n]


def leaves_of(value: Any) -> list[Any]:
    """All that a value holds: what is in its lists, tuples and dicts, or itself."""
    leaves: list[Any] = []
    replaced(value, leaves.append)
    return leaves
