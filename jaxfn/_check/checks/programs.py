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

from jaxfn._base import compat, errors, pytree
from jaxfn._check import numbers, shared
from jaxfn._check.case import Case, floats, name_gradients, name_outputs
from jaxfn._check.checks.batching import partial_gradients
from jaxfn._check.compile import Call
from jaxfn._check.numbers import Arrays
from jaxfn._check.shared import Outcome, Skip

# ---- scan, checkpoint


def scanned(case: Case) -> Call:
    """The function in a scan, with its gradient."""
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
    """In a scan, with its gradient, against the same calls one after the other."""
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
    """The gradient under jax.checkpoint."""

    def run(cts: Arrays, xs: Arrays) -> Arrays:
        return list(jax.vjp(jax.checkpoint(case.f), *xs)[1](cts))

    return run, (case.first_cts, case.xs)


def checkpoint(case: Case) -> Outcome:
    """Under jax.checkpoint the gradient is the same."""
    expected = case.quick_pull(case.first_cts, *case.xs)
    got = case.computed(checkpointed)[1]
    return case.compare(got, expected, name_gradients(got))


# ---- precision, leaks


NO_DTYPE = "does not accept dtype"  # JAX of an operation; others are mistakes
NO_LIMIT = "it iterates until a float is small, without a limit: maybe forever in"
LOW_TOLERANCE = 0.1
ROUNDINGS = 4
"""Draws of rounded arguments, and how often their effect is allowed."""


def low_precision(case: Case) -> Outcome:
    """In a low precision: the same dtypes as the arguments', and about the values.

    Compared with the value and gradient in high precision at the same rounded
    arguments. What is computed in between rounds too, and by how much that matters
    depends on the function: only a tenth of the largest element counts as wrong, and
    less than what happens in high precision if the arguments move by a rounding.
    """
    low = case.low
    if low is None:
        raise Skip("low_precision=None")
    low.passed = case.passed  # what can be compiled in one precision can be in another
    if case.may_not_end:
        raise Skip(f"{NO_LIMIT} {_dtypes(low.xs)}")
    rounded = [
        numbers.array(x, y.dtype) if pytree.is_number(x) else y
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
    """The gradients in a low precision, or the outcome if backward fails in it."""
    try:
        return low.quick_pull(cts, *low.xs)
    except Exception as error:
        refused = isinstance(error, NotImplementedError) or (
            isinstance(error, TypeError) and NO_DTYPE in str(error)
        )
        if refused and errors.NO_BACKWARD not in str(error):
            why = f"backward refuses {_dtypes(low.xs)}: {_line(error)}"
            raise Skip(why) from error
        if _is_refusal(error):
            raise
        text = str(error).partition("\n\n")[0]
        return Outcome(np.inf, 0.0, f"{type(error).__name__}: {text}", "backward")


def lowered(case: Case) -> Call:
    """The value in a low precision, and the gradient."""
    low = case.low
    if low is None or case.may_not_end:
        raise Skip("it is not asked for, or may not end")

    def both(cts: Arrays, *xs: Any) -> tuple[Arrays, Arrays]:
        return low.f(*xs), low.pull(cts, *xs)

    # Of a compiled function, so that JAX remembers what it traced.
    outs = jax.eval_shape(jax.jit(low.f), *low.xs)
    return both, (_cotangents(low, outs), *low.xs)


def _cotangents(low: Case, outs: Arrays) -> Arrays:
    generator = low.rng()
    return [numbers.like(o, generator) for o in outs]


class _High:
    """The function in high precision, at the rounded arguments of a low one."""

    def __init__(self, case: Case, low: Case, rounded: Arrays) -> None:
        self._case, self._low, self._rounded = case, low, rounded

    def value(self, *arrays: Any) -> Arrays:
        return floats(self._case.quick_run(*arrays))

    def compare(
        self, got: Arrays, f: Callable[..., Arrays], names: list[str]
    ) -> Outcome:
        """`got` with what `f` gives here."""
        have = [shared.wide(a) for a in got]
        want = [shared.wide(b) for b in f(*self._rounded)]
        labels = [f"{name} in {_dtypes(self._low.xs)}" for name in names]
        outcome = shared.compare(have, want, labels, LOW_TOLERANCE, floor=1e-2)
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
        """What a rounding of the arguments changes, at most, relative to the size."""
        generator, found = self._case.rng(), [0.0]
        for _ in range(ROUNDINGS):
            arrays = [
                _shaken(x, self._low.eps, generator) if pytree.is_number(x) else x
                for x in self._rounded
            ]
            have = [shared.wide(a) for a in f(*arrays)]
            found.append(shared.compare(have, want, labels, 0.0, floor=1e-2).error)
        return max(x for x in found if np.isfinite(x))


def _shaken(x: Any, eps: float, generator: np.random.Generator) -> Any:
    """`x` with other last digits of a low precision."""
    factor = 1 + eps * generator.uniform(-0.5, 0.5, x.shape)
    return numbers.array(np.asarray(x) * factor, x.dtype)


def _is_refusal(error: Exception) -> bool:
    """A derivative that the function does not have: no mistake."""
    text = str(error)
    return errors.NO_BACKWARD in text or compat.FORWARD_MODE_REFUSAL in text


def _dtypes(xs: Arrays) -> str:
    return ", ".join(dict.fromkeys(x.dtype.name for x in xs))


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:120]


def leaks(case: Case) -> Outcome:
    """No tracer is kept beyond its trace."""

    # Without a derivative, another function than fwd may run.
    def both(cts: Arrays, *arrays: Any) -> tuple[Arrays, Arrays]:
        return case.run(*arrays), case.gradients(cts, *arrays)

    with small_heap(), jax.checking_leaks():
        jax.jit(both).trace(case.first_cts, *case.arrays)
    return Outcome()


@contextlib.contextmanager
def small_heap() -> Iterator[None]:
    """The garbage collector does not look through what is there already.

    JAX collects garbage if a trace is not gone when it ends, for example that of a
    custom_vjp that nothing differentiates. What was there before is no garbage of that
    trace, and looking through it takes longer than the rest of this check.
    """
    if gc.get_freeze_count():
        yield  # somebody did so, and wants it to stay like that
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
