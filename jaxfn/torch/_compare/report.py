"""The report of `jaxfn.torch.compare`, a table like that of `jaxfn.check`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from jaxfn._check import CheckReport, CheckResult

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
