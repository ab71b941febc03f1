"""All checks in their order, and the code that runs or skips each."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxfn._check import accuracy
from jaxfn._check.case import Case, Plan
from jaxfn._check.checks import batching, first_order, programs
from jaxfn._check.checks.second_order import Second
from jaxfn._check.compile import Call, Together
from jaxfn._check.report import NO_FLOAT_OUTPUTS, NO_FLOATS, CheckResult
from jaxfn._check.rows import Rows
from jaxfn._check.shared import Outcome, Skip, described
from jaxfn._core import internals, messages


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A check.

    Attributes:
        rule: The rule that is wrong if it fails.
        run: Function that returns the largest difference, or raises Skip if it can't
            run.
        builds_on: Checks that must pass first. If one fails, this check does not run,
            because its failure would name the wrong rule.
        about: Quantities that it computes in two ways, and whose accuracy it allows
            for: "value", "gradient", "tangent".
        plan: The call that it makes, if it is known in advance.
    """

    rule: str
    run: Callable[..., Outcome]
    builds_on: tuple[str, ...] = ("value",)
    about: tuple[str, ...] = ()
    plan: Plan | None = None


def _second(rule: str, mode: str, builds_on: tuple[str, ...]) -> Check:
    this = Second(rule, mode)
    return Check(rule, this, builds_on, plan=this.plan)


_BACKWARD = ("value", "backward", "backward repeats")
_TRACED = ("value", "value under jit")
_COMPILED = (*_BACKWARD, "value under jit", "backward under jit")
_JVP = ("value", "jvp")
_VMAP = ("vmap", "vmap under jit")
_VALUE, _GRADIENT, _TANGENT = ("value",), ("gradient",), ("tangent",)
CHECKS: dict[str, Check] = {
    "value": Check("forward", first_order.value, ()),
    "value under jit": Check("forward", first_order.value_jit, about=_VALUE),
    "backward": Check("backward", first_order.backward),
    "backward repeats": Check("backward", first_order.backward_repeats, _BACKWARD[:2]),
    "backward under jit": Check(
        "backward", first_order.backward_jit, (*_BACKWARD, "value under jit"), _GRADIENT
    ),
    "backward of zero": Check("backward", first_order.backward_zero, _BACKWARD),
    "backward is linear": Check(
        "backward", first_order.backward_linear, _BACKWARD, _GRADIENT
    ),
    "backward of subsets": Check(
        "backward", first_order.backward_subsets, _BACKWARD, _GRADIENT
    ),
    "backward, unused outputs": Check(
        "backward", first_order.backward_unused, _BACKWARD, _GRADIENT
    ),
    "jvp": Check("jvp", first_order.jvp),
    "jvp is linear": Check("jvp", first_order.jvp_linear, _JVP, _TANGENT),
    "jvp of subsets": Check("jvp", first_order.jvp_subsets, _JVP, _TANGENT),
    "jvp under jit": Check("jvp", first_order.jvp_jit, (*_TRACED, "jvp"), _TANGENT),
    "adjoint": Check(
        "backward or jvp",
        first_order.adjoint,
        (*_BACKWARD, "jvp"),
        (*_GRADIENT, *_TANGENT),
    ),
    "vmap": Check("vmap", batching.vmap, _TRACED, _VALUE, plan=batching.batches),
    "vmap under jit": Check("vmap", batching.vmap_jit, (*_TRACED, "vmap"), _VALUE),
    "vmap of backward": Check(
        "backward",
        batching.vmap_backward,
        (*_COMPILED, *_VMAP),
        _GRADIENT,
        plan=batching.batches_of_backward,
    ),
    "backward of vmap": Check(
        "backward",
        batching.backward_vmap,
        (*_COMPILED, *_VMAP, "vmap of backward"),
        _GRADIENT,
        plan=batching.backwards_of_batch,
    ),
    "vmap of jvp": Check(
        "jvp",
        batching.vmap_jvp,
        (*_JVP, "jvp under jit", *_VMAP),
        _TANGENT,
        plan=batching.batches_of_jvp,
    ),
    "backward of backward": _second("backward", "reverse", _BACKWARD),
    "jvp of backward": _second(
        "backward", "forward", (*_BACKWARD, "jvp", "adjoint", "backward of backward")
    ),
    "backward of jvp": _second("jvp", "reverse", (*_BACKWARD, "jvp", "adjoint")),
    "jvp of jvp": _second("jvp", "forward", (*_JVP, "backward of jvp")),
    "scan": Check(
        "forward",
        programs.scan,
        _COMPILED,
        (*_VALUE, *_GRADIENT),
        plan=programs.scanned,
    ),
    "checkpoint": Check(
        "forward", programs.checkpoint, _COMPILED, _GRADIENT, plan=programs.checkpointed
    ),
    "low precision": Check(
        "forward", programs.low_precision, _BACKWARD, plan=programs.lowered
    ),
    "leaks": Check("forward", programs.leaks, _COMPILED),
}
"""The checks by name, in the order in which they run."""

SECOND = {name for name, this in CHECKS.items() if isinstance(this.run, Second)}
"""The names of the checks of second order."""


# ---- one check


NO_RULE = "no forward rule"
_JVP_RUNS = ("jvp", "jvp is linear")  # the first does not run for a surrogate
_FIRST_HOLDS = (
    "The first derivative is right. If you need no second one, mark backward by "
    "`@jaxfn.once_differentiable`, or check with order=1."
)
_FIRST_OF_JVP = (
    "The first derivative is right. If you need no second one, check with order=1."
)


