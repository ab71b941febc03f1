"""Rows about second derivatives, tangents and batches."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._check import Once, Outcome, Skip, eps_of, is_close, slopes, worst
from jaxfn._core import internals, is_array, is_inexact, messages
from jaxfn._kernels import KernelDerivativeError
from jaxfn.torch._compare.accuracy import normal
from jaxfn.torch._compare.arguments import exchanged
from jaxfn.torch._compare.gradients import names
from jaxfn.torch._compare.original import OriginalError
from jaxfn.torch._compare.pair import NOT_COMPARED, Different, Pair, expect_numbers
from jaxfn.torch._compare.points import points
from jaxfn.torch._compare.values import needed

SLOPE = 0.4
"""Finite differences have a relative error of about eps to this power."""
CONSTANTS = (
    "PyTorch takes what forward computes and saves for constants in a second derivative"
)
SAVED = f"{CONSTANTS}; the port's is the slope of the gradient"
NO_SLOPE = "PyTorch's second derivative is not the slope of its own gradient here"
OTHERWISE = f"{NO_SLOPE}; the port's is"
BOTH = "both agree with finite differences of PyTorch's gradient, as far as these go"


class Expected(Exception):  # noqa: N818  (it is a finding)
    """A difference that is known and right; the message names it."""


# ---- second derivatives


def second(pair: Pair) -> Outcome:
    """Compare the gradients of the gradients, by arguments and by cotangents."""
    chosen = needed(pair)
    once = pair.original.is_once_differentiable
    args = pair.arrays, pair.cts, pair.along
    expected = [] if once else pair.torch_second(*args)
    try:
        # If PyTorch has none, the question is only whether the port refuses it too.
        trace = functools.partial(jax.eval_shape, pair.jax_second)
        got = trace(*args) if once else Once(pair.jax_second)(*args)
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
    found = _beside_slopes_of_gradient(pair, chosen, got, theirs)
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
    if (saves or not originals.ok) and not _is_slope_of_value(pair, chosen):
        raise _unproved(CONSTANTS if saves else NO_SLOPE, "is not the value's slope")
    where = f"finite differences of PyTorch's gradient: {ours.where}"
    return dataclasses.replace(outcome, where=f"{outcome.where}\n  {where}")


def _unproved(why: str, gradient: str) -> Skip:
    return Skip(
        f"{NOT_COMPARED}it differs from PyTorch's, and neither can be called right: "
        f"{why}, and the gradient {gradient}. Pass order=1 to leave it out"
    )


def _beside_slopes_of_gradient(
    pair: Pair,
    chosen: Sequence[int],
    got: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
) -> list[Outcome] | None:
    """Compare the port's and torch's with the slope of torch's gradient."""
    n = len(chosen)

    def gradients(*args: Any) -> list[Any]:
        xs = list(map(np.asarray, args))
        every = exchanged(pair.arrays, chosen, xs[:n])
        return pair.torch_gradients(every, chosen, xs[n:])

    at = [*(pair.arrays[i] for i in chosen), *pair.cts]
    noise = pair.accuracy.jumps_of("original", "gradient")
    labels = _labels(pair, chosen)
    return _beside_slopes(
        gradients, at, pair.along, [got, theirs], labels, noise, pair.rng()
    )


def _is_slope_of_value(pair: Pair, chosen: Sequence[int]) -> bool:
    at = pair.expected.inexact

    def values(*args: Any) -> list[Any]:
        every = exchanged(pair.arrays, chosen, list(map(np.asarray, args)))
        leaves = pair.original.value(every).leaves
        return [leaves[i] for i in at]

    xs, got = [pair.arrays[i] for i in chosen], [pair.expected_gradients]
    jumps = pair.accuracy.jumps_of("original", "value")
    noise, labels = [jumps[i] for i in at], names(pair, chosen)
    found = _beside_slopes(values, xs, pair.cts, got, labels, noise, pair.rng())
    return found is not None and found[0].ok


def _beside_slopes(
    f: Callable[..., list[Any]],
    at: Sequence[np.ndarray],
    along: Sequence[np.ndarray],
    results: Sequence[Sequence[np.ndarray]],
    labels: Sequence[str],
    noise: Sequence[float],
    generator: np.random.Generator,
) -> list[Outcome] | None:
    """Compare <result[k], t> with the slope of <f, along>, for a direction t of each.

    Return the worst outcome of each result; None if `f` has no slope along one of them.
    `noise` is the accuracy of each output of `f`, relative to its largest element.
    """
    eps = eps_of([x for x in at if is_inexact(x)])
    found: list[list[Outcome]] = [[] for _ in results]
    for k, x in enumerate(at):
        t = normal(x, generator)
        ts = [t if j == k else None for j in range(len(at))]
        try:
            along_t = slopes(f, at, ts, eps, noise)
        except OriginalError:  # it refuses points near the arguments
            return None
        if not all(s.settled.all() for s in along_t):
            return None
        expected = [s.value for s in along_t]
        sizes = [np.abs(a) for a in along]
        size = _dot(sizes, [np.abs(v) for v in expected])
        size += sum(s.least_size for s in along_t)
        errors = [np.broadcast_to(s.error, s.value.shape) for s in along_t]
        slope, allowed = _dot(along, expected), _dot(sizes, errors)
        for outcomes, result in zip(found, results, strict=True):
            outcome = is_close(_dot([result[k]], [t]), slope, size, eps**SLOPE, allowed)
            where = f"{labels[k]}, along a random direction: {outcome.where}"
            outcomes.append(dataclasses.replace(outcome, where=where))
    return [worst(outcomes) for outcomes in found]


