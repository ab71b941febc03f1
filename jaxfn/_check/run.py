"""One check of a function: whether it is run, and what comes out."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxfn._base import compat, errors
from jaxfn._check import accuracy
from jaxfn._check.case import Case
from jaxfn._check.catalogue import CHECKS, SECOND, Check
from jaxfn._check.compiled import Call, Together
from jaxfn._check.numbers import Outcome, Skip
from jaxfn._check.report import CheckResult

NO_RULE = "no forward rule"
_JVP_RUNS = ("jvp", "jvp is linear")  # the first is not run for a surrogate
_FIRST_HOLDS = (
    "The first derivative is right: if no second one is meant, say so, by "
    "`@jaxfn.once_differentiable` on backward, or check with order=1."
)
_FIRST_OF_JVP = (
    "The first derivative is right: if no second one is meant, check with order=1."
)


@dataclasses.dataclass(slots=True)
class Run:
    """The checks of a function so far.

    Attributes:
        case: the function.
        skip: checks not to run, and why.
        results: by the name of the check.
    """

    case: Case
    skip: dict[str, str]
    results: dict[str, CheckResult] = dataclasses.field(default_factory=dict)

    def add(self, name: str, this: Check) -> None:
        """Run a check."""
        result = self._result(name, this)
        self.results[name] = result
        if result.status == "ok":
            self.case.passed.add(name)

    def _result(self, name: str, this: Check) -> CheckResult:
        """Anything that a check raises is its outcome."""
        rule = self._rule(this.rule)
        reason = self._reason(name, this)
        if reason:
            return CheckResult(name, rule, "skipped", message=reason)
        try:
            with _refusals(self.results):
                outcome = self._outcome(this)
        except Skip as why:
            return CheckResult(name, rule, "skipped", message=str(why))
        except Exception as error:  # noqa: BLE001  (whatever it is, it is the outcome)
            text = str(error).partition("\n\n")[0]
            message = f"{type(error).__name__}: {text}"
            return CheckResult(name, rule, "FAIL", message=_hint(name, rule, message))
        rule = self._rule(outcome.rule) if outcome.rule else rule
        numbers = outcome.error, outcome.tolerance
        if outcome.ok:
            return CheckResult(name, rule, "ok", *numbers, outcome.note)
        return CheckResult(
            name, rule, "FAIL", *numbers, _hint(name, rule, outcome.where)
        )

    def _rule(self, rule: str) -> str:
        return self.case.sources.get(rule, rule)

    def _outcome(self, this: Check) -> Outcome:
        if this.plan is not None and self.case.together is None:
            self.case.together = Together(self._calls())
        outcome = this.run(self.case)
        if outcome.ok or not this.about or not np.isfinite(outcome.error):
            return outcome
        return accuracy.allow(self.case, outcome, this.about)

    def _calls(self) -> dict[Any, Call]:
        """What the checks that are still to come compute, if all of it can be traced.

        That is known when the value and its gradient are the same under jit.
        """
        found: dict[Any, Call] = {}
        if not {"value under jit", "backward under jit"} <= self.case.passed:
            return found
        for name, this in CHECKS.items():
            if this.plan is None or name in self.results or self._reason(name, this):
                continue
            # It raises again when the check runs, which then has that outcome.
            with contextlib.suppress(Exception):
                found[this.plan] = this.plan(self.case)
        return found

    def _reason(self, name: str, this: Check) -> str:
        """Why a check is not run; an empty text if it is."""
        case = self.case
        if name in self.skip:
            return self.skip[name]
        if not case.at and this.rule not in ("forward", "vmap"):
            return "no argument is a float or complex array"
        if name in ("scan", "checkpoint", "leaks", "low precision") and not case.at:
            return "no argument is a float or complex array"
        if name in ("backward", "jvp") and case.surrogate and case.reference is None:
            return "a surrogate: not compared with the slope of the value"
        for other in this.needs:
            before = self.results.get(other)
            if before is None:
                continue  # asked beforehand: it is not known yet
            if before.status == "FAIL":
                return f"builds on {other!r}, which failed"
            if before.message.startswith("builds on "):
                return before.message
            if before.message.startswith(NO_RULE) and this.rule != "backward":
                return before.message
            if before.message.startswith("no backward rule"):
                return before.message
        return ""


def _hint(name: str, rule: str, message: str) -> str:
    """The message, with what to do where the first order holds and the second not."""
    if name not in SECOND:
        return message
    hint = _FIRST_HOLDS if rule == "backward" else _FIRST_OF_JVP
    return f"{message}{'' if message.endswith('.') else '.'} {hint}"


@contextlib.contextmanager
def _refusals(results: dict[str, CheckResult]) -> Iterator[None]:
    """A derivative that the function does not have is no failure."""
    try:
        yield
    except Exception as error:
        text = str(error)
        forward = [results[name].message for name in _JVP_RUNS if name in results]
        if NO_RULE in forward and errors.NOT_TRANSPOSED in text:
            # Nobody said that it can be: forward mode as such is refused.
            raise Skip(f"{NO_RULE}, and backward can't be transposed") from error
        if compat.FORWARD_MODE_REFUSAL in text or errors.NO_JVP in text:
            raise Skip(NO_RULE) from error
        if errors.NO_BACKWARD in text:
            raise Skip("no backward rule") from error
        if errors.ONCE in text:
            raise Skip("refused: once_differentiable") from error
        raise
