"""Checks of a function inside programs: scan, checkpoint, low precision, leaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfn._base import errors, pytree
from jaxfn._check import numbers
from jaxfn._check.case import Case
from jaxfn._check.numbers import Arrays, Outcome, Skip
from jaxfn._check.rules import outputs
from jaxfn._check.transforms import gradients_of, named

# ---- scan, checkpoint


def scan(case: Case) -> Outcome:
    """In a scan, with its gradient, against the same calls one after the other."""
    rows = case.batch(2)
    stacked = [jnp.stack(column) for column in zip(*rows, strict=True)]
    cts = case.cts(case.rng())

    def scanned(*xs: Any) -> Arrays:
        whole = list(stacked)
        for i, x in zip(case.at, xs, strict=True):
            whole[i] = x

        def body(carry: None, arrays: Arrays) -> tuple[None, Arrays]:
            outs = case.run(*arrays)
            return carry, [o for o in outs if pytree.is_inexact(o)]

        return lax.scan(body, None, whole)[1]

    xs = [stacked[i] for i in case.at]
    outs, pull = jax.vjp(scanned, *xs)
    got = list(pull([jnp.stack([ct, ct]) for ct in cts]))
    gradients = zip(*[gradients_of(case, row) for row in rows], strict=True)
    expected = [jnp.stack(column) for column in gradients]
    values = zip(*[_floats(case, row) for row in rows], strict=True)
    loop = [jnp.stack(column) for column in values]
    tolerance = case.same_tolerance
    return numbers.worst(
        [
            numbers.compare(outs, loop, outputs(len(loop)), tolerance),
            numbers.compare(got, expected, named(len(expected)), tolerance),
        ]
    )


def _floats(case: Case, arrays: Sequence[Any]) -> Arrays:
    return [o for o in case.run(*arrays) if pytree.is_inexact(o)]


def checkpoint(case: Case) -> Outcome:
    """Under jax.checkpoint the gradient is the same."""
    cts = case.cts(case.rng())
    expected = case.pull(cts, *case.xs)
    got = list(jax.vjp(jax.checkpoint(case.f), *case.xs)[1](cts))
    return numbers.compare(got, expected, named(len(got)), case.same_tolerance)


# ---- precision, leaks


NO_DTYPE = "does not accept dtype"  # JAX of an operation; others are mistakes


def low_precision(low: Case, case: Case) -> Outcome:
    """In a low precision: the same dtypes as the arguments', and about the values.

    Compared with the value and gradient in high precision at the same rounded
    arguments. What is computed in between rounds too, and by how much that matters
    depends on the function: only a tenth of the largest element counts as wrong.
    """
    case.arrays = [
        x.astype(y.dtype) if pytree.is_inexact(x) else y
        for x, y in zip(low.arrays, case.arrays, strict=True)
    ]
    try:
        outs = low.f(*low.xs)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise Skip(f"forward refuses {_dtypes(low.xs)}: {_line(error)}") from error
    expected = case.f(*case.xs)
    generator = case.rng()
    cts = [numbers.like(o, generator) for o in outs]
    try:
        got = low.pull(cts, *low.xs)
    except (NotImplementedError, TypeError) as error:
        refused = isinstance(error, NotImplementedError) or NO_DTYPE in str(error)
        if not refused or errors.NO_BACKWARD in str(error):
            raise
        raise Skip(f"backward refuses {_dtypes(low.xs)}: {_line(error)}") from error
    exact = [ct.astype(o.dtype) for ct, o in zip(cts, expected, strict=True)]
    grads = case.pull(exact, *case.xs)
    same = [(g.dtype, x.dtype) for g, x in zip(got, low.xs, strict=True)]
    for i, (a, b) in enumerate(same):
        if a != b:
            return Outcome(np.inf, 0.0, f"gradient {i}: expected {b}, got {a}")
    tolerance = 0.1
    return numbers.worst(
        [
            numbers.compare(
                [numbers.wide(a) for a in have],
                [numbers.wide(b) for b in want],
                [f"{name} in {_dtypes(low.xs)}" for name in names],
                tolerance,
                floor=1e-2,
            )
            for have, want, names in (
                (outs, expected, outputs(len(outs))),
                (got, grads, named(len(got))),
            )
        ]
    )


def _dtypes(xs: Arrays) -> str:
    return ", ".join(dict.fromkeys(x.dtype.name for x in xs))


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:120]


def leaks(case: Case) -> Outcome:
    """No tracer is kept beyond its trace."""
    cts = case.cts(case.rng())
    with jax.checking_leaks():
        jax.jit(lambda *arrays: case.run(*arrays)).trace(*case.arrays)
        jax.jit(lambda cts, *xs: case.pull(cts, *xs)).trace(cts, *case.xs)
    return Outcome()
