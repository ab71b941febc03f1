"""Rows about second derivatives, tangents and batches."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxfn._check import (
    Once,
    Outcome,
    Skip,
    backward,
    batching,
    eps_of,
    like,
    paired,
    refusals,
    slopes,
    worst,
)
from jaxfn._core import is_array, is_inexact, messages
from jaxfn._kernels import KernelDerivativeError
from jaxfn.torch._compare.arguments import exchanged
from jaxfn.torch._compare.original import OriginalError
from jaxfn.torch._compare.pair import Different, Pair, expect_numbers
from jaxfn.torch._compare.report import NOT_COMPARED
from jaxfn.torch._compare.values import needed

CONSTANTS = (
    "PyTorch takes what forward computes and saves for constants in a second derivative"
)
SAVED = f"{CONSTANTS}; the port's is the slope of the gradient"
NO_SLOPE = "PyTorch's second derivative is not the slope of its own gradient here"
OTHERWISE = f"{NO_SLOPE}; the port's is"
BOTH = "both agree with finite differences of PyTorch's gradient, as far as these go"


class Expected(Skip):
    """A difference that is known and right; the message names it."""

    status = "expected"


# ---- second derivatives


def second(pair: Pair) -> Outcome:
    """Compare the gradients of the gradients, by arguments and by cotangents."""
    chosen = needed(pair)
    once = pair.original.is_once_differentiable
    args = pair.arrays, pair.cts, pair.along
    expected = [] if once else pair.original.pull_twice(args[0], chosen, *args[1:])
    ours = lambda arrays, *more: pair.port.pull_twice(arrays, chosen, *more)  # noqa: E731
    try:
        # If PyTorch has none, the question is only whether the port refuses it too.
        trace = functools.partial(jax.eval_shape, ours)
        got = trace(*args) if once else Once(ours)(*args)
    except messages.SecondDerivativeError as error:
        if once:
            raise Skip("both refuse it: once_differentiable") from error
        raise
    except (messages.HostDerivativeError, KernelDerivativeError) as error:
        said = re.split(r": |\. ", str(error))[0]
        raise Skip(f"the port refuses it: {said}") from error
    if once:
        raise Skip(
            "PyTorch's backward is once_differentiable: only the port has a second "
            "derivative"
        )
    expect_numbers(got, expected)
    outcome = pair.compare(got, expected, _labels(pair, chosen), "second derivative")
    if outcome.ok:
        return outcome
    return _judged(pair, chosen, got, expected, outcome)


def _labels(pair: Pair, chosen: Sequence[int]) -> list[str]:
    labels = [f"second derivative by {pair.arguments.label(i)}" for i in chosen]
    outs = [pair.expected.labels[i] for i in pair.expected.inexact]
    return [*labels, *(f"second derivative by the cotangent of {out}" for out in outs)]


def _judged(
    pair: Pair,
    chosen: Sequence[int],
    got: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    outcome: Outcome,
) -> Outcome:
    """Decide about a difference: torch's may not be the slope of its own gradient."""
    saves = pair.original.saves_intermediates(chosen)
    found = _beside_slopes(pair, chosen, [got, theirs])
    if found is None and saves:
        raise _unproved(CONSTANTS, "has no slope to compare with")
    if found is None:
        return outcome
    ours, originals = found
    if ours.ok and originals.ok:
        return dataclasses.replace(ours, note=BOTH)
    if ours.ok:
        raise Expected(SAVED if saves else OTHERWISE)
    # The rules define the derivative of an output. If it is not the slope of the value
    # (a surrogate, an early stop), then the slope of the gradient proves nothing.
    if (saves or not originals.ok) and not _is_slope_of_value(pair):
        raise _unproved(CONSTANTS if saves else NO_SLOPE, "is not the value's slope")
    where = f"finite differences of PyTorch's gradient: {ours.where}"
    return dataclasses.replace(outcome, where=f"{outcome.where}\n  {where}")


