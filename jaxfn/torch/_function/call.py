"""What is asked of a call: settings, and arguments taken apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from jaxfn.torch._base import Flattener, Leaf, fingerprint, parameters_in


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How a class is brought over.

    Attributes:
        host: do rules run in torch, on the host? "never", or as a "fallback" where
            they can't be traced.
        random: may they draw random numbers?
    """

    host: Literal["fallback", "never"]
    random: bool

    def seed(self, which: int) -> int | None:
        """Where the draws of a rule begin."""
        return which if self.random else None


class TorchCall:
    """The arguments of a call of a Function, taken apart.

    Attributes:
        args: the template of the arguments.
        arrays: the arrays among them, each once.
        tops: for each argument that is an array, which; else None.
    """

    def __init__(self, args: Sequence[Any], is_array: Callable[[Any], bool]) -> None:
        flattener = Flattener(is_array, lambda x: isinstance(x, jax.Array))
        self.args: list[Any] = [flattener(x) for x in args]
        self.arrays = flattener.leaves
        # The same array twice is two arguments, each with a gradient of its own.
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
        """What distinguishes the statics of two calls."""
        return fingerprint(self.args), tuple(self.tops)

    def keep(self) -> list[Any]:
        """Tensors that collect gradients, among the statics."""
        return parameters_in(self.args)
