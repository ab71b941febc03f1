"""What is known of an expression: from runs of the original, or from its text."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Fact:
    """What an expression was.

    Attributes:
        kind: "tensor" (also an array of NumPy that was computed from one), "int",
            "float", "bool", "complex", "none", "str", "seq" (a tuple or list), "array"
            (of NumPy, of constants), "dtype", "device", "callable", "other"; "mixed" if
            it changed, "unknown" if it was not seen.
        dtype: of the tensor.
        shapes: of the tensor, in all runs.
        value: of a number, if it was the same in all runs.
        owned: did no argument of this call share memory with its result?
        numpy: is it an array of NumPy, or a tuple or list that holds one?
    """

    kind: str
    dtype: str | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    value: Any = None
    owned: bool = False
    numpy: bool = False

    @property
    def is_tensor(self) -> bool:
        """Was it always a tensor?"""
        return self.kind == "tensor"

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The one shape that it had."""
        return self.shapes[0] if len(self.shapes) == 1 else None

    @property
    def ndim(self) -> int | None:
        """The one number of axes that it had."""
        found = {len(s) for s in self.shapes}
        return found.pop() if len(found) == 1 else None

    def joined(self, other: Fact) -> Fact:
        """What both are."""
        if self == other:
            return self
        shapes = (*self.shapes, *(s for s in other.shapes if s not in self.shapes))
        alike = self.kind == other.kind and self.numpy == other.numpy
        # Once of constants, once computed: it is what the second is.
        computed = any(f.is_tensor and f.numpy for f in (self, other))
        both = computed and all(f.kind == "array" or f.numpy for f in (self, other))
        kind = self.kind if alike else "tensor" if both else "mixed"
        return Fact(
            kind,
            self.dtype if self.dtype == other.dtype else None,
            shapes[:8],
            self.value if self.value == other.value else None,
            self.owned and other.owned,
            both or (self.numpy and other.numpy),
        )


UNKNOWN = Fact("unknown")
TENSOR = Fact("tensor")
