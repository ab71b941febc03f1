"""One launch of a Triton kernel: which kernel, on which buffers, with what numbers."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxfn._triton import effects, generated


@dataclass(frozen=True)
class Pointer:
    """An argument that points into a buffer.

    Attributes:
        buffer: Number of the buffer.
        offset: Distance from the buffer's begin, in elements of the buffer.
        dtype: Type of the elements that the kernel sees.
    """

    buffer: int
    offset: int
    dtype: np.dtype


@dataclass(frozen=True)
class Loaded:
    """A number that is a value: the only element of a buffer.

    Attributes:
        buffer: Number of the buffer.
    """

    buffer: int


@dataclass(frozen=True, eq=False)
class Variant:
    """One configuration of a launch; an autotuned kernel has several.

    Attributes:
        constants: Arguments whose values belong to this configuration.
        options: How to compile and run it: `num_warps`, `num_stages` and others.
        grid: Number of programs along each axis.
    """

    constants: dict[str, Any]
    options: dict[str, Any]
    grid: tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with all that its launch needs but the contents of the buffers.

    Attributes:
        kernel: The `triton.JITFunction`.
        arguments: A value for each parameter that is the same in all variants: a
            `Pointer`, a `Loaded`, or what the kernel gets as it is.
        variants: The configurations to choose from.
        buffers: Shape and dtype of each buffer; all have one dimension.
        place: File and line of the user's code that launches.
    """

    kernel: Any
    arguments: dict[str, Any]
    variants: tuple[Variant, ...]
    buffers: tuple[jax.ShapeDtypeStruct, ...]
    place: str

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.fn.__name__

    @property
    def usable(self) -> tuple[Variant, ...]:
        """The variants that Triton's frontend compiles."""
        return self._effects.usable

    @property
    def reads(self) -> tuple[int, ...]:
        """Numbers of the buffers that some variant may read."""
        return self._effects.reads

    @property
    def writes(self) -> tuple[int, ...]:
        """Numbers of the buffers that some variant may write to."""
        return self._effects.writes

    @functools.cached_property
    def _effects(self) -> effects.Effects:
        return effects.of_launch(self)

    @functools.cached_property
    def generated(self) -> Any:
        """A kernel of the buffers alone, which calls the user's kernel."""
        return generated.kernel_of(self)

    def parameters_of(self, buffer: int) -> tuple[str, ...]:
        """The kernel's parameters that get this buffer."""
        return tuple(
            name
            for name, value in self.arguments.items()
            if isinstance(value, (Pointer, Loaded)) and value.buffer == buffer
        )

    def parameter_of(self, buffer: int) -> str:
        """The same for a message: their names in quotes."""
        return " and ".join(f"`{name}`" for name in self.parameters_of(buffer))
