"""Settings of a class, and the arguments of a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from jaxfn.torch._base import Flattener, Leaf, fingerprint, parameters_in

Mask = tuple[bool, ...]
"""One bool for each input or output."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The settings of `from_torch`.

    Attributes:
        host: When rules run in a host callback: "never", or as a "fallback".
        random: Whether rules may draw random numbers.
    """

    host: Literal["fallback", "never"]
    random: bool

    def seed(self, which: int) -> int | None:
        """Return the first state of the generator; None if draws are refused."""
        return which if self.random else None


class TorchCall:
    """The arguments of a call, as templates and arrays.

    Attributes:
        args: The templates of the arguments.
        arrays: The arrays among them, each once.
        tops: For each argument, its number in `arrays`; None if it is no array.
    """

    def __init__(self, args: Sequence[Any], is_array: Callable[[Any], bool]) -> None:
        flattener = Flattener(is_array, lambda x: isinstance(x, jax.Array))
        self.args: list[Any] = [flattener(x) for x in args]
        self.arrays = flattener.leaves
        # An array that is passed twice is two arguments, each with its own gradient.
        self.tops: list[int | None] = []
        for i, x in enumerate(args):
            if not is_array(x):
                self.tops.append(None)
                continue
            leaf = self.args[i]
            if leaf in self.tops:
                leaf = Leaf(len(self.arrays))
                self.arrays.append(x)
                self.args[i] = leaf
            self.tops.append(int(leaf))

    def key(self) -> Any:
        """Return a key of the static arguments."""
        return fingerprint(self.args), tuple(self.tops)

    def parameters(self) -> list[Any]:
        """Return tensors that collect gradients, from the static arguments."""
        return parameters_in(self.args)
