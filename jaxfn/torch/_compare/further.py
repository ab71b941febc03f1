"""Rows about second derivatives, tangents and batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._base import compat, errors, pytree
from jaxfn._check import Outcome, Skip, eps_of, is_close, slopes, worst
from jaxfn.torch._compare.accuracy import normal
from jaxfn.torch._compare.gradients import names
from jaxfn.torch._compare.original import OriginalError
from jaxfn.torch._compare.pair import Different, Pair
from jaxfn.torch._compare.points import points
from jaxfn.torch._compare.values import needed

SLOPE = 0.4
"""Finite differences have so many of all digits: eps to this power."""
CONSTANTS = (
    "PyTorch takes what forward computes and saves for constants in a second derivative"
)
SAVED = f"{CONSTANTS}; the port's is the slope of the gradient"
NO_SLOPE = "PyTorch's second derivative is not the slope of its own gradient here"
OTHERWISE = f"{NO_SLOPE}; the port's is"


class Expected(Exception):  # noqa: N818  (it is a finding)
    """A difference that is known, and right; the message names it."""


# ---- second derivatives


def second(pair: Pair) -> Outcome:
    """The gradient of the gradients, by arguments and by cotangents."""
    chosen = needed(pair)
    once = pair.original.is_once_differentiable
    expected = [] if once else pair.torch_second(pair.arrays)
    try:
        got = pair.jax_second(pair.arrays)
    except errors.SecondDerivativeError as error:
        if once:
            raise Skip("both refuse it: once_differentiable") from error
        raise
    except errors.HostDerivativeError as error:
        said = str(error).split(":")[0]
        raise Skip(f"the port refuses it: {said}") from error
    if once:
        raise Skip(
            "PyTorch's backward is once_differentiable, so that no second derivative "
            "is meant; the port has one"
        )
    outcome = pair.compare(got, expected, _labels(pair, chosen), "second derivative")
    if outcome.ok:
        return outcome
    return _judged(pair, chosen, got, expected, outcome)


def _labels(pair: Pair, chosen: Sequence[int]) -> list[str]:
    labels = [f"second derivative by {pair.arguments.label(i)}" for i in chosen]
    outs = [pair.expected.labels[i] for i in pair.expected.moving]
    return [*labels, *(f"second derivative by the cotangent of {out}" for out in outs)]


def _judged(
    pair: Pair,
    chosen: Sequence[int],
    got: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    outcome: Outcome,
) -> Outcome:
    """Where the two differ: is torch's what is no slope of its own gradient?"""
    saves = pair.original.saves_intermediates(pair.arguments, chosen)
    gap = _from_slopes(pair, chosen, got)
    if gap == "":
        raise Expected(SAVED if saves else OTHERWISE)
    if saves and gap is None:
        raise Skip(f"{CONSTANTS}, and the gradient has no slope to compare with")
    # What was computed from an output moves as the rules say, so that a gradient which
    # is none of the value (on purpose, or of so many steps) is no measure.
    lost = saves or (gap and _from_slopes(pair, chosen, theirs))
    if lost and not _is_slope_of_value(pair, chosen):
        raise Skip(
            f"{CONSTANTS if saves else NO_SLOPE}, and the gradient is not the slope of "
            "the value: nothing says what the second derivative is"
        )
    where = "\n  ".join(filter(None, [outcome.where, gap]))
    return dataclasses.replace(outcome, where=where)


def _from_slopes(
    pair: Pair, chosen: Sequence[int], got: Sequence[np.ndarray]
) -> str | None:
    """How the port's differs from the slope of torch's gradient; None: there is none.

    Empty if it does not differ.
    """
    n, generator = len(chosen), pair.rng()
    at = [*(pair.arrays[i] for i in chosen), *pair.cts]

    def gradients(*args: Any) -> list[Any]:
        every = list(pair.arrays)
        for i, x in zip(chosen, args[:n], strict=True):
            every[i] = np.asarray(x)
        return pair.torch_gradients(every, chosen, list(map(np.asarray, args[n:])))

    for k, x in enumerate(at):
        ts = [normal(x, generator) if j == k else None for j in range(len(at))]
        outcome = _slope(gradients, at, ts, pair.along, got[k], k)
        if outcome is None:
            return None
        if not outcome.ok:
            label = _labels(pair, chosen)[k]
            return f"finite differences of PyTorch's gradient: {label}, {outcome.where}"
    return ""


def _slope(
    f: Callable[..., list[Any]],
    at: Sequence[np.ndarray],
    ts: Sequence[Any],
    along: Sequence[np.ndarray],
    got: np.ndarray,
    k: int,
) -> Outcome | None:
    """<got, t> and the slope of <f, along>, for the one direction that is given."""
    eps = eps_of([x for x in at if pytree.is_inexact(x)])
    found = slopes(f, at, ts, eps)
    if not all(s.settled.all() for s in found):
        return None
    values = [s.value for s in found]
    expected = _dot(along, values)
    size = _dot([np.abs(a) for a in along], [np.abs(v) for v in values])
    size += sum(s.floor for s in found)
    outcome = is_close(_dot([got], [ts[k]]), expected, size, eps**SLOPE)
    where = f"along a random direction: {outcome.where}"
    return dataclasses.replace(outcome, where=where)


def _dot(xs: Sequence[Any], ys: Sequence[Any]) -> float:
    """Re <x, y>, with torch's convention of what a gradient is."""
    return float(sum(np.sum(np.conj(x) * y).real for x, y in zip(xs, ys, strict=True)))


