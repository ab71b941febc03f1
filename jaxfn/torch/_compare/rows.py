"""All rows, in their order, and the outcome of one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from jaxfn._check import CheckResult, Outcome, Skip, described
from jaxfn.torch._compare import further, gradients, values
from jaxfn.torch._compare.original import OriginalError
from jaxfn.torch._compare.pair import NOT_COMPARED, Different, Pair

BUILDS, FAILS = "builds on", "fails as"


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """A row of the report.

    Attributes:
        rule: Rule of the port that is wrong if the row differs.
        run: Returns the largest difference; raises if there is nothing to compare.
        builds_on: Names of the rows that must agree before this one runs.
        given: Whether it is about the precision of the arguments given.
        draws: Rule whose random numbers spoil it: "forward", "backward", or "".
    """

    rule: str
    run: Callable[..., Outcome]
    builds_on: tuple[str, ...] = ()
    given: bool = False
    draws: str = "backward"


GRADIENTS = "gradients"
"""The rows of all arguments: "gradient of argument 0" and so on."""
_SHAPE = ("outputs", "shape")
_VALUE = (*_SHAPE, "value")
_GRADIENT = (*_VALUE, GRADIENTS)
_ROWS = {
    "outputs": Comparison("forward", values.outputs, (), True, ""),
    "shape": Comparison("forward", values.shape, ("outputs",), True, ""),
    "dtype": Comparison("forward", values.dtype, ("outputs",), True, ""),
    "value": Comparison("forward", values.value, _SHAPE, draws="forward"),
    "value at other points": Comparison(
        "forward", values.value_elsewhere, _VALUE, draws="forward"
    ),
    "value under jit": Comparison("forward", values.value_jit, _VALUE, draws="forward"),
    # Rows "as given" run compiled: the row before tells what is wrong only then.
    "value as given": Comparison(
        "forward", values.value, (*_VALUE, "value under jit"), True, "forward"
    ),
    "value while differentiated": Comparison(
        "forward", values.value_differentiated, _VALUE
    ),
    GRADIENTS: Comparison("backward", gradients.gradient, _VALUE),
    "gradients under jit": Comparison(
        "backward", gradients.gradients_jit, (*_GRADIENT, "value under jit")
    ),
    "gradients as given": Comparison(
        "backward",
        gradients.gradients_given,
        (*_GRADIENT, "value as given", "gradients under jit"),
        True,
    ),
    "gradients at other points": Comparison(
        "backward", gradients.gradients_elsewhere, (*_GRADIENT, "value at other points")
    ),
    "gradients of subsets": Comparison(
        "backward", gradients.gradients_of_subsets, _GRADIENT
    ),
    "gradients of outputs": Comparison(
        "backward", gradients.gradients_of_outputs, _GRADIENT
    ),
    "second derivative": Comparison(
        "backward", further.second, (*_GRADIENT, "gradients under jit")
    ),
    "jvp": Comparison("jvp", further.jvp, _VALUE),
    "vmap": Comparison(
        "vmap", further.vmap, (*_VALUE, "value under jit", "value at other points")
    ),
    "vmap of gradients": Comparison(
        "backward",
        further.vmap_gradients,
        (*_GRADIENT, "gradients at other points", "gradients under jit", "vmap"),
    ),
}

NAMES = tuple(_ROWS)
"""The rows that can be skipped."""


def rows(best: Pair, given: Pair) -> dict[str, Comparison]:
    """Return the rows for a pair in the best precision, and one in that given."""
    found = {}
    for name, row in _ROWS.items():
        if name == GRADIENTS:
            for i in best.arguments.at:
                argument = f"gradient of argument {best.arguments.position(i)}"
                run = functools.partial(row.run, i)
                found[argument] = dataclasses.replace(row, run=run)
        elif best is not given or not name.endswith("as given"):
            found[name] = row
    return found


class ComparisonRun:
    """The rows so far.

    Args:
        skip: Rows not to run, with the reasons.
        draws: Why values ("forward") and gradients ("backward") can't be compared.
    """

    def __init__(self, skip: dict[str, str], draws: dict[str, str]) -> None:
        self._skip, self._draws = skip, draws
        self.results: dict[str, CheckResult] = {}

    @property
    def refused(self) -> str:
        """What was not compared, and why; an empty text if all was."""
        kinds = (("forward", "values"), ("backward", "gradients"))
        found = [(what, self._draws.get(rule)) for rule, what in kinds]
        told = [f"{what} were {NOT_COMPARED}{why}" for what, why in found if why]
        told += [
            f"{name} was {result.message}"
            for name, result in self.results.items()
            if result.message.startswith(NOT_COMPARED)
        ]
        return told[0] if told else ""

    def add(self, name: str, row: Comparison, pair: Pair) -> None:
        """Run a row."""
        reason = self._reason(name, row)
        if reason:
            result = CheckResult(name, row.rule, "skipped", message=reason)
        else:
            with pair.context():
                result = self._said_once(_result(name, row, pair))
        self.results[name] = result

    def _said_once(self, result: CheckResult) -> CheckResult:
        """Skip a row that fails word for word as another one did."""
        for other in self.results.values():
            failed = other.status == result.status == "FAIL"
            if failed and other.message == result.message:
                why = f"{FAILS} {other.check!r} does"
                return dataclasses.replace(result, status="skipped", message=why)
        return result

    def _reason(self, name: str, row: Comparison) -> str:
        """Return why a row is not run; an empty text if it is."""
        told = GRADIENTS if _is_gradient(name) else name
        if told in self._skip:
            return self._skip[told]
        for base in row.builds_on:
            for other, before in self.results.items():
                if other != base and not (base == GRADIENTS and _is_gradient(other)):
                    continue
                if before.status == "FAIL":
                    return f"{BUILDS} {other!r}, which differs"
                if before.message.startswith((BUILDS, FAILS, NOT_COMPARED)):
                    return before.message
        if row.draws and self._draws.get("forward"):
            return f"values can't be compared: {self._draws['forward']}"
        if row.draws == "backward" and self._draws.get("backward"):
            return f"gradients can't be compared: {self._draws['backward']}"
        return ""


def _is_gradient(name: str) -> bool:
    return name.startswith("gradient of argument ")


def _result(name: str, row: Comparison, pair: Pair) -> CheckResult:
    """Return the outcome of a row, whatever it raises."""
    try:
        outcome = row.run(pair)
    except Skip as why:
        return CheckResult(name, row.rule, "skipped", message=str(why))
    except further.Expected as why:
        return CheckResult(name, row.rule, "expected", message=str(why))
    except OriginalError as error:
        text = f"PyTorch itself raises: {error}"
        return CheckResult(name, row.rule, "skipped", message=text)
    except Different as how:
        return CheckResult(name, row.rule, "FAIL", message=f"{how}")
    except Exception as error:  # noqa: BLE001  (whatever the port raises)
        where = ", on arguments cast to float64" if pair.double else ""
        text = f"the port raises{where}: {described(error)}"
        return CheckResult(name, row.rule, "FAIL", message=text)
    numbers = outcome.error, outcome.tolerance or None
    if outcome.ok:
        return CheckResult(name, row.rule, "ok", *numbers, outcome.note)
    return CheckResult(name, row.rule, "FAIL", *numbers, outcome.where)
