"""Checks of rules under vmap, and of second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._base import pytree
from jaxfn._check import numbers
from jaxfn._check.case import Case
from jaxfn._check.numbers import Arrays, Outcome, Skip
from jaxfn._check.rules import outputs

EXAMPLES = 3
"""In a batch: not a size that is likely to be that of another axis."""

# ---- vmap


def _axes(case: Case) -> list[tuple[int | None, ...]]:
    """All arrays batched first and last, and each of them alone."""
    n = len(case.arrays)
    if n == 0:
        raise Skip("there is no array to batch")
    last = tuple(
        0 if numbers.is_key(x) else x.ndim  # a key has a hidden last axis
        for x in case.arrays
    )
    found = [(0,) * n, last]
    if n > 1:
        found += [tuple(0 if j == i else None for j in range(n)) for i in range(n)]
    return list(dict.fromkeys(found))


def _batched(
    rows: Sequence[Arrays], axes: Sequence[int | None]
) -> tuple[Arrays, list[Arrays]]:
    """The batched arrays, and the examples that they hold."""
    arrays, examples = [], [list(row) for row in rows]
    for i, axis in enumerate(axes):
        if axis is None:
            arrays.append(rows[0][i])
            for example in examples:
                example[i] = rows[0][i]
        else:
            arrays.append(jnp.stack([row[i] for row in rows], axis))
    return arrays, examples


def vmap(case: Case) -> Outcome:
    """A batch is what a loop gives, wherever the batch axis is."""
    return numbers.worst(
        [_against_loop(case, case.run, axes, outputs) for axes in _axes(case)]
    )


def _against_loop(
    case: Case,
    f: Callable[..., Arrays],
    axes: tuple[int | None, ...],
    names: Callable[[int], list[str]],
    wrap: Callable[[Callable[..., Arrays]], Callable[..., Arrays]] = lambda f: f,
) -> Outcome:
    """`f` under vmap, and under what `wrap` says, against a loop over the examples.

    Derivatives are compiled: op by op each of many axes would compile each op anew.
    """
    arrays, examples = _batched(case.batch(EXAMPLES), axes)
    got = wrap(jax.vmap(f, in_axes=axes))(*arrays)
    columns = zip(*[f(*example) for example in examples], strict=True)
    expected = [jnp.stack(column) for column in columns]
    labels = [f"{name} (in_axes={axes})" for name in names(len(expected))]
    return numbers.compare(got, expected, labels, case.same_tolerance)


def vmap_jit(case: Case) -> Outcome:
    arrays, _ = _batched(case.batch(EXAMPLES), (0,) * len(case.arrays))
    expected = jax.vmap(case.run)(*arrays)
    got = jax.jit(jax.vmap(case.run))(*arrays)
    return numbers.compare(got, expected, outputs(len(got)), case.same_tolerance)


def vmap_backward(case: Case) -> Outcome:
    """The gradient under vmap, against a loop."""

    def gradients(*arrays: Any) -> Arrays:
        return gradients_of(case, arrays)

    return numbers.worst(
        [_against_loop(case, gradients, axes, named, jax.jit) for axes in _axes(case)]
    )


def named(n: int) -> list[str]:
    return [f"gradient {i}" for i in range(n)]


def gradients_of(case: Case, arrays: Sequence[Any]) -> Arrays:
    """The gradients by the float arrays, for cotangents that are the same anywhere."""

    def f(*xs: Any) -> Arrays:
        whole = list(arrays)
        for i, x in zip(case.at, xs, strict=True):
            whole[i] = x
        return [o for o in case.run(*whole) if pytree.is_inexact(o)]

    cts = case.cts(case.rng())
    return list(jax.vjp(f, *[arrays[i] for i in case.at])[1](cts))


def backward_vmap(case: Case) -> Outcome:
    """The gradient of vmap against a loop of gradients; sums over what is shared."""
    return numbers.worst([_grad_of_vmap(case, axes) for axes in _axes(case)])


def _grad_of_vmap(case: Case, axes: tuple[int | None, ...]) -> Outcome:
    arrays, examples = _batched(case.batch(EXAMPLES), axes)
    cts = case.cts(case.rng())

    @jax.jit
    def gradients(given: Arrays, arrays: Arrays) -> Arrays:
        def f(*xs: Any) -> Arrays:
            whole = list(arrays)
            for i, x in zip(case.at, xs, strict=True):
                whole[i] = x
            found = jax.vmap(case.run, in_axes=axes)(*whole)
            return [o for o in found if pytree.is_inexact(o)]

        return list(jax.vjp(f, *[arrays[i] for i in case.at])[1](given))

    got = gradients([jnp.stack([ct] * EXAMPLES) for ct in cts], arrays)
    rows = [gradients_of(case, example) for example in examples]
    expected = []
    for k, i in enumerate(case.at):
        column, axis = [row[k] for row in rows], axes[i]
        shared = sum(column[1:], column[0])
        expected.append(shared if axis is None else jnp.stack(column, axis))
    labels = [f"{name} (in_axes={axes})" for name in named(len(expected))]
    return numbers.compare(got, expected, labels, case.same_tolerance)


def vmap_jvp(case: Case) -> Outcome:
    """The jvp under vmap, against a loop."""
    ts = case.ts(case.rng())

    def tangents(*arrays: Any) -> Arrays:
        whole = [arrays[i] for i in case.at]

        def f(*xs: Any) -> Arrays:
            given = list(arrays)
            for i, x in zip(case.at, xs, strict=True):
                given[i] = x
            return [o for o in case.run(*given) if pytree.is_inexact(o)]

        return jax.jvp(f, whole, ts)[1]

    def names(n: int) -> list[str]:
        return [f"tangent of {name}" for name in outputs(n)]

    return numbers.worst(
        [_against_loop(case, tangents, axes, names, jax.jit) for axes in _axes(case)]
    )


# ---- second derivatives


SURROGATE = (
    "a surrogate, without a reference: a second derivative goes through the rules, and "
    "this one is not the slope of the first"
)


def second(kind: str, mode: str) -> Callable[[Case], Outcome]:
    """The derivative of the backward or jvp rule, against its own differences.

    Where rules differ from the derivative of the value on purpose, a second derivative
    is not always the slope of the first: what the first computes from values of the
    function moves as the rules say. It may equal that of the reference instead.
    """

    def run(case: Case) -> Outcome:
        generator = case.rng()
        given = case.cts(generator) if kind == "backward" else case.ts(generator)
        args, what = (
            [*case.xs, *given],
            {"backward": "gradient", "jvp": "tangent"}[kind],
        )
        g = _first(case.f, kind, len(case.at))
        along = [numbers.direction(x, generator) for x in args]
        cts = [numbers.like(o, generator) for o in g(*args)]
        got, size = _derivative(g, mode, args, along, cts)
        slopes = numbers.slopes(g, args, along, case.eps)
        if not all(s.settled.all() for s in slopes):
            raise Skip(f"the {what} has no slope here that differences agree on")
        values = [s.value for s in slopes]
        expected = numbers.pairing(cts, values)
        size = max(size, numbers.size_of(cts, values)) + sum(s.floor for s in slopes)
        outcome = numbers.is_close(got, expected, size, case.slope_tolerance)
        if not outcome.ok and case.reference is not None:
            reference = _first(case.reference_f, kind, len(case.at))
            expected, _ = _derivative(reference, mode, args, along, cts)
            other = numbers.is_close(got, expected, size, case.slope_tolerance)
            outcome = other if other.ok else outcome
        elif not outcome.ok and case.surrogate:
            raise Skip(SURROGATE)
        where = f"slope of the {what}s along a random direction: {outcome.where}"
        return Outcome(outcome.error, outcome.tolerance, where)

    return run


def _first(f: Callable[..., Arrays], kind: str, n: int) -> Callable[..., Arrays]:
    """A first derivative, as a function of `n` arguments and their (co)tangents."""
    if kind == "backward":
        return lambda *args: list(jax.vjp(f, *args[:n])[1](list(args[n:])))
    return lambda *args: jax.jvp(f, args[:n], args[n:])[1]


def _derivative(
    g: Callable[..., Arrays], mode: str, args: Arrays, along: Arrays, cts: Arrays
) -> tuple[float, float]:
    """<ct, slope of g along a direction> by either mode, and if nothing cancelled."""
    if mode == "reverse":
        found, others = list(jax.vjp(g, *args)[1](cts)), along
    else:
        found, others = jax.jvp(g, args, along)[1], cts
    return numbers.pairing(found, others), numbers.size_of(found, others)