def _is_slope_of_value(pair: Pair, chosen: Sequence[int]) -> bool:
    generator = pair.rng()
    at = [pair.arrays[i] for i in chosen]

    def values(*args: Any) -> list[Any]:
        every = list(pair.arrays)
        for i, x in zip(chosen, args, strict=True):
            every[i] = np.asarray(x)
        leaves = pair.original.value(pair.arguments, every).leaves
        return [leaves[i] for i in pair.expected.moving]

    for k, x in enumerate(at):
        ts = [normal(x, generator) if j == k else None for j in range(len(at))]
        outcome = _slope(values, at, ts, pair.cts, pair.expected_gradients[k], k)
        if outcome is None or not outcome.ok:
            return False
    return True


# ---- tangents


def jvp(pair: Pair) -> Outcome:
    """Along all arguments, and along each alone."""
    if not pair.original.owns("jvp"):
        raise Skip("PyTorch's class has no jvp")
    if not pair.arguments.at or not pair.cts:
        raise Skip("no argument or no output is a float or complex array")
    ts = pair.tangents
    every = [ts, *({i: t} for i, t in ts.items())] if len(ts) > 1 else [ts]
    found = []
    for some in every:
        numbers = ", ".join(str(pair.arguments.position(i)) for i in some)
        expected = pair.torch_tangents(pair.arrays, some)
        try:
            got = pair.port.push(pair.arrays, some)
        except Exception as error:
            _expect_refusal(error)
            raise Different(
                f"along argument {numbers}: {type(error).__name__}: {error}"
            ) from error
        labels = [
            f"tangent of {pair.expected.labels[i]} along argument {numbers}"
            for i in pair.expected.moving
        ]
        found.append(pair.compare(got, expected, labels, "tangent"))
    return worst(found)


def _expect_refusal(error: Exception) -> None:
    text = str(error)
    if compat.FORWARD_MODE_REFUSAL in text or errors.NO_JVP in text:
        raise Skip("the port has no jvp") from error


# ---- batches

EXAMPLES = 3
Axes = tuple[int | None, ...]


def _axes(pair: Pair) -> list[Axes]:
    """All arrays batched first and last, and each alone, for a few."""
    n = len(pair.arrays)
    if n == 0:
        raise Skip("there is no array to batch")
    found: list[Axes] = [(0,) * n, tuple(x.ndim for x in pair.arrays)]
    if 1 < n <= 5:
        found += [tuple(0 if j == i else None for j in range(n)) for i in range(n)]
    return list(dict.fromkeys(found))


def _examples(rows: Sequence[Sequence[Any]], axes: Axes) -> list[list[Any]]:
    return [
        [x if axis is not None else rows[0][i] for i, (x, axis) in enumerate(columns)]
        for columns in (list(zip(row, axes, strict=True)) for row in rows)
    ]


def _batched(rows: Sequence[Sequence[Any]], axes: Axes) -> list[np.ndarray]:
    return [
        rows[0][i] if axis is None else np.stack([row[i] for row in rows], axis)
        for i, axis in enumerate(axes)
    ]


def _rows(pair: Pair, run: Callable[[list[np.ndarray]], Any]) -> list[Any]:
    return [list(pair.arrays), *points(pair, EXAMPLES - 1, run)]


def vmap(pair: Pair) -> Outcome:
    """A batch, against a loop of torch, or torch's own vmap rule."""
    at = [i for i, x in enumerate(pair.got[0]) if pytree.is_array(x)]
    labels = [pair.expected.labels[i] for i in at]

    def run(arrays: list[np.ndarray]) -> list[Any]:
        leaves = pair.original.value(pair.arguments, arrays).leaves
        return [np.asarray(leaves[i]) for i in at]

    rows, found = _rows(pair, run), []
    for axes in _axes(pair):
        loop = [np.stack(c) for c in zip(*map(run, _examples(rows, axes)), strict=True)]
        batched = _batched(rows, axes)
        got = jax.vmap(lambda *xs: pair.port.arrays(xs), axes)(
            *map(jnp.asarray, batched)
        )
        words = [f"{label} (in_axes={axes})" for label in labels]
        expected = _own_vmap(pair, batched, axes, at, loop)
        outcome = pair.compare(got, expected, words, "value", which=at)
        if not outcome.ok and pair.compare(got, loop, words, "value", which=at).ok:
            raise Different(
                f"{outcome.where}\n  PyTorch's vmap rule gives something else than a "
                "loop of its forward; the port gives the loop"
            )
        found.append(outcome)
    return worst(found)


def _own_vmap(
    pair: Pair, batched: list[np.ndarray], axes: Axes, at: list[int], loop: list[Any]
) -> list[Any]:
    """What torch's vmap gives if the class has a rule for it and it runs."""
    if not pair.original.owns("vmap"):
        return loop
    try:
        leaves = pair.original.batched(pair.arguments, batched, axes).leaves
    except OriginalError:
        return loop
    return [np.asarray(leaves[i]) for i in at]


def vmap_gradients(pair: Pair) -> Outcome:
    """The gradient under vmap, against a loop of torch."""
    chosen = needed(pair)

    def run(arrays: list[np.ndarray]) -> list[Any]:
        return pair.torch_gradients(arrays, chosen, pair.cts)

    def pull(*arrays: Any) -> Any:
        return pair.port.pull(arrays, chosen, pair.cts)

    rows, found = _rows(pair, run), []
    for axes in _axes(pair):
        each = zip(*map(run, _examples(rows, axes)), strict=True)
        loop = [np.stack(column) for column in each]
        batched = list(map(jnp.asarray, _batched(rows, axes)))
        got = [np.asarray(g) for g in jax.vmap(pull, axes)(*batched)]
        words = [f"{name} (in_axes={axes})" for name in names(pair, chosen)]
        found.append(pair.compare(got, loop, words, "gradient"))
    return worst(found)
