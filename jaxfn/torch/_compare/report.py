"""The report of `jaxfn.torch.compare`, and its hints.

A hint says what a wrong result looks like: another result, or a variant of the right
one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from jaxfn._check import CheckReport, CheckResult, compare_arrays, is_near, likeness

NOT_COMPARED = "not compared: "
"""A row that is skipped with a message that begins with it: the report is not ok."""


def not_compared(results: Iterable[CheckResult]) -> str:
    """Return which of these was not compared, and why; "" if all were."""
    found = (r for r in results if r.message.startswith(NOT_COMPARED))
    return next((f"{r.check} was {r.message}" for r in found), "")


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class CompareReport(CheckReport):
    """The result of `jaxfn.torch.compare`. Print it, or show it in a notebook.

    Attributes:
        function: Name of the port.
        results: One for each row, in the order in which they ran. Each has a name
            (`check`), the `rule` of the port, `error`, `tolerance`, `message` and
            `status`: "ok", "FAIL", "skipped", or "expected" for a difference that is
            known and right.
        original: Name of the torch class.
        refused: What was not compared, and why; empty if all was: values or gradients
            that are random, nan on both sides, or a second derivative that differs from
            PyTorch's if neither can be called right.

    Example:
        >>> import jax.numpy as jnp, torch, jaxfn.torch
        >>> class Twice(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return 2 * x
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         return 2 * g
        >>> report = jaxfn.torch.compare(lambda x: x + x, Twice, jnp.ones(3))
        >>> report.ok, report.results[0].check, report.results[0].status
        (True, 'outputs', 'ok')
    """

    original: str = ""
    refused: str = ""

    @property
    def ok(self) -> bool:
        """Return whether no row differs, and none that matters was left uncompared.

        See `refused` for these. A row that is skipped otherwise, because PyTorch or the
        port has no such derivative, or as told, counts as no difference.
        """
        return not self.failures and not self.refused

    @property
    def expected(self) -> tuple[CheckResult, ...]:
        """The differences that are known and right; their message names them."""
        return tuple(r for r in self.results if r.status == "expected")

    def _subject(self) -> str:
        return f"`{self.function}` and the original `{self.original}`"

    def _words(self) -> tuple[str, str]:
        return "rows agree", "rows differ"

    def _summary(self) -> str:
        if self.refused and not self.failures:
            return f"{self._subject()}: {self.refused}."
        return CheckReport._summary(self)  # `super()` is lost with slots


def of_one_kind(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both as complex arrays if one of them is complex."""
    if np.iscomplexobj(a) == np.iscomplexobj(b):
        return a, b
    return a.astype(np.complex128), b.astype(np.complex128)


def hint(
    got: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    i: int,
    labels: Sequence[str],
    what: str,
    tolerance: float,
) -> str:
    """Return what result `i` looks like; arrays are in double precision."""

    def same(a: np.ndarray, b: np.ndarray) -> bool:
        if a.shape != b.shape or not b.any():
            return False
        return compare_arrays(*of_one_kind(a, b), "", tolerance).ok

    others = [k for k in range(len(got)) if k != i and same(got[i], expected[k])]
    swapped = [k for k in others if same(got[k], expected[i])]
    if swapped:
        first, last = sorted([i, swapped[0]])
        return f"{_short(labels[first])} and {_short(labels[last])} are swapped"
    if others:
        return f"it equals the expected {_short(labels[others[0]])}"
    a, b = of_one_kind(got[i], expected[i])
    found = likeness(a, b, what)
    if not found and a.shape == b.shape and a.size > 1:
        limit = tolerance * np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
        with np.errstate(all="ignore"):
            same_ones = (a == b) | (np.isnan(a) & np.isnan(b)) | (abs(a - b) <= limit)
        return f"{int(np.sum(~same_ones))} of {a.size} elements differ"
    return found


def _short(label: str) -> str:
    """Return a label without the type, which is the same for both."""
    return label.partition(" (")[0].partition(",")[0]


def counts(got: np.ndarray, parts: Sequence[np.ndarray]) -> list[complex] | None:
    """Return how often each part is in a sum; None if it is no such sum.

    Args:
        got: A gradient.
        parts: The contribution of each output to it.
    """
    table = np.stack([part.ravel() for part in parts], 1)
    if not got.size or np.linalg.matrix_rank(table) < len(parts):
        return None
    found = np.linalg.lstsq(table, got.ravel(), rcond=None)[0]
    if not is_near(table @ found, got.ravel()):
        return None
    near = np.round(found)
    return [complex(c) for c in np.where(np.abs(found - near) < 1e-3, near, found)]