def _dot(xs: Sequence[Any], ys: Sequence[Any]) -> float:
    """Return Re <x, y>, in torch's convention for gradients."""
    return float(sum(np.sum(np.conj(x) * y).real for x, y in zip(xs, ys, strict=True)))


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
            for i in pair.expected.inexact
        ]
        found.append(pair.compare(got, expected, labels, "tangent"))
    return worst(found)


def _expect_refusal(error: Exception) -> None:
    text = str(error)
    if internals.FORWARD_MODE_REFUSAL in text or messages.NO_JVP in text:
        raise Skip("the port has no jvp") from error


# ---- batches

EXAMPLES = 3
Axes = tuple[int | None, ...]


def _axes(pair: Pair) -> list[Axes]:
    """Return axes to batch: all arrays first and last, and each alone if few."""
    n = len(pair.arrays)
    if n == 0:
        raise Skip("there is no array to batch")
    found: list[Axes] = [(0,) * n, tuple(x.ndim for x in pair.arrays)]
    if 1 < n <= 5:
        found += [tuple(0 if j == i else None for j in range(n)) for i in range(n)]
    return list(dict.fromkeys(found))


def _batches(
    pair: Pair, run: Callable[[list[np.ndarray]], list[Any]]
) -> Iterator[tuple[Axes, list[np.ndarray], list[np.ndarray]]]:
    """Yield ways to batch: axes, batched arrays, and the results of a loop of `run`."""
    rows = [list(pair.arrays), *points(pair, EXAMPLES - 1, run)]
    for axes in _axes(pair):
        # An array that is not batched is the first example's.
        examples = [
            [rows[0][i] if axis is None else row[i] for i, axis in enumerate(axes)]
            for row in rows
        ]
        batched = [
            xs[0] if axis is None else np.stack(xs, axis)
            for xs, axis in zip(zip(*examples, strict=True), axes, strict=True)
        ]
        results = zip(*map(run, examples), strict=True)
        yield axes, batched, [np.stack(column) for column in results]


def vmap(pair: Pair) -> Outcome:
    """Compare a batch with a loop of torch, or with torch's own vmap rule."""
    at = [i for i, x in enumerate(pair.got) if is_array(x)]
    found = []

    def run(arrays: list[np.ndarray]) -> list[Any]:
        leaves = pair.original.value(arrays).leaves
        return [np.asarray(leaves[i]) for i in at]

    for axes, batched, loop in _batches(pair, run):
        port = Once(jax.vmap(lambda *xs: pair.port.arrays(xs), axes))
        got = port(*map(jnp.asarray, batched))
        labels = [f"{pair.expected.labels[i]} (in_axes={axes})" for i in at]
        expected = _own_vmap(pair, batched, axes, at, loop)
        outcome = pair.compare(got, expected, labels, "value", which=at)
        if not outcome.ok and pair.compare(got, loop, labels, "value", which=at).ok:
            raise Different(
                f"{outcome.where}\n  PyTorch's vmap rule differs from a loop of its "
                "forward; the port agrees with the loop"
            )
        found.append(outcome)
    return worst(found)


def _own_vmap(
    pair: Pair, batched: list[np.ndarray], axes: Axes, at: list[int], loop: list[Any]
) -> list[Any]:
    """Return what torch's vmap rule gives, or the loop if none runs."""
    if not pair.original.owns("vmap"):
        return loop
    try:
        leaves = pair.original.batched(batched, axes).leaves
    except OriginalError:
        return loop
    return [np.asarray(leaves[i]) for i in at]


def vmap_gradients(pair: Pair) -> Outcome:
    """Compare the gradient under vmap with a loop of torch."""
    chosen, found = needed(pair), []

    def run(arrays: list[np.ndarray]) -> list[Any]:
        return pair.torch_gradients(arrays, chosen, pair.cts)

    def pull(*arrays: Any) -> Any:
        return pair.port.pull(arrays, chosen, pair.cts)

    for axes, batched, loop in _batches(pair, run):
        gradients = Once(jax.vmap(pull, axes))(*map(jnp.asarray, batched))
        got = [np.asarray(g) for g in gradients]
        labels = names(pair, chosen, f" (in_axes={axes})")
        found.append(pair.compare(got, loop, labels, "gradient"))
    return worst(found)
