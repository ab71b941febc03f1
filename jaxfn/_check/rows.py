"""The rows of a report, which run in their order, each after those it builds on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxfn._check.report import CheckResult
from jaxfn._check.shared import Outcome, Skip, described

BUILDS = "builds on "

Progress = Callable[[int, int, str], None]


class Rows:
    """The rows of a report so far.

    Args:
        rows: The rows by name. Each has the `rule` that is wrong if it fails.
        skip: The reason for each row that must not run.

    Attributes:
        results: The results, by the name of the row.
    """

    def __init__(self, rows: Mapping[str, Any], skip: Mapping[str, str]) -> None:
        self.rows, self.skip = rows, skip
        self.results: dict[str, CheckResult] = {}

    def run(self, progress: Progress | None) -> tuple[CheckResult, ...]:
        """Run all rows; return their results."""
        for i, name in enumerate(self.rows):
            if progress is not None:
                progress(i, len(self.rows), name)
            self.results[name] = self.finished(self.result(name))
        return tuple(self.results.values())

    def result(self, name: str) -> CheckResult:
        """Run a row, or skip it; whatever it raises becomes its result."""
        rule = self.rows[name].rule
        if reason := self.skip.get(name) or self.reason(name):
            return CheckResult(name, rule, "skipped", message=reason)
        return result_of(name, rule, lambda: self.outcome(name), self.described)

    def outcome(self, name: str) -> Outcome:
        """Run a row; raise what it raises."""
        raise NotImplementedError

    def reason(self, name: str) -> str:
        """Return why a row does not run; empty if it does."""
        raise NotImplementedError

    def described(self, error: Exception) -> str:
        """Return the message of a row that raised."""
        return described(error)

    def finished(self, result: CheckResult) -> CheckResult:
        """Return a result as it stands in the report."""
        return result

    def blocked(self, others: Iterable[str], passed_on: tuple[str, ...]) -> str:
        """Return why a row can't run that builds on others; empty if it can.

        Args:
            others: Names of the others. Those that have not run don't count.
            passed_on: Beginnings of messages that tell why this row can't run, too.
        """
        for before in filter(None, map(self.results.get, others)):
            if before.status == "FAIL":
                return f"{BUILDS}{before.check!r}, which failed"
            if before.message.startswith((BUILDS, *passed_on)):
                return before.message
        return ""


def result_of(
    name: str,
    rule: str,
    run: Callable[[], Outcome],
    describe: Callable[[Exception], str] = described,
) -> CheckResult:
    """Return the result of a row, whatever it raises."""
    try:
        outcome = run()
    except Skip as why:
        return CheckResult(name, rule, why.status, message=str(why))
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the outcome)
        return CheckResult(name, rule, "FAIL", message=describe(error))
    rule, numbers = outcome.rule or rule, (outcome.error, outcome.tolerance)
    if outcome.ok:
        return CheckResult(name, rule, "ok", *numbers, outcome.note)
    return CheckResult(name, rule, "FAIL", *numbers, outcome.where)
