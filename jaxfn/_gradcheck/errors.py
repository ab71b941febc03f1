"""Exceptions of `gradcheck`."""

from __future__ import annotations

from typing import Any


class GradcheckError(RuntimeError):
    """A derivative differs from finite differences. torch's name."""


class OutputChangedError(GradcheckError, AssertionError):
    """The outputs of a checked function change kind when the inputs are perturbed.

    torch raises an AssertionError, even with raise_exception=False.

    Args:
        what: What differs: "shape", "dtype" or "number".
        eps: Step of the finite differences.
        before: Shape, dtype or number at the inputs.
        after: Shape, dtype or number at the perturbed inputs.
        of: Words for the output and the function.

    Attributes:
        index: Index of the only perturbed element, or None.
    """

    def __init__(self, what: str, eps: float, before: Any, after: Any, of: str) -> None:
        super().__init__()
        self._what, self._eps, self._of = what, eps, of
        self._before, self._after = before, after
        self.index: tuple[int, ...] | None = None

    def __str__(self) -> str:
        where = "" if self.index is None else f"on index {self.index} "
        return (
            f"Expected `func` to return outputs with the same {self._what} when inputs "
            f"are perturbed {where}by {self._eps}, but got: {self._what}s "
            f"{self._before} and {self._after}. The first is the {self._what} of "
            f"{self._of} at these inputs, the second near them, so no difference can "
            f"be taken. Choose inputs near which the {self._what} is constant."
        )
