"""All rows, in their order, and the outcome of one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from jaxfn._check import CHECKS, Check, CheckResult, Outcome, Rows, Skip, described
from jaxfn.torch._compare import further, values
from jaxfn.torch._compare.original import OriginalError
from jaxfn.torch._compare.pair import Different, Pair
from jaxfn.torch._compare.report import NOT_COMPARED, not_compared

FAILS = "fails as"


def _of_port(check: str, builds_on: tuple[str, ...]) -> Check:
    """Return a row that is a check of the port alone."""
    rule = CHECKS[check].rule

    def run(pair: Pair) -> Outcome:
        if rule == "backward":
            values.needed(pair)
        return pair.checks.outcome(check)

    return Check(rule, run, builds_on)


GRADIENTS = "gradients"
"""The rows of all arguments: "gradient of argument 0" and so on."""
_SHAPE = ("outputs", "shape")
_VALUE = (*_SHAPE, "value")
_GRADIENT = (*_VALUE, GRADIENTS)
_COMPILED = (*_GRADIENT, "value under jit")
_ROWS = {
    "outputs": Check("forward", values.outputs, ()),
    "shape": Check("forward", values.shape, ("outputs",)),
    "dtype": Check("forward", values.dtype, ("outputs",)),
    "value": Check("forward", values.value, _SHAPE),
    "value at other points": Check("forward", values.value_elsewhere, _VALUE),
    "value under jit": _of_port("value under jit", _VALUE),
    # Rows "as given" run compiled: the row before tells what is wrong only then.
    "value as given": Check("forward", values.value, (*_VALUE, "value under jit")),
    "value while differentiated": Check("forward", values.value_differentiated, _VALUE),
    GRADIENTS: Check("backward", values.gradient, _VALUE),
    # Before "under jit": the operations have been compiled, a program has not.
    "gradients of subsets": _of_port("backward of subsets", _GRADIENT),
    "gradients of outputs": _of_port("backward, unused outputs", _GRADIENT),
    "gradients under jit": _of_port("backward under jit", _COMPILED),
    "gradients as given": Check(
        "backward",
        values.gradients_given,
        (*_COMPILED, "value as given", "gradients under jit"),
    ),
    "gradients at other points": Check(
        "backward", values.gradients_elsewhere, (*_GRADIENT, "value at other points")
    ),
    "second derivative": Check(
        "backward", further.second, (*_COMPILED, "gradients under jit")
    ),
    "jvp": Check("jvp", further.jvp, _VALUE),
    "vmap": Check("vmap", further.vmap, (*_VALUE, "value under jit")),
    "vmap of gradients": _of_port(
        "vmap of backward", (*_COMPILED, "gradients under jit", "vmap")
    ),
}

NAMES = tuple(_ROWS)
"""The rows that can be skipped."""


_AS_GIVEN = ("outputs", "shape", "dtype", "value as given", "gradients as given")
"""The rows about the precision of the arguments given."""


def _of_arguments(pair: Pair) -> dict[str, Check]:
    """Return the rows of the gradients by each argument."""
    arguments, row = pair.arguments, _ROWS[GRADIENTS]
    return {
        f"gradient of argument {arguments.position(i)}": dataclasses.replace(
            row, run=functools.partial(values.gradient, i)
        )
        for i in arguments.at
    }


class ComparisonRun(Rows):
    """The rows of a comparison.

    Args:
        best: The pair in the best precision.
        given: The pair in the precision of the arguments.
        skip: The reason for each row that must not run.
        draws: Why values ("forward") and gradients ("backward") can't be compared.
    """

    def __init__(
        self,
        best: Pair,
        given: Pair,
        skip: Mapping[str, str],
        draws: Mapping[str, str],
    ) -> None:
        of_arguments = _of_arguments(best)
        told = dict.fromkeys(of_arguments, skip.get(GRADIENTS, ""))
        rows: dict[str, Check] = {}
        for name, row in _ROWS.items():
            if name == GRADIENTS:
                rows |= of_arguments
            elif best is not given or not name.endswith("as given"):
                rows[name] = row
        super().__init__(rows, {**told, **skip})
        self._best, self._given, self._draws = best, given, draws

    @property
    def refused(self) -> str:
        """What was not compared, and why; an empty text if all was."""
        for rule, what in (("forward", "values"), ("backward", "gradients")):
            if rule in self._draws:
                return f"{what} were {NOT_COMPARED}{self._draws[rule]}"
        return not_compared(self.results.values())

    def _pair(self, name: str) -> Pair:
        return self._given if name in _AS_GIVEN else self._best

    def outcome(self, name: str) -> Outcome:
        pair = self._pair(name)
        with pair.context():
            try:
                return self.rows[name].run(pair)
            except OriginalError as error:
                raise Skip(f"PyTorch itself raises: {error}") from error
            except (Different, Skip):
                raise
            except Exception as error:
                where = ", on arguments cast to float64" if pair.double else ""
                text = f"the port raises{where}: {described(error)}"
                raise Different(text) from error

    def described(self, error: Exception) -> str:
        return str(error)

    def finished(self, result: CheckResult) -> CheckResult:
        """Skip a row that fails word for word as another one did."""
        for other in self.results.values():
            failed = other.status == result.status == "FAIL"
            if failed and other.message == result.message:
                why = f"{FAILS} {other.check!r} does"
                return dataclasses.replace(result, status="skipped", message=why)
        return dataclasses.replace(result, tolerance=result.tolerance or None)

    def reason(self, name: str) -> str:
        row = self.rows[name]
        every = {GRADIENTS: _of_arguments(self._best)}
        others = [name for x in row.builds_on for name in every.get(x, [x])]
        why = self.blocked(others, (FAILS, NOT_COMPARED))
        if not why and "forward" in self._draws and name not in _AS_GIVEN[:3]:
            why = f"values can't be compared: {self._draws['forward']}"
        if not why and "backward" in self._draws and row.rule == "backward":
            why = f"gradients can't be compared: {self._draws['backward']}"
        return why
