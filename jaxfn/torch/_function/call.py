"""Settings of a class, the arguments of a call, and its vmap staticmethod.

`Batch` is the vmap staticmethod of a torch class, as a function of flat tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from jaxfn._class_rules import VmapInfo
from jaxfn._core import messages
from jaxfn.torch._base import (
    Flattener,
    Leaf,
    TorchRefusal,
    fingerprint,
    parameters_in,
    parts_of,
    to_torch_dtype,
    torch,
    unflatten,
)
from jaxfn.torch._trace import TensorFunction

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


Dims = tuple[int | None, ...]


class Batch:
    """A batched call of a class: its vmap rule, for these arguments.

    Args:
        cls: The torch class.
        args: The template of its arguments.
        output: The template of forward's result.
        types: The shape and (JAX's) dtype of each output.
    """

    def __init__(self, cls: Any, args: Any, output: Any, types: Any) -> None:
        self._cls, self._args, self._output, self._types = cls, args, output, types

    def check(self, key_dim: int | None) -> None:
        """Refuse wrong classes, as torch does, and a rule with more than one key."""
        cls, name = self._cls, self._cls.__name__
        if cls.setup_context is torch.autograd.Function.setup_context:
            raise messages.RuleError(messages.VMAP_COMBINED.format(name=name))
        if cls.generate_vmap_rule:
            raise messages.RuleError(messages.VMAP_TWICE.format(name=name))
        if key_dim is not None:
            raise TorchRefusal(
                operation="vmap",
                reason="the rule runs once for a batch, which has one key for each "
                "entry.",
                way_out="Map over the arrays with one key: in_axes=(None, 0, …).",
            ).of(name, "vmap")

    def run(self, size: int, dims: Dims) -> TensorFunction:
        """Return the function from tensors to outputs, both with the batch axis first.

        Args:
            size: The size of the batch.
            dims: For each tensor 0, or None if it is not batched.
        """

        def run(tensors: Sequence[Any]) -> list[Any]:
            info = VmapInfo(size, "error")
            in_dims = tuple(_dims_in(x, dims) for x in self._args)
            result = self._cls.vmap(info, in_dims, *unflatten(self._args, tensors))
            if not isinstance(result, tuple) or len(result) != 2:
                raise RuntimeError(
                    "Expected the vmap staticmethod to have two returns, an output "
                    f"and out_dims with pytree structure compatible with the output. "
                    f"`{self._cls.__name__}.vmap` returned a {type(result).__name__}."
                )
            return self._outputs(*result, size)

        return run

    def _outputs(self, out: Any, out_dims: Any, size: int) -> list[Any]:
        name = f"`{self._cls.__name__}.vmap`"
        flattener = Flattener(lambda x: isinstance(x, torch.Tensor))
        template = flattener(out)
        key = fingerprint(template, by_identity=False)
        if key != fingerprint(self._output, by_identity=False):
            raise ValueError(
                f"{name} returned other things than forward: expected the structure "
                f"{self._output}, got {template}."
            )
        found = []
        for i, dim in _dims_out(template, out_dims, name):
            x = flattener.leaves[i]
            moved = (
                x.unsqueeze(0).expand(size, *x.shape)
                if dim is None
                else x.movedim(dim, 0)
            )
            self._check(i, moved, size, name)
            found.append(moved)
        return found

    def _check(self, i: int, x: Any, size: int, name: str) -> None:
        if x.shape[0] != size:
            raise ValueError(
                f"{name} returned a batch of the wrong size for output {i}: expected "
                f"{size}, got {x.shape[0]}."
            )
        shape, dtype = self._types[i]
        if tuple(x.shape[1:]) != shape or x.dtype != to_torch_dtype(dtype):
            raise ValueError(
                f"{name} returned other values than forward for output {i}: expected "
                f"{to_torch_dtype(dtype)} of shape {(size, *shape)}, got {x.dtype} of "
                f"shape {tuple(x.shape)}."
            )


def _dims_in(template: Any, dims: Dims) -> Any:
    if isinstance(template, Leaf):
        return dims[template]
    if isinstance(template, (list, tuple)):
        return type(template)([_dims_in(x, dims) for x in template])
    if type(template) is dict:
        return {k: _dims_in(x, dims) for k, x in template.items()}
    return None


def _dims_out(template: Any, dim: Any, name: str) -> list[tuple[int, Any]]:
    """Return, for each tensor of an output, its number and its dim."""
    if isinstance(template, Leaf):
        if dim is not None and type(dim) is not int:
            raise ValueError(f"{name} returned a bad out_dims: {dim!r}.")
        return [(int(template), dim)]
    parts = parts_of(template)
    many = isinstance(dim, (list, tuple))
    if many and len(dim) != len(parts):
        raise ValueError(
            f"The autograd.Function's vmap staticmethod returned an incompatible "
            f"(output, out_dims) tuple. {name}: expected {len(parts)} out_dims, got "
            f"{len(dim)}."
        )
    dims = dim if many else [dim] * len(parts)
    return [
        found
        for part, d in zip(parts, dims, strict=True)
        for found in _dims_out(part, d, name)
    ]
