"""`check`: check a Function on example arguments."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection
from typing import Any

import jax

from jaxfn._check.case import Case
from jaxfn._check.report import CheckReport
from jaxfn._check.runner import CHECKS, SECOND, Run
from jaxfn._check.shared import name_of


def check(
    fun: Any,
    *args: Any,
    reference: Callable[..., Any] | None = None,
    surrogate: bool = False,
    skip: Collection[str] = (),
    order: int = 2,
    rtol: float | None = None,
    atol: float = 0.0,
    precision: str = "float64",
    low_precision: str | None = "bfloat16",
    seed: int = 0,
    raise_on_failure: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> CheckReport:
    """Check the rules of a function on example arguments.

    The value is compared with itself under jit; backward and jvp with central
    differences along random directions (in float64, whatever the arguments are), with
    each other, with their own linearity, with the same for fewer arguments or outputs;
    vmap with a loop, for every argument alone, and together with the derivatives;
    second derivatives with differences of the first; then scan, checkpoint, a low
    precision, and a search for leaked tracers. A check that builds on one that failed
    is not run, so what fails names the rule that is wrong.

    A value that comes from an iteration is no more accurate than its tolerance. If a
    comparison fails, `check` estimates the accuracy from the jumps of the function near
    the arguments, and allows for it; the report says so ("forward is accurate to about
    1e-10 here"). Only jumps below 1e-4 of the value count, and kinks never do, so this
    can't hide a wrong rule.

    Differences need a value that is smooth around the arguments: choose generic ones,
    not zeros.

    Args:
        fun: a `Function` class, a `custom_function`, or anything JAX can call.
        *args: what to call it on: arrays, pytrees of them, and other objects, which are
            static. Float and complex arrays are differentiated.
        reference: a plain JAX function with the right value and derivative, to compare
            with instead of differences. Needed if a float output is marked
            non-differentiable: its value moves, and its derivative is zero
            (`jax.lax.stop_gradient` in the reference).
        surrogate: the derivative is not that of the value on purpose (rounding with a
            straight-through gradient, spikes). It is compared with that of `reference`
            if there is one, whose value may differ, and else not at all, which the
            report says; everything else is checked. A backward that limits gradients
            (clips them, say) is not linear: `skip=["backward is linear"]`.
        skip: names of checks to leave out.
        order: 1 leaves out the second derivatives, for a function that has none.
        rtol: the tolerance of every comparison, relative to the largest element; by
            default 5e-7 with finite differences and 1.5e-8 of two ways to compute the
            same, in float64. The low precision has its own, a tenth.
        atol: by how much an element of a value, gradient or tangent may differ,
            whatever its size.
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
        ValueError: an unknown precision, order, or name of a check; or a tolerance
            below 0.

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

        >>> @jaxfn.custom_function
        ... def short(x):  # seven digits, whatever x has
        ...     return jnp.sin(x.astype(jnp.float32)).astype(x.dtype)
        >>> short.defvjp(lambda x: (short(x), x), lambda x, g: (g * jnp.cos(x),))
        >>> report = jaxfn.check(short, jnp.array([1.0, 2.0]))
        >>> report.ok, report.results[2].message[:27]
        (True, 'forward is accurate to abou')

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.gradcheck.gradcheck.html
    and https://juliadiff.org/ChainRulesTestUtils.jl/stable/
    """
    expect_options("check", CHECKS, skip, precision, order, rtol, atol)
    told = dict.fromkeys(SECOND, "order=1") if order == 1 else {}
    told |= dict.fromkeys(skip, "skipped as told")
    with jax.enable_x64(True) if precision == "float64" else contextlib.nullcontext():
        make = functools.partial(
            Case,
            fun,
            args,
            reference=reference,
            surrogate=surrogate,
            seed=seed,
            rtol=rtol,
            atol=atol,
        )
        run = Run(make(precision=precision), told)
        if low_precision is not None:
            run.case.low = make(precision=low_precision)
        for i, (name, this) in enumerate(CHECKS.items()):
            if progress is not None:
                progress(i, len(CHECKS), name)
            run.add(name, this)
        report = CheckReport(name_of(fun), tuple(run.results.values()))
    if raise_on_failure:
        report.raise_on_failure()
    return report


def expect_options(
    tool: str,
    names: Collection[str],
    skip: Collection[str],
    precision: str,
    order: int,
    rtol: float | None,
    atol: float,
) -> None:
    """Refuse options of a tool whose checks have these names, if one is wrong."""
    if precision not in ("float64", "given"):
        raise ValueError(
            f"{tool} got precision {precision!r}: expected 'float64' or 'given'."
        )
    if order not in (1, 2):
        raise ValueError(f"{tool} got order={order!r}: expected 1 or 2.")
    for name, x in (("rtol", rtol), ("atol", atol)):
        if x is not None and not x >= 0:
            raise ValueError(f"{tool} got {name}={x!r}: expected 0 or more.")
    unknown = [name for name in skip if name not in names]
    if isinstance(skip, str) or unknown:
        raise ValueError(
            f"{tool} got skip={skip!r}: expected a list of names among "
            f"{', '.join(names)}."
        )
