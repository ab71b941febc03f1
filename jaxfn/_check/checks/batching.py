"""Checks of rules under vmap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax

from jaxfn._check import numbers, shared
from jaxfn._check.case import Case, name_gradients, name_outputs, name_tangents
from jaxfn._check.compile import Call, jit
from jaxfn._check.numbers import Arrays
from jaxfn._check.shared import Outcome, Skip
from jaxfn._core import values

EXAMPLES = 3
"""Size of a batch, unlikely to be the size of another axis."""

Axes: TypeAlias = tuple[int | None, ...]


def _axes(case: Case) -> list[Axes]:
    """Return the axes: all arrays batched first, all last, and each array alone.

    If JAX's own rules batch everything, all last is enough.
    """
    n = len(case.arrays)
    if n == 0:
        raise Skip("there is no array to batch")
    if case.is_batched_by_jax:
        return [_last(case)]
    found = [(0,) * n, _last(case)]
    if n > 1:
        found += [tuple(0 if j == i else None for j in range(n)) for i in range(n)]
    return list(dict.fromkeys(found))


def _axes_of_derivatives(case: Case, shared: int) -> list[Axes]:
    """Return the axes for derivatives; if JAX batches, every other array last."""
    if not case.is_batched_by_jax or not case.arrays:
        return _axes(case)
    last = _last(case)
    if len(last) == 1:
        return [last]
    return [tuple(None if i % 2 == shared else axis for i, axis in enumerate(last))]


def _last(case: Case) -> Axes:
    keys = [x for x in case.arrays if shared.is_key(x)]
    if any("rbg" in str(jax.random.key_impl(key)) for key in keys):
        raise Skip("under vmap, JAX draws other numbers from rbg keys")
    # JAX batches the arrays of a sparse matrix along their first axis only.
    if case.has_sparse:
        return (0,) * len(case.arrays)
    # A key has a hidden last axis.
    return tuple(0 if shared.is_key(x) else x.ndim for x in case.arrays)


def _batched(rows: Sequence[Arrays], axes: Axes) -> tuple[Arrays, list[Arrays]]:
    """Return the batched arrays, and their examples."""
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
"""A batched function, for the axes of its arguments."""


def _in_batches(case: Case, f: Batch, chosen: Sequence[Axes]) -> Call:
    """Return a call of `f` for each of these axes."""
    rows = case.batch(EXAMPLES)
    given = [_batched(rows, axes)[0] for axes in chosen]

    def every(given: list[Arrays]) -> list[Arrays]:
        return [f(axes)(*xs) for axes, xs in zip(chosen, given, strict=True)]

    return every, (given,)


def _against_loop(
    case: Case,
    batches: Sequence[Arrays],
    chosen: Sequence[Axes],
    f: Callable[..., Arrays],
    names: Callable[[Arrays], list[str]],
) -> Outcome:
    """Compare batches with a loop over their examples."""
    rows, found = case.batch(EXAMPLES), []
    for axes, got in zip(chosen, batches, strict=True):
        examples = _batched(rows, axes)[1]
        columns = zip(*[f(*example) for example in examples], strict=True)
        expected = [numbers.stack(column) for column in columns]
        labels = [f"{name} (in_axes={axes})" for name in names(expected)]
        found.append(case.compare(got, expected, labels))
    return shared.worst(found)


def batches(case: Case) -> Call:
    """Plan the value under vmap."""
    return _in_batches(case, lambda axes: jax.vmap(case.run, in_axes=axes), _axes(case))


def by_axes(case: Case) -> Iterator[tuple[Axes, Arrays, Arrays]]:
    """Yield the axes, the batched arrays and the results of the value under vmap."""
    (given,), found = case.computed(batches, after="value under jit")
    return zip(_axes(case), given, found, strict=True)


def vmap(case: Case) -> Outcome:
    """Compare vmap with a loop, for several batch axes.

    If there may be a vmap rule that can't be traced, one batch is not compiled.
    """
    got = case.computed(batches, after="value under jit")[1]
    if not case.is_batched_by_jax:
        got = [_not_compiled(case), *got[1:]]
    return _against_loop(case, got, _axes(case), case.quick_run, name_outputs)


def _not_compiled(case: Case) -> Arrays:
    axes = _axes(case)[0]
    return jax.vmap(case.run, in_axes=axes)(*_batched(case.batch(EXAMPLES), axes)[0])


def vmap_jit(case: Case) -> Outcome:
    if case.together is not None and batches in case.together:
        got = case.together[batches][1][0]
    else:
        axes = _axes(case)[0]
        arrays, _ = _batched(case.batch(EXAMPLES), axes)
        got = jit(jax.vmap(case.run, in_axes=axes))(*arrays)
    if case.is_batched_by_jax:
        return _against_loop(case, [got], _axes(case), case.quick_run, name_outputs)
    return case.compare(got, _not_compiled(case), name_outputs(got))


def batches_of_backward(case: Case) -> Call:
    """Plan the gradient under vmap."""

    def batched(axes: Axes) -> Callable[..., Arrays]:
        return jax.vmap(lambda *xs: case.gradients(case.first_cts, *xs), in_axes=axes)

    return _in_batches(case, batched, _axes_of_derivatives(case, 1))


def vmap_backward(case: Case) -> Outcome:
    """Compare the gradient under vmap with a loop."""
    chosen, got = _axes_of_derivatives(case, 1), case.computed(batches_of_backward)[1]
    return _against_loop(case, got, chosen, partial_gradients(case), name_gradients)


def partial_gradients(case: Case) -> Callable[..., Arrays]:
    """Return the gradients by the float arrays, for the first cotangents."""
    return functools.partial(case.quick_gradients, case.first_cts)


def backwards_of_batch(case: Case) -> Call:
    """Plan the gradient of vmap."""
    cts = [numbers.stack([ct] * EXAMPLES) for ct in case.first_cts]

    def batched(axes: Axes) -> Callable[..., Arrays]:
        def gradients(*arrays: Any) -> Arrays:
            def f(*xs: Any) -> Arrays:
                found = jax.vmap(case.run, in_axes=axes)(*case.whole(xs, arrays))
                return [o for o in found if values.is_number(o)]

            return list(jax.vjp(f, *[arrays[i] for i in case.at])[1](cts))

        return gradients

    return _in_batches(case, batched, _axes_of_derivatives(case, 0))


def backward_vmap(case: Case) -> Outcome:
    """Compare the gradient of vmap with a loop; a shared argument gets the sum."""
    chosen, rows = _axes_of_derivatives(case, 0), case.batch(EXAMPLES)
    found = []
    every = case.computed(backwards_of_batch)[1]
    for axes, got in zip(chosen, every, strict=True):
        examples = _batched(rows, axes)[1]
        each = [partial_gradients(case)(*example) for example in examples]
        expected = [
            _shared([gradients[k] for gradients in each], axes[i])
            for k, i in enumerate(case.at)
        ]
        labels = [f"{name} (in_axes={axes})" for name in name_gradients(expected)]
        found.append(case.compare(got, expected, labels))
    return shared.worst(found)


def _shared(column: Arrays, axis: int | None) -> Any:
    """Stack the gradients of the examples, or sum them if they share the argument."""
    if axis is not None:
        return numbers.stack(column, axis)
    total = column[0]
    for other in column[1:]:
        (total,) = numbers.combine(1.0, [total], [other])
    return total


def batches_of_jvp(case: Case) -> Call:
    """Plan the jvp under vmap."""
    ts = case.ts(case.rng())

    def batched(axes: Axes) -> Callable[..., Arrays]:
        return jax.vmap(lambda *xs: case.tangents(ts, *xs), in_axes=axes)

    return _in_batches(case, batched, _axes_of_derivatives(case, 1))


def vmap_jvp(case: Case) -> Outcome:
    """Compare the jvp under vmap with a loop."""
    ts, chosen = case.ts(case.rng()), _axes_of_derivatives(case, 1)
    got = case.computed(batches_of_jvp, after="jvp under jit")[1]
    loop = functools.partial(case.quick_tangents, ts)
    return _against_loop(case, got, chosen, loop, name_tangents)
