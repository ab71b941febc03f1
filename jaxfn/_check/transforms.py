"""Checks of rules under vmap, and of second derivatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from jaxfn._base import pytree
from jaxfn._check import accuracy, differences, numbers
from jaxfn._check.case import Case
from jaxfn._check.compiled import Once, Program
from jaxfn._check.numbers import Arrays, Outcome, Skip
from jaxfn._check.rules import outputs

EXAMPLES = 3
"""In a batch: not a size that is likely to be that of another axis."""

# ---- vmap


Axes: TypeAlias = tuple[int | None, ...]


def _axes(case: Case) -> list[Axes]:
    """All arrays batched first and last, and each of them alone.

    Not alone where that makes no difference.
    """
    n = len(case.arrays)
    if n == 0:
        raise Skip("there is no array to batch")
    found = [(0,) * n, _last(case)]
    if n > 1 and not case.is_batched_by_jax:
        found += [tuple(0 if j == i else None for j in range(n)) for i in range(n)]
    return list(dict.fromkeys(found))


def _axes_of_derivatives(case: Case, shared: int) -> list[Axes]:
    """As for the value; or every other array batched last, where that is enough."""
    if not case.is_batched_by_jax or not case.arrays:
        return _axes(case)
    last = _last(case)
    if len(last) == 1:
        return [last]
    return [tuple(None if i % 2 == shared else axis for i, axis in enumerate(last))]


def _last(case: Case) -> Axes:
    # A key has a hidden last axis.
    return tuple(0 if numbers.is_key(x) else x.ndim for x in case.arrays)


def _batched(rows: Sequence[Arrays], axes: Axes) -> tuple[Arrays, list[Arrays]]:
    """The batched arrays, and the examples that they hold."""
    arrays, examples = [], [list(row) for row in rows]
    for i, axis in enumerate(axes):
        if axis is None:
            arrays.append(rows[0][i])
            for example in examples:
                example[i] = rows[0][i]
        else:
            arrays.append(numbers.stack([row[i] for row in rows], axis))
    return arrays, examples


Batch: TypeAlias = Callable[[Axes], Callable[..., Arrays]]
"""What is batched, for the axes of its arguments."""


def _batches(case: Case, f: Batch, chosen: Sequence[Axes]) -> list[Arrays]:
    """What `f` gives for each of these axes, in one program."""
    rows = case.batch(EXAMPLES)
    given = [_batched(rows, axes)[0] for axes in chosen]

    def every(given: list[Arrays]) -> list[Arrays]:
        return [f(axes)(*xs) for axes, xs in zip(chosen, given, strict=True)]

    if not case.is_traced:
        return every(given)
    # Not compiled, each of many axes would compile each operation anew.
    return Once(every)(given)


def _against_loop(
    case: Case,
    batches: Sequence[Arrays],
    chosen: Sequence[Axes],
    f: Callable[..., Arrays],
    names: Callable[[int], list[str]],
) -> Outcome:
    """Batches against what a loop over their examples gives."""
    rows, found = case.batch(EXAMPLES), []
    for axes, got in zip(chosen, batches, strict=True):
        examples = _batched(rows, axes)[1]
        columns = zip(*[f(*example) for example in examples], strict=True)
        expected = [numbers.stack(column) for column in columns]
        labels = [f"{name} (in_axes={axes})" for name in names(len(expected))]
        found.append(case.compare(got, expected, labels))
    return numbers.worst(found)


def vmap(case: Case) -> Outcome:
    """A batch is what a loop gives, wherever the batch axis is.

    One is not compiled where there may be a vmap rule that nothing can trace.
    """
    chosen = _axes(case)
    first = _compiled(case) if case.is_batched_by_jax else _not_compiled(case)
    got = _batches(case, lambda axes: jax.vmap(case.run, in_axes=axes), chosen[1:])
    return _against_loop(case, [first, *got], chosen, case.quick_run, outputs)


def _not_compiled(case: Case) -> Arrays:
    arrays, _ = _batched(case.batch(EXAMPLES), (0,) * len(case.arrays))
    return jax.vmap(case.run)(*arrays)


def _compiled(case: Case) -> Arrays:
    arrays, _ = _batched(case.batch(EXAMPLES), (0,) * len(case.arrays))
    return case.vmap_program.compiled(*arrays)


def vmap_jit(case: Case) -> Outcome:
    got = _compiled(case)
    if case.is_batched_by_jax:
        return _against_loop(case, [got], _axes(case)[:1], case.quick_run, outputs)
    return case.compare(got, _not_compiled(case), outputs(len(got)))


def vmap_backward(case: Case) -> Outcome:
    """The gradient under vmap, against a loop."""

    def batched(axes: Axes) -> Callable[..., Arrays]:
        return jax.vmap(lambda *xs: case.gradients(case.first_cts, *xs), in_axes=axes)

    chosen = _axes_of_derivatives(case, 1)
    got = _batches(case, batched, chosen)
    return _against_loop(case, got, chosen, partial_gradients(case), named)


def named(n: int) -> list[str]:
    return [f"gradient {i}" for i in range(n)]


def partial_gradients(case: Case) -> Callable[..., Arrays]:
    """The gradients by the float arrays, for cotangents that are the same anywhere."""
    return lambda *arrays: case.quick_gradients(case.first_cts, *arrays)


def backward_vmap(case: Case) -> Outcome:
    """The gradient of vmap against a loop of gradients; sums over what is shared."""
    cts = [numbers.stack([ct] * EXAMPLES) for ct in case.first_cts]

    def batched(axes: Axes) -> Callable[..., Arrays]:
        def gradients(*arrays: Any) -> Arrays:
            def f(*xs: Any) -> Arrays:
                found = jax.vmap(case.run, in_axes=axes)(*case.whole(xs, arrays))
                return [o for o in found if pytree.is_inexact(o)]

            return list(jax.vjp(f, *[arrays[i] for i in case.at])[1](cts))

        return gradients

    chosen = _axes_of_derivatives(case, 0)
    rows, found = case.batch(EXAMPLES), []
    for axes, got in zip(chosen, _batches(case, batched, chosen), strict=True):
        examples = _batched(rows, axes)[1]
        each = [partial_gradients(case)(*example) for example in examples]
        expected = [
            _shared([gradients[k] for gradients in each], axes[i])
            for k, i in enumerate(case.at)
        ]
        labels = [f"{name} (in_axes={axes})" for name in named(len(expected))]
        found.append(case.compare(got, expected, labels))
    return numbers.worst(found)


def _shared(column: Arrays, axis: int | None) -> Any:
    """The gradients of the examples, or the sum where they share the argument."""
    if axis is not None:
        return numbers.stack(column, axis)
    total = column[0]
    for other in column[1:]:
        (total,) = numbers.combine(1.0, [total], [other])
    return total


def vmap_jvp(case: Case) -> Outcome:
    """The jvp under vmap, against a loop."""
    ts = case.ts(case.rng())

    def batched(axes: Axes) -> Callable[..., Arrays]:
        return jax.vmap(lambda *xs: case.tangents(ts, *xs), in_axes=axes)

    def names(n: int) -> list[str]:
        return [f"tangent of {name}" for name in outputs(n)]

    def loop(*arrays: Any) -> Arrays:
        return case.quick_tangents(ts, *arrays)

    chosen = _axes_of_derivatives(case, 1)
    return _against_loop(case, _batches(case, batched, chosen), chosen, loop, names)


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
        args = [*case.xs, *given]
        along = [numbers.direction(x, generator) for x in args]
        quick = _quickly(case, kind)
        cts = [numbers.like(o, generator) for o in quick(*args)]
        derivative = case.program(_derivative(_first(case, case.f, kind), mode))
        found = derivative(args, along, cts)
        others = along if mode == "reverse" else cts
        outcome = _paired(case, quick, args, along, cts, (found, others), ())
        if not outcome.ok:
            noise = accuracy.jumps(quick, args, along)
            if any(noise):
                outcome = _paired(case, quick, args, along, cts, (found, others), noise)
        if not outcome.ok and case.reference is not None:
            of_reference = _derivative(_first(case, case.reference_f, kind), mode)
            expected = numbers.pairing(Program(of_reference)(args, along, cts), others)
            got, size = numbers.pairing(found, others), numbers.size_of(found, others)
            other = numbers.is_close(got, expected, size, case.slope_tolerance)
            outcome = other if other.ok else outcome
        elif not outcome.ok and case.surrogate:
            raise Skip(SURROGATE)
        where = f"slope of the {WHAT[kind]}s along a random direction: {outcome.where}"
        return dataclasses.replace(outcome, where=where)

    return run


WHAT = {"backward": "gradient", "jvp": "tangent"}


def _paired(
    case: Case,
    g: Callable[..., Arrays],
    args: Arrays,
    along: Arrays,
    cts: Arrays,
    got: tuple[Arrays, Arrays],
    noise: Sequence[float],
) -> Outcome:
    """The derivative of g, which is in a pairing, against the slopes of g."""
    slopes = differences.slopes(g, args, along, case.eps, noise or None)
    if not all(s.settled.all() for s in slopes):
        raise Skip("the first derivative has no slope here that differences agree on")
    values = [s.value for s in slopes]
    size = max(numbers.size_of(*got), numbers.size_of(cts, values))
    size += sum(s.floor for s in slopes)
    errors = [np.broadcast_to(s.error, s.value.shape) for s in slopes]
    allowed = numbers.size_of(cts, errors)
    return numbers.is_close(
        numbers.pairing(*got),
        numbers.pairing(cts, values),
        size,
        case.slope_tolerance,
        allowed,
    )


def _quickly(case: Case, kind: str) -> Callable[..., Arrays]:
    n = len(case.at)
    first = case.quick_pull if kind == "backward" else case.quick_push
    return lambda *args: first(list(args[n:]), *args[:n])


def _first(case: Case, f: Callable[..., Arrays], kind: str) -> Callable[..., Arrays]:
    """A first derivative, as a function of arguments and their (co)tangents."""
    n = len(case.at)
    if kind == "backward":
        return lambda *args: list(jax.vjp(f, *args[:n])[1](list(args[n:])))
    return lambda *args: jax.jvp(f, args[:n], args[n:])[1]


def _derivative(
    g: Callable[..., Arrays], mode: str
) -> Callable[[Arrays, Arrays, Arrays], Arrays]:
    """Of g: along a direction, or for cotangents."""

    def derivative(args: Arrays, along: Arrays, cts: Arrays) -> Arrays:
        if mode == "reverse":
            return list(jax.vjp(g, *args)[1](cts))
        return jax.jvp(g, args, along)[1]

    return derivative