class Run(Rows):
    """The checks of a function so far.

    Args:
        case: The function.
        skip: The reason for each check that must not run.
        checks: The checks to run, by name.
    """

    def __init__(
        self, case: Case, skip: Mapping[str, str], checks: Mapping[str, Check] = CHECKS
    ) -> None:
        super().__init__(checks, skip)
        self.case = case

    def finished(self, result: CheckResult) -> CheckResult:
        rule, message = self._rule(result.rule), result.message
        if result.status == "FAIL":
            message = _hint(result.check, rule, message)
        return dataclasses.replace(result, rule=rule, message=message)

    def described(self, error: Exception) -> str:
        if self.case.eps < 1e-10 and _is_about_dtypes(error):
            return f"{described(error)} {_IN_FLOAT64}"
        return described(error)

    def _rule(self, rule: str) -> str:
        return self.case.sources.get(rule, rule)

    def outcome(self, name: str) -> Outcome:
        """Run a check, and note that it passed; raise what it raises."""
        this = self.rows[name]
        with refusals(self.results):
            if this.plan is not None and self.case.together is None:
                self.case.together = Together(self._calls())
            outcome = this.run(self.case)
            if not outcome.ok and this.about and np.isfinite(outcome.error):
                outcome = accuracy.allow(self.case, outcome, this.about)
        if outcome.ok:
            self.case.passed.add(name)
        return outcome

    def _calls(self) -> dict[Any, Call]:
        """Return the calls of the remaining checks, if they can all be traced.

        They can if the value and its gradient are the same under jit.
        """
        found: dict[Any, Call] = {}
        if not {"value under jit", "backward under jit"} <= self.case.passed:
            return found
        for name, this in self.rows.items():
            done = name in self.results or name in self.skip
            if this.plan is None or done or self.reason(name):
                continue
            # If it raises, it raises again when the check runs.
            with contextlib.suppress(Exception):
                found[this.plan] = this.plan(self.case)
        return found

    def reason(self, name: str) -> str:
        case, this = self.case, self.rows[name]
        takes_any = this.rule in ("forward", "vmap") and name not in _WITH_GRADIENT
        if not case.at and not takes_any:
            return NO_FLOATS
        if not takes_any and not case.has_float_outputs:
            return NO_FLOAT_OUTPUTS
        if name in ("backward", "jvp") and case.surrogate and case.reference is None:
            return "a surrogate: not compared with the slope of the value"
        others = this.builds_on
        if name == "leaks":  # an error keeps the traced values of its frames
            failed = [k for k, x in self.results.items() if x.status == "FAIL"]
            others = (*failed, *others)
        no_rule = ["no backward rule"]
        if this.rule != "backward":
            no_rule.append(NO_RULE)
        return self.blocked(others, tuple(no_rule))


_WITH_GRADIENT = ("scan", "checkpoint", "leaks", "low precision")
_IN_FLOAT64 = (
    "(check computes in float64. If the function closes over arrays of another dtype, "
    "pass them as arguments, which check casts. Make constants of the dtype of the "
    'arguments, as zeros(n, x.dtype). Or pass precision="given".)'
)


def _is_about_dtypes(error: Exception) -> bool:
    words = "same dtypes|equal types|must have identical types|differ"
    is_jaxs = isinstance(error, TypeError) and re.search(words, str(error))
    # A table of a package's dtypes raises a KeyError.
    lacks = isinstance(error, KeyError) and "float64" in str(error)
    return bool(is_jaxs) or lacks or "product of two dtypes" in str(error)


def _hint(name: str, rule: str, message: str) -> str:
    """Add advice to the message if the first derivative holds and the second not."""
    if name not in SECOND:
        return message
    hint = _FIRST_HOLDS if rule == "backward" else _FIRST_OF_JVP
    return f"{message}{'' if message.endswith('.') else '.'} {hint}"


_NONE: Mapping[str, CheckResult] = {}


@contextlib.contextmanager
def refusals(results: Mapping[str, CheckResult] = _NONE) -> Iterator[None]:
    """Skip a check if the function lacks the derivative; that is no failure."""
    try:
        yield
    except Exception as error:
        text = str(error)
        forward = [results[name].message for name in _JVP_RUNS if name in results]
        if NO_RULE in forward and messages.NOT_TRANSPOSED in text:
            # No rule asks for the transpose, because forward mode itself is refused.
            raise Skip(
                f"{NO_RULE}, and backward {messages.NOT_TRANSPOSED}: jax.hessian raises"
            ) from error
        if internals.FORWARD_MODE_REFUSAL in text or messages.NO_JVP in text:
            raise Skip(NO_RULE) from error
        if messages.NO_BACKWARD in text:
            raise Skip("no backward rule") from error
        if "marked with @once_differentiable" in text:
            raise Skip("refused: once_differentiable") from error
        if "a kernel has no derivative except" in text:  # of a Function of PyTorch
            raise Skip("a kernel has no derivative of its own") from error
        needs_values = isinstance(error, internals.NEEDS_VALUES)
        in_jit = results.get("value under jit")
        if needs_values and in_jit is not None and in_jit.status == "FAIL":
            raise Skip("builds on 'value under jit', which failed") from error
        raise
