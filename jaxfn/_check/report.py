"""The report of `jaxfn.check`, as a table."""

from __future__ import annotations

import collections
import dataclasses
import html
import re
from collections.abc import Sequence
from typing import Literal

Status = Literal["ok", "FAIL", "skipped", "expected"]


class CheckError(AssertionError):
    """Rules of a Function are wrong; the message names them.

    It is an AssertionError, so a test counts as failed and not as broken.

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


NO_FLOATS = "no argument is a float or complex array"
NO_FLOAT_OUTPUTS = "no output is a float or complex array"


@dataclasses.dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        check: Name of the check.
        rule: The rule that is wrong if it fails: forward, fwd, backward, jvp or vmap.
        status: "ok", "FAIL" or "skipped". A comparison of two Functions also has
            "expected", for a known and right difference.
        error: The largest difference, relative to the size of its array; None if
            nothing was compared.
        tolerance: The largest error that passes.
        message: The place and size of the difference, the error that was raised, or the
            reason for skipping the check.
    """

    check: str
    rule: str
    status: Status
    error: float | None = None
    tolerance: float | None = None
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class CheckReport:
    """The report of `jaxfn.check`. Print it, or show it in a notebook.

    Attributes:
        function: Name of the function.
        results: A result for each check, in order: its name (`check`), `rule`, `status`
            ("ok", "FAIL" or "skipped"), `error`, `tolerance` and `message`.

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
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(r for r in self.results if r.status == "FAIL")

    @property
    def skipped(self) -> tuple[CheckResult, ...]:
        """The checks that did not run; their messages say why."""
        return tuple(r for r in self.results if r.status == "skipped")

    @property
    def summary(self) -> str:
        """A line: the number of checks that passed or failed, and the wrong rules."""
        return self._summary()

    @property
    def wrong_rules(self) -> tuple[str, ...]:
        """The rules that are wrong, each once."""
        return tuple(dict.fromkeys(r.rule for r in self.failures))

    def raise_on_failure(self) -> None:
        """Raise if a check failed.

        Raises:
            CheckError: A check failed (an AssertionError that lists all failures).
        """
        if not self.ok:
            raise CheckError(f"{self.summary}\n{self._messages()}")

    def __str__(self) -> str:
        table = _aligned([_HEADINGS[:5], *map(_row, self._shown())])
        if not self.failures:
            return "\n".join([*table, "", self.summary])
        parts = [self.summary, "", self._messages(), "", *table]
        return "\n".join(
            [*parts, *(["", _folded(self.skipped)] if self.skipped else [])]
        )

    def __repr__(self) -> str:
        return str(self)

    def _shown(self) -> tuple[CheckResult, ...]:
        """Return the rows of the table; after a failure, only checks that ran."""
        if not self.failures:
            return self.results
        return tuple(r for r in self.results if r.status != "skipped")

    def _messages(self) -> str:
        return "\n".join(f"{r.check} ({r.rule}): {r.message}" for r in self.failures)

    def _summary(self) -> str:
        n, of = len(self.results) - len(self.skipped), self._subject()
        passed, failed = self._words()
        expected = sum(r.status == "expected" for r in self.results)
        rest = f", {expected} with an expected difference" if expected else ""
        rest += f", {len(self.skipped)} skipped" if self.skipped else ""
        if self.failures:
            wrong = " and ".join(self.wrong_rules)
            return f"{of}: {len(self.failures)} of {n} {failed}{rest}. Wrong: {wrong}."
        for why in {r.message for r in self.skipped} & {NO_FLOATS, NO_FLOAT_OUTPUTS}:
            rest += f". No derivative was compared: {why}"
        return f"{of}: all {n} {passed}{rest}."

    def _subject(self) -> str:
        return f"`{self.function}`"

    def _words(self) -> tuple[str, str]:
        return "checks passed", "checks failed"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in _HEADINGS)
        rows = []
        for result in self._shown():
            *cells, _ = _row(result)
            status = (
                f'<td style="color:{_COLOURS[result.status]}">{result.status}</td>'
                f'<td style="text-align:left">{html.escape(result.message)}</td>'
            )
            text = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
            rows.append(f"<tr>{text}{status}</tr>")
        folded = _folded(self.skipped) if self.failures and self.skipped else ""
        return (
            f"<table><caption>{html.escape(self.summary)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
            f"{html.escape(folded)}"
        )


_COLOURS = {
    "ok": "#1a7f37",
    "FAIL": "#cf222e",
    "skipped": "#6e7781",
    "expected": "#9a6700",
}
_HEADINGS = ("check", "rule", "error", "allowed", "", "")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows to lines, with a rule below the first."""
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        "  ".join([*map(str.ljust, row[:4], widths), row[4]]).rstrip() for row in rows
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def _row(result: CheckResult) -> tuple[str, ...]:
    """Make the cells of a row; the message of a failure stands above the table."""
    error = "-" if result.error is None else f"{result.error:.1e}"
    allowed = "-" if result.tolerance is None else f"{result.tolerance:.0e}"
    note = f": {result.message}" if result.message and result.status != "FAIL" else ""
    return result.check, result.rule, error, allowed, f"{result.status}{note}"


_REASONS = (
    (
        r"builds on '(.*)', which (?:failed|differs)",
        r"depends on `\1`",
        r"depend on `\1`",
    ),
    (r"no (\w+) rule.*", r"needs a \1 rule", r"need a \1 rule"),
    (r"skipped as told", "as told", "as told"),
    (r"(?s)(.*)", r"(\1)", r"(\1)"),
)
"""Messages of skipped checks, and their forms after the counts 1 and 2."""


def _folded(skipped: Sequence[CheckResult]) -> str:
    """Summarize the skipped checks in one line, with a count for each reason."""
    counts: dict[str, int] = collections.Counter(r.message for r in skipped)
    reasons = []
    for message, n in counts.items():
        text, one, many = next(x for x in _REASONS if re.fullmatch(x[0], message))
        reasons.append(f"{n} {re.sub(text, one if n == 1 else many, message, count=1)}")
    return f"{len(skipped)} skipped: {', '.join(reasons)}"
