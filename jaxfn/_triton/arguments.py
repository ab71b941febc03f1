"""Arguments of a launch, and one of its configurations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Pointer:
    """An argument that points into a buffer.

    Attributes:
        buffer: Number of the buffer.
        offset: Distance from the buffer's start, in elements of the buffer.
        dtype: Type of the elements that the kernel sees.
    """

    buffer: int
    offset: int
    dtype: np.dtype


@dataclass(frozen=True)
class Loaded:
    """A number that the kernel loads: the only element of a buffer.

    Attributes:
        buffer: Number of the buffer.
    """

    buffer: int


@dataclass(frozen=True, eq=False)
class Variant:
    """One configuration of a launch; an autotuned kernel has several.

    Attributes:
        constants: Arguments whose values belong to this configuration.
        options: Options for compiling and running: `num_warps`, `num_stages` and
            others.
        grid: Number of programs along each axis.
    """

    constants: dict[str, Any]
    options: dict[str, Any]
    grid: tuple[int, int, int]

    @property
    def num_warps(self) -> int:
        """Number of warps of a program; Triton's default is 4."""
        return self.options.get("num_warps", 4)
