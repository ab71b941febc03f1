"""Checks of a function inside programs: scan, checkpoint, low precision, leaks."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxfn._check import numbers, shared
from jaxfn._check.case import Case, floats, name_gradients, name_outputs
from jaxfn._check.checks.batching import partial_gradients
from jaxfn._check.compile import Call
from jaxfn._check.numbers import Arrays
from jaxfn._check.shared import Outcome, Skip, described
from jaxfn._core import internals, messages, values

# ---- scan, checkpoint


def scanned(case: Case) -> Call:
    """Plan the function in a scan, with its gradient."""
    stacked = [numbers.stack(column) for column in zip(*case.batch(2), strict=True)]

    def run(stacked: Arrays, cts: Arrays) -> tuple[Arrays, Arrays]:
        def f(*xs: Any) -> Arrays:
            def body(carry: None, arrays: Arrays) -> tuple[None, Arrays]:
                return carry, floats(case.run(*arrays))

            return lax.scan(body, None, case.whole(xs, stacked))[1]

        outs, pull = jax.vjp(f, *[stacked[i] for i in case.at])
        return outs, list(pull(cts))

    return run, (stacked, [numbers.stack([ct, ct]) for ct in case.first_cts])


def scan(case: Case) -> Outcome:
    """Compare a scan and its gradient with the same calls one by one."""
    outs, got = case.computed(scanned)[1]
    rows = case.batch(2)
    gradients = partial_gradients(case)
    expected = _stacked([gradients(*row) for row in rows])
    loop = _stacked([floats(case.quick_run(*row)) for row in rows])
    return shared.worst(
        [
            case.compare(outs, loop, name_outputs(loop)),
            case.compare(got, expected, name_gradients(expected)),
        ]
    )


def _stacked(rows: Sequence[Arrays]) -> Arrays:
    return [numbers.stack(column) for column in zip(*rows, strict=True)]


def checkpointed(case: Case) -> Call:
    """Plan the gradient under jax.checkpoint."""

    def run(cts: Arrays, xs: Arrays) -> Arrays:
        return list(jax.vjp(jax.checkpoint(case.f), *xs)[1](cts))

    return run, (case.first_cts, case.xs)


def checkpoint(case: Case) -> Outcome:
    """Check that the gradient is the same under jax.checkpoint."""
    expected = case.quick_pull(case.first_cts, *case.xs)
    got = case.computed(checkpointed)[1]
    return case.compare(got, expected, name_gradients(got))


# ---- precision, leaks


NO_DTYPE = "does not accept dtype"  # JAX's words for an operation
NO_LIMIT = "it iterates until a float is small, without a limit: maybe forever in"
LOW_TOLERANCE = 0.1
ROUNDINGS = 4
"""Number of draws of rounded arguments, and the factor allowed on their effect."""


def low_precision(case: Case) -> Outcome:
    """Check dtypes and rough values in a low precision.

    Value and gradient are compared with high precision, at the same rounded arguments.
    Intermediates round too, with an effect that depends on the function. So a
    difference of a tenth of the largest element passes. A larger one passes too, if
    rounding the arguments in high precision has the same effect.
    """
    low = case.low
    if low is None:
        raise Skip("low_precision=None")
    low.passed = case.passed  # a function that compiles in one precision does in all
    if case.may_not_end:
        raise Skip(f"{NO_LIMIT} {_dtypes(low.xs)}")
    rounded = [
        numbers.array(x, y.dtype) if values.is_number(x) else y
        for x, y in zip(low.arrays, case.arrays, strict=True)
    ]
    together = case.together
    known = together[lowered][1] if together and lowered in together else None
    try:
        outs = known[0] if known else low.quick_f(*low.xs)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise Skip(f"forward refuses {_dtypes(low.xs)}: {_line(error)}") from error
    exact = _High(case, low, rounded)
    of_value = exact.compare(outs, exact.value, name_outputs(outs))
    if not of_value.ok:
        return dataclasses.replace(of_value, rule="forward")
    cts = _cotangents(low, outs)
    got = known[1] if known else _low_gradients(low, cts)
    if isinstance(got, Outcome):
        return got
    for i, (g, x) in enumerate(zip(got, low.xs, strict=True)):
        if g.dtype != x.dtype:
            text = f"gradient {i}: expected {x.dtype}, got {g.dtype}"
            return Outcome(np.inf, 0.0, text, "backward")
    exact_cts = [
        numbers.array(ct, o.dtype) for ct, o in zip(cts, case.out_types, strict=True)
    ]

    def gradients(*xs: Any) -> Arrays:
        return case.quick_gradients(exact_cts, *xs)

    of_gradient = exact.compare(got, gradients, name_gradients(got))
    return shared.worst([of_value, dataclasses.replace(of_gradient, rule="backward")])


def _low_gradients(low: Case, cts: Arrays) -> Arrays | Outcome:
    """Return the gradients in a low precision, or the outcome if backward fails."""
    try:
        return low.quick_pull(cts, *low.xs)
    except Exception as error:
        refused = isinstance(error, NotImplementedError) or (
            isinstance(error, TypeError) and NO_DTYPE in str(error)
        )
        if refused and messages.NO_BACKWARD not in str(error):
            why = f"backward refuses {_dtypes(low.xs)}: {_line(error)}"
            raise Skip(why) from error
        if _is_refusal(error):
            raise
        return Outcome(np.inf, 0.0, described(error), "backward")


def lowered(case: Case) -> Call:
    """Plan the value and the gradient in a low precision."""
    low = case.low
    if low is None or case.may_not_end:
        raise Skip("it is not asked for, or may not end")

    def both(cts: Arrays, *xs: Any) -> tuple[Arrays, Arrays]:
        return low.f(*xs), low.pull(cts, *xs)

    # Use a compiled function, because JAX caches its trace.
    outs = jax.eval_shape(jax.jit(low.f), *low.xs)
    return both, (_cotangents(low, outs), *low.xs)


def _cotangents(low: Case, outs: Arrays) -> Arrays:
    generator = low.rng()
    return [numbers.like(o, generator) for o in outs]


class _High:
    """The function in high precision, at the arguments rounded to a low one."""

    def __init__(self, case: Case, low: Case, rounded: Arrays) -> None:
        self._case, self._low, self._rounded = case, low, rounded

    def value(self, *arrays: Any) -> Arrays:
        return floats(self._case.quick_run(*arrays))

    def compare(
        self, got: Arrays, f: Callable[..., Arrays], names: list[str]
    ) -> Outcome:
        """Compare `got` with the result of `f` here."""
        have = [shared.wide(a) for a in got]
        want = [shared.wide(b) for b in f(*self._rounded)]
        labels = [f"{name} in {_dtypes(self._low.xs)}" for name in names]
        outcome = shared.compare(have, want, labels, LOW_TOLERANCE, least_size=1e-2)
        if outcome.ok or not np.isfinite(outcome.error):
            return outcome
        spread = ROUNDINGS * self._spread(f, want, labels)
        if not outcome.error <= LOW_TOLERANCE + spread:
            return outcome
        return dataclasses.replace(
            outcome,
            tolerance=LOW_TOLERANCE + spread,
            note=f"a rounding of the arguments moves it by {spread / ROUNDINGS:.0e}",
        )

    def _spread(
        self, f: Callable[..., Arrays], want: list[np.ndarray], labels: list[str]
    ) -> float:
        """Return the largest effect of rounding the arguments, relative to the size."""
        generator, found = self._case.rng(), [0.0]
        for _ in range(ROUNDINGS):
            arrays = [
                _shaken(x, self._low.eps, generator) if values.is_number(x) else x
                for x in self._rounded
            ]
            have = [shared.wide(a) for a in f(*arrays)]
            found.append(shared.compare(have, want, labels, 0.0, least_size=1e-2).error)
        return max(x for x in found if np.isfinite(x))


def _shaken(x: Any, eps: float, generator: np.random.Generator) -> Any:
    """Change `x` by rounding errors of a low precision."""
    factor = 1 + eps * generator.uniform(-0.5, 0.5, x.shape)
    return numbers.array_like(np.asarray(x) * factor, x)


def _is_refusal(error: Exception) -> bool:
    """Return whether the error means that the function lacks the derivative."""
    text = str(error)
    return messages.NO_BACKWARD in text or internals.FORWARD_MODE_REFUSAL in text


def _dtypes(xs: Arrays) -> str:
    return ", ".join(dict.fromkeys(x.dtype.name for x in xs))


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:120]


_WHO_LEAKS = (
    "A rule keeps a traced value, for example in a global. Or a library does: if jax."
    "checking_leaks() refuses the function without its rules too, as loops of equinox "
    'and optimistix do, pass skip=["leaks"].'
)


def leaks(case: Case) -> Outcome:
    """Check that no tracer outlives its trace."""

    # Take the derivative too, because without it fwd may not run.
    def both(cts: Arrays, *arrays: Any) -> tuple[Arrays, Arrays]:
        return case.run(*arrays), case.gradients(cts, *arrays)

    with small_heap(), jax.checking_leaks():
        try:
            jax.jit(both).trace(case.first_cts, *case.arrays)
        except Exception as error:
            if not str(error).startswith("Leaked "):
                raise
            where = str(error).partition("\n")[0]
            return Outcome(1.0, 0.0, f"{where}. {_WHO_LEAKS}")
    return Outcome()


@contextlib.contextmanager
def small_heap() -> Iterator[None]:
    """Hide existing objects from the garbage collector.

    If a trace outlives its end, JAX collects garbage. This happens for a custom_vjp
    that is not differentiated. Earlier objects are no garbage of that trace, and a
    search through them takes longer than the rest of this check.
    """
    if gc.get_freeze_count():
        yield  # somebody else froze objects: leave them frozen
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
