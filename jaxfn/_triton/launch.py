"""One launch of a Triton kernel: the kernel, its buffers and its numbers."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import jax

from jaxfn._triton import effects, experimental, generated
from jaxfn._triton.arguments import Loaded, Pointer, Variant
from jaxfn._triton.errors import LaunchError


class KernelError(RuntimeError):
    """A kernel can't be launched; the message names it and what to do."""


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with all data of its launch except the contents of the buffers.

    Attributes:
        kernel: The `triton.JITFunction`.
        arguments: A value for each parameter that is the same in all variants: a
            `Pointer`, a `Loaded`, or a value that the kernel gets as it is.
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
        return experimental.name_of(self.kernel)

    @property
    def usable(self) -> tuple[Variant, ...]:
        """The variants that Triton's frontend compiles."""
        return self.effects.usable

    @property
    def reads(self) -> tuple[int, ...]:
        """Numbers of the buffers that some variant may read."""
        return self.effects.reads

    @property
    def writes(self) -> tuple[int, ...]:
        """Numbers of the buffers that some variant may write to."""
        return self.effects.writes

    @functools.cached_property
    def effects(self) -> effects.Effects:
        """The effects of the variants on the buffers.

        Raises:
            KernelError: Triton compiles none of the variants.
        """
        try:
            return effects.of_variants(self._made, self.variants, self.buffers)
        except LaunchError as error:
            pointers = ", ".join(f"`{p}`" for p in self._pointers()) or "none"
            raise KernelError(
                f"Triton can't compile the kernel `{self.name}`, launched at "
                f"{self.place}, for these arguments (arrays, and so pointers, are: "
                f"{pointers}): {_words(error)}"
            ) from error

    @functools.cached_property
    def _made(self) -> generated.Generated:
        for number, buffer in enumerate(self.buffers):
            if generated.element_type(buffer.dtype) is None:
                raise KernelError(
                    f"The kernel `{self.name}`, launched at {self.place}, got "
                    f"{buffer.dtype} for {self.parameter_of(number)}. Triton has no "
                    "such type. Cast the array before the call."
                )
        return generated.generate(
            self.kernel, self.arguments, self.variants, self.buffers
        )

    def pin(self) -> None:
        """Keep only the first usable variant: a rule has read which one runs."""
        self.__dict__["effects"] = dataclasses.replace(
            self.effects, usable=self.usable[:1]
        )

    @property
    def generated(self) -> Any:
        """A kernel of the buffers alone, which calls the user's kernel."""
        return self._made.kernel

    @functools.cached_property
    def generated_with_outputs(self) -> Any:
        """The generated kernel, with the written buffers again after the others."""
        return generated.generate(
            self.kernel, self.arguments, self.variants, self.buffers, self.writes
        ).kernel

    def constants(self, variant: Variant) -> dict[str, int]:
        """Return the constants that select this variant in the generated kernel."""
        return self._made.constants(self._made.cases[self.variants.index(variant)])

    def parameters_of(self, buffer: int) -> tuple[str, ...]:
        """Return the kernel's parameters that get this buffer."""
        return tuple(
            name
            for name, value in self.arguments.items()
            if isinstance(value, (Pointer, Loaded)) and value.buffer == buffer
        )

    def parameter_of(self, buffer: int) -> str:
        """Return the names of these parameters in quotes, for a message."""
        return " and ".join(f"`{name}`" for name in self.parameters_of(buffer))

    def _pointers(self) -> list[str]:
        return [name for name, x in self.arguments.items() if isinstance(x, Pointer)]

    @functools.cached_property
    def key(self) -> Any:
        """A key that launches share if they do the same to the same buffers."""
        variants = [
            (case, v.grid, tuple(sorted(map(str, v.options.items()))))
            for case, v in zip(self._made.cases, self.variants, strict=True)
        ]
        buffers = [(b.shape, str(b.dtype)) for b in self.buffers]
        return (id(self.generated), len(self.usable), *variants, *buffers, self.place)


def _words(error: BaseException) -> str:
    """Return Triton's message about a kernel, from the innermost function."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"
