"""What `jaxfn.check` found, as a table."""

from __future__ import annotations

import dataclasses
import html
from typing import Literal

Status = Literal["ok", "FAIL", "skipped", "expected"]


class CheckError(AssertionError):
    """Rules of a Function are wrong; the message names them.

    An AssertionError, so that a test fails rather than breaks.

    Example:
        >>> import jax.numpy as jnp, jaxfn
        >>> twice = jaxfn.custom_function(lambda x: 2 * x)
        >>> twice.defvjp(lambda x: (2 * x, None), lambda _, g: (g,))
        >>> try:
        ...     report = jaxfn.check(twice, jnp.ones(3), raise_on_failure=True)
        ... except jaxfn.CheckError as error:
        ...     print("Wrong: backward." in str(error))
        True
    """


@dataclasses.dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        check: its name.
        rule: what is wrong if it fails: forward, backward, jvp or vmap.
        status: "ok", "FAIL" or "skipped"; where two Functions are compared also
            "expected", for a difference that is known and right.
        error: the largest difference, relative to the size of what it is about; None
            where there was nothing to compare.
        tolerance: the largest error that passes.
        message: where the difference is and how large, or what was raised, or why the
            check was skipped.
    """

    check: str
    rule: str
    status: Status
    error: float | None = None
    tolerance: float | None = None
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class CheckReport:
    """What `jaxfn.check` found. Print it, or show it in a notebook.

    Attributes:
        function: the name of the function.
        results: one for each check, in the order in which they ran, with its name
            (`check`), `rule`, `status` ("ok", "FAIL" or "skipped"), `error`,
            `tolerance` and `message`.

    Example:
        >>> import jax.numpy as jnp, jaxfn
        >>> report: jaxfn.CheckReport = jaxfn.check(jnp.sin, jnp.array([0.3]))
        >>> report.ok, report.results[0].check, report.results[0].status
        (True, 'value', 'ok')
    """

    function: str
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """Did no check fail?"""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(r for r in self.results if r.status == "FAIL")

    @property
    def skipped(self) -> tuple[CheckResult, ...]:
        """The checks that did not run; their message says why."""
        return tuple(r for r in self.results if r.status == "skipped")

    @property
    def wrong_rules(self) -> tuple[str, ...]:
        """The rules that are wrong, each once."""
        return tuple(dict.fromkeys(r.rule for r in self.failures))

    def raise_on_failure(self) -> None:
        """Raise if a check failed.

        Raises:
            CheckError: (an AssertionError) with the failures as its message.
        """
        if not self.ok:
            raise CheckError(f"{self._summary()}\n{self._messages()}")

    def __str__(self) -> str:
        rows = [("check", "rule", "error", "allowed", ""), *map(_row, self.results)]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            "  ".join(
                [c.ljust(w) for c, w in zip(row, widths, strict=False)] + [row[4]]
            )
            for row in rows
        ]
        lines = [line.rstrip() for line in lines]
        lines.insert(1, "-" * max(map(len, lines)))
        failures = [f"\n{self._messages()}"] if self.failures else []
        return "\n".join([*lines, *failures, "", self._summary()])

    def __repr__(self) -> str:
        return str(self)

    def _messages(self) -> str:
        return "\n".join(f"{r.check} ({r.rule}): {r.message}" for r in self.failures)

    def _summary(self) -> str:
        n = len(self.results) - len(self.skipped)
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        if self.ok:
            return f"`{self.function}`: all {n} checks passed{skipped}."
        wrong = " and ".join(self.wrong_rules)
        return (
            f"`{self.function}`: {len(self.failures)} of {n} checks failed{skipped}. "
            f"Wrong: {wrong}."
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in _HEADINGS)
        rows = []
        for result in self.results:
            *cells, _ = _row(result)
            status = (
                f'<td style="color:{_COLOURS[result.status]}">{result.status}</td>'
                f'<td style="text-align:left">{html.escape(result.message)}</td>'
            )
            text = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
            rows.append(f"<tr>{text}{status}</tr>")
        return (
            f"<table><caption>{html.escape(self._summary())}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        )


_COLOURS = {
    "ok": "#1a7f37",
    "FAIL": "#cf222e",
    "skipped": "#6e7781",
    "expected": "#9a6700",
}
_HEADINGS = ("check", "rule", "error", "allowed", "", "")


def _row(result: CheckResult) -> tuple[str, ...]:
    """The cells of a line; the reason of a failure stands below the table."""
    error = "-" if result.error is None else f"{result.error:.1e}"
    allowed = "-" if result.tolerance is None else f"{result.tolerance:.0e}"
    note = f": {result.message}" if result.message and result.status != "FAIL" else ""
    return result.check, result.rule, error, allowed, f"{result.status}{note}"