def _unproved(why: str, gradient: str) -> Skip:
    return Skip(
        f"{NOT_COMPARED}it differs from PyTorch's, and neither can be called right: "
        f"{why}, and the gradient {gradient}. Pass order=1 to leave it out"
    )


def _is_slope_of_value(pair: Pair) -> bool:
    """Return whether the port's gradient is, which equals torch's."""
    try:
        return backward(pair.checks.case).ok
    except ValueError:  # the value has no slope
        return False


def _beside_slopes(
    pair: Pair, chosen: Sequence[int], results: Sequence[Sequence[np.ndarray]]
) -> list[Outcome] | None:
    """Compare second derivatives with slopes of torch's gradient.

    Return the worst outcome of each result; None if there is no slope.
    """
    n, labels = len(chosen), _labels(pair, chosen)

    def gradients(*args: Any) -> list[Any]:
        xs = list(map(np.asarray, args))
        every = exchanged(pair.arrays, chosen, xs[:n])
        return pair.original.pull(every, chosen, xs[n:])

    at = [*(pair.arrays[i] for i in chosen), *pair.cts]
    noise = pair.accuracy.jumps_of("original", "gradient")
    eps, generator = eps_of(list(filter(is_inexact, at))), pair.rng()
    # In JAX's convention, in which a pairing has no conjugate.
    along = list(map(np.conj, pair.along))
    found: list[list[Outcome]] = [[] for _ in results]
    for k, x in enumerate(at):
        t = like(x, generator)
        ts = [t if j == k else None for j in range(len(at))]
        try:
            along_t = slopes(gradients, at, ts, eps, noise)
        except OriginalError:  # it refuses points near the arguments
            return None
        if not all(s.settled.all() for s in along_t):
            return None
        for outcomes, result in zip(found, results, strict=True):
            one = [np.conj(result[k])], [t]
            outcome = paired(pair.checks.case, one, along_t, along)
            where = f"{labels[k]}, along a random direction: {outcome.where}"
            outcomes.append(dataclasses.replace(outcome, where=where))
    return list(map(worst, found))


# ---- tangents


def jvp(pair: Pair) -> Outcome:
    """Compare tangents along all arguments, and along each alone."""
    if not pair.original.owns("jvp"):
        raise Skip("PyTorch's class has no jvp")
    if not pair.arguments.at or not pair.cts:
        raise Skip("no argument or no output is a float or complex array")
    ts = pair.tangents
    every = [ts, *({i: t} for i, t in ts.items())] if len(ts) > 1 else [ts]
    found = []
    for some in every:
        numbers = ", ".join(str(pair.arguments.position(i)) for i in some)
        expected = pair.original.push(pair.arrays, some)
        with refusals():
            got = pair.port.push(pair.arrays, some)
        labels = [
            f"tangent of {pair.expected.labels[i]} along argument {numbers}"
            for i in pair.expected.inexact
        ]
        found.append(pair.compare(got, expected, labels, "tangent"))
    return worst(found)


# ---- batches


def vmap(pair: Pair) -> Outcome:
    """Compare a batch with a loop of the port, or with torch's own vmap rule."""
    beside_loop = pair.checks.outcome("vmap")
    if not pair.original.owns("vmap"):
        return beside_loop
    try:
        outcome = _beside_own_vmap(pair)
    except OriginalError:
        return beside_loop
    if beside_loop.ok and not outcome.ok:
        raise Different(
            f"{outcome.where}\n  PyTorch's vmap rule differs from a loop of its "
            "forward; the port agrees with the loop"
        )
    return outcome


def _beside_own_vmap(pair: Pair) -> Outcome:
    at, found = [i for i, x in enumerate(pair.got) if is_array(x)], []
    for axes, batch, got in batching.by_axes(pair.checks.case):
        leaves = pair.original.batched(list(map(np.asarray, batch)), axes).leaves
        labels = [f"{pair.expected.labels[i]} (in_axes={axes})" for i in at]
        expected = [np.asarray(leaves[i]) for i in at]
        found.append(pair.compare(got, expected, labels, "value", which=at))
    return worst(found)
