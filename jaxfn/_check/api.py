"""`check`: prove a Function on example arguments."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax

from jaxfn._base import compat, errors
from jaxfn._check import programs, rules, transforms
from jaxfn._check.case import Case, name_of
from jaxfn._check.numbers import Outcome, Skip
from jaxfn._check.report import CheckReport, CheckResult


@dataclasses.dataclass(frozen=True, slots=True)
class _Check:
    """A check.

    Attributes:
        rule: what is wrong where it fails.
        run: gives the largest difference; raises Skip where it can't run.
        needs: the checks that it builds on: where one fails, it is not run, so that a
            failure names the rule that is wrong.
    """

    rule: str
    run: Callable[[Case], Outcome]
    needs: tuple[str, ...] = ("value",)


_BACKWARD = ("value", "backward", "backward repeats")
_TRACED = ("value", "value under jit")
_COMPILED = (*_BACKWARD, "value under jit", "backward under jit")
_JVP = ("value", "jvp")
_CHECKS: dict[str, _Check] = {
    "value": _Check("forward", rules.value, ()),
    "value under jit": _Check("forward", rules.value_jit),
    "backward": _Check("backward", rules.backward),
    "backward repeats": _Check("backward", rules.backward_repeats, _BACKWARD[:2]),
    "backward of zero": _Check("backward", rules.backward_zero, _BACKWARD),
    "backward is linear": _Check("backward", rules.backward_linear, _BACKWARD),
    "backward of subsets": _Check("backward", rules.backward_subsets, _BACKWARD),
    "backward, unused outputs": _Check("backward", rules.backward_unused, _BACKWARD),
    "backward under jit": _Check(
        "backward", rules.backward_jit, (*_BACKWARD, "value under jit")
    ),
    "jvp": _Check("jvp", rules.jvp),
    "jvp is linear": _Check("jvp", rules.jvp_linear, _JVP),
    "jvp of subsets": _Check("jvp", rules.jvp_subsets, _JVP),
    "jvp under jit": _Check("jvp", rules.jvp_jit, (*_TRACED, "jvp")),
    "adjoint": _Check("backward or jvp", rules.adjoint, (*_BACKWARD, "jvp")),
    "vmap": _Check("vmap", transforms.vmap, _TRACED),
    "vmap under jit": _Check("vmap", transforms.vmap_jit, (*_TRACED, "vmap")),
    "vmap of backward": _Check(
        "backward", transforms.vmap_backward, (*_COMPILED, "vmap", "vmap under jit")
    ),
    "backward of vmap": _Check(
        "backward",
        transforms.backward_vmap,
        (*_COMPILED, "vmap", "vmap under jit", "vmap of backward"),
    ),
    "vmap of jvp": _Check(
        "jvp",
        transforms.vmap_jvp,
        (*_JVP, "jvp under jit", "vmap", "vmap under jit"),
    ),
    "backward of backward": _Check(
        "backward", transforms.second("backward", "reverse"), _BACKWARD
    ),
    "jvp of backward": _Check(
        "backward",
        transforms.second("backward", "forward"),
        (*_BACKWARD, "jvp", "adjoint", "backward of backward"),
    ),
    "backward of jvp": _Check(
        "jvp", transforms.second("jvp", "reverse"), (*_BACKWARD, "jvp", "adjoint")
    ),
    "jvp of jvp": _Check(
        "jvp", transforms.second("jvp", "forward"), (*_JVP, "backward of jvp")
    ),
    "scan": _Check("forward", programs.scan, _COMPILED),
    "checkpoint": _Check("forward", programs.checkpoint, _COMPILED),
    "low precision": _Check("forward", programs.leaks, _BACKWARD),
    "leaks": _Check("forward", programs.leaks, _COMPILED),
}
"""By name, in the order in which they run."""

NO_RULE = "no forward rule"
_JVP_RUNS = ("jvp", "jvp is linear")  # the first is not run for a surrogate


def check(
    fun: Any,
    *args: Any,
    reference: Callable[..., Any] | None = None,
    surrogate: bool = False,
    skip: Collection[str] = (),
    precision: str = "float64",
    low_precision: str | None = "bfloat16",
    seed: int = 0,
    raise_on_failure: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> CheckReport:
    """Prove the rules of a function on example arguments.

    The value is compared with itself under jit; backward and jvp with central
    differences along random directions (in float64, whatever the arguments are), with
    each other, with their own linearity, with the same for fewer arguments or outputs;
    vmap with a loop, for every argument alone, and together with the derivatives;
    second derivatives with differences of the first; then scan, checkpoint, a low
    precision, and a search for leaked tracers. A check that builds on one that failed
    is not run, so what fails names the rule that is wrong.

    Differences need a value that is smooth around the arguments: choose generic ones,
    not zeros.

    Args:
        fun: a `Function` class, a `custom_function`, or anything JAX can call.
        *args: what to call it on: arrays, pytrees of them, and other objects, which are
            static. Float and complex arrays are differentiated.
        reference: a plain JAX function with the right value and derivative, to compare
            with instead of differences. Needed where a float output is marked
            non-differentiable: its value moves, and its derivative is zero
            (`jax.lax.stop_gradient` in the reference).
        surrogate: the derivative is not that of the value on purpose (rounding with a
            straight-through gradient, spikes). It is compared with that of `reference`
            if there is one, whose value may differ, and else not at all, which the
            report says; everything else is checked. A backward that limits gradients
            (clips them, say) is not linear: `skip=["backward is linear"]`.
        skip: names of checks to leave out.
        precision: "float64" casts all float arguments to it, and complex ones to
            complex128; "given" leaves them, with larger tolerances.
        low_precision: the dtype to try in the end; None for none.
        seed: of the random directions.
        raise_on_failure: raise if a check fails.
        progress: called before each check with how many are done, how many there are,
            and the name.

    Returns:
        The report: print it, or see `ok`, `failures` and `wrong_rules`.

    Raises:
        CheckError: (an AssertionError) a check failed, with raise_on_failure.
        ValueError: an unknown precision, or name of a check.

    Example:
        >>> import jax.numpy as jnp, jaxfn
        >>> class Cube(jaxfn.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x**3
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         (x,) = ctx.saved_tensors
        ...         return 2 * x**2 * grad
        >>> report = jaxfn.check(Cube, jnp.array([1.0, 2.0]))
        >>> report.ok, report.wrong_rules
        (False, ('backward',))
        >>> report.failures[0].message.partition(": ")[0]
        'gradient of argument 0 (f32[2]) at [1]'

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.gradcheck.gradcheck.html
    and https://juliadiff.org/ChainRulesTestUtils.jl/stable/
    """
    _known(skip, precision)
    with jax.enable_x64(True) if precision == "float64" else contextlib.nullcontext():
        make = functools.partial(
            Case, fun, args, reference=reference, surrogate=surrogate, seed=seed
        )
        case = make(precision=precision)
        results: dict[str, CheckResult] = {}
        for i, (name, this) in enumerate(_CHECKS.items()):
            if progress is not None:
                progress(i, len(_CHECKS), name)
            if name == "low precision":
                this = dataclasses.replace(this, run=_low(make, low_precision))
            results[name] = _result(name, this, case, results, skip)
        report = CheckReport(name_of(fun), tuple(results.values()))
    if raise_on_failure:
        report.raise_on_failure()
    return report


def _known(skip: Collection[str], precision: str) -> None:
    if precision not in ("float64", "given"):
        raise ValueError(
            f"check got precision {precision!r}: expected 'float64' or 'given'."
        )
    unknown = [name for name in skip if name not in _CHECKS]
    if isinstance(skip, str) or unknown:
        raise ValueError(
            f"check got skip={skip!r}: expected a list of names among "
            f"{', '.join(_CHECKS)}."
        )


def _low(make: Callable[..., Case], dtype: str | None) -> Callable[[Case], Outcome]:
    def run(case: Case) -> Outcome:
        if dtype is None:
            raise Skip("low_precision=None")
        high = make(
            precision="float64" if jax.config.read("jax_enable_x64") else "given"
        )
        del case
        return programs.low_precision(make(precision=dtype), high)

    return run


def _result(
    name: str,
    this: _Check,
    case: Case,
    results: dict[str, CheckResult],
    skip: Collection[str],
) -> CheckResult:
    """Run a check; anything that it raises is its outcome."""
    rule = case.sources.get(this.rule, this.rule)
    reason = _reason(name, this, case, results, skip)
    if reason:
        return CheckResult(name, rule, "skipped", message=reason)
    try:
        with _refusals(results):
            outcome = this.run(case)
    except Skip as why:
        return CheckResult(name, rule, "skipped", message=str(why))
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the outcome)
        text = str(error).partition("\n\n")[0]
        message = f"{type(error).__name__}: {text}"
        return CheckResult(name, rule, "FAIL", message=message)
    status = "ok" if outcome.ok else "FAIL"
    message = "" if outcome.ok else outcome.where
    return CheckResult(name, rule, status, outcome.error, outcome.tolerance, message)


def _reason(
    name: str,
    this: _Check,
    case: Case,
    results: dict[str, CheckResult],
    skip: Collection[str],
) -> str:
    """Why a check is not run; an empty text if it is."""
    if name in skip:
        return "skipped as told"
    if not case.at and this.rule not in ("forward", "vmap"):
        return "no argument is a float or complex array"
    if name in ("scan", "checkpoint", "leaks", "low precision") and not case.at:
        return "no argument is a float or complex array"
    if name in ("backward", "jvp") and case.surrogate and case.reference is None:
        return "a surrogate: not compared with the slope of the value"
    for other in this.needs:
        before = results[other]
        if before.status == "FAIL":
            return f"builds on {other!r}, which failed"
        if before.message.startswith("builds on "):
            return before.message
        if before.message.startswith(NO_RULE) and this.rule != "backward":
            return before.message
        if before.message.startswith("no backward rule"):
            return before.message
    return ""


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
