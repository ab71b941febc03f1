"""Rows about first derivatives, in reverse mode."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxfn._check import Outcome, Skip, is_near, worst
from jaxfn.torch._compare.hints import counts
from jaxfn.torch._compare.pair import Different, Pair, expect_numbers
from jaxfn.torch._compare.values import POINTS, lost, needed, points

CONJUGATE = "PyTorch's convention: the conjugate of JAX's"


def gradient(i: int, pair: Pair) -> Outcome:
    """Compare the gradient by array `i`, for cotangents of all outputs."""
    needed(pair)
    if i in pair.why_not:
        raise Skip(f"PyTorch itself raises: {pair.why_not[i]}")
    k = pair.chosen.index(i)
    got, expected = pair.got_gradients, pair.expected_gradients
    expect_numbers(got, expected)
    labels = names(pair, pair.chosen)
    outcome = pair.compare_one(k, got, expected, labels, "gradient")
    if not outcome.ok and np.isfinite(got[k]).all() and got[k].size:
        found = _cotangents(pair, k, got[k])
        where = "; ".join(filter(None, [outcome.where, found]))
        outcome = dataclasses.replace(outcome, where=where)
    if outcome.ok and np.iscomplexobj(expected[k]):
        outcome = dataclasses.replace(outcome, note=CONJUGATE)
    return outcome


def names(pair: Pair, chosen: Sequence[int], where: str = "") -> list[str]:
    """Return the labels of the gradients."""
    return [f"gradient of {pair.arguments.label(i)}{where}" for i in chosen]


def _cotangents(pair: Pair, k: int, got: np.ndarray) -> str:
    """Return how cotangents are misused, if that explains gradient `k`."""

    def gradient_for(cts: Sequence[Any]) -> np.ndarray:
        return pair.original.pull(pair.arrays, pair.chosen, cts)[k]

    if np.iscomplexobj(got):
        other = gradient_for([ct.conj() for ct in pair.cts]).conj()
        if is_near(got, other):
            return "a conjugate is missing: it is the gradient in JAX's convention"
    labels = [pair.expected.labels[i] for i in pair.expected.inexact]
    n = len(pair.cts)
    for i, j in itertools.combinations(range(n), 2):
        cts = list(pair.cts)
        cts[i], cts[j] = cts[j], cts[i]
        same = cts[i].shape == cts[j].shape and cts[i].dtype == cts[j].dtype
        if same and is_near(got, gradient_for(cts)):
            return f"the cotangents of {labels[i]} and {labels[j]} are swapped"
    if n < 2:
        return ""
    alone = [[x if i == j else None for i, x in enumerate(pair.cts)] for j in range(n)]
    parts = list(map(gradient_for, alone))
    found = counts(got, parts)
    if found is None or len(set(found)) == 1:
        return ""
    return ", ".join(
        f"the cotangent of {label} counts {_number(c)} times"
        for label, c in zip(labels, found, strict=True)
        if c != 1
    )


def _number(x: complex) -> str:
    return f"{x:.4g}" if x.imag else f"{x.real + 0.0:.4g}"


def gradients_given(pair: Pair) -> Outcome:
    """Compare them in the precision of the arguments."""
    chosen = needed(pair)
    assert pair.exact is not None
    expected, got = pair.expected_gradients, pair.got_gradients
    labels = names(pair, chosen)
    exact = expected
    if pair.exact.chosen == chosen:
        with pair.exact.context():
            exact = pair.exact.expected_gradients
    slack = lost(list(zip(expected, exact, strict=True)))
    wrong = [
        f"{label}: expected dtype {e.dtype}, got {g.dtype}"
        for g, e, label in zip(got, expected, labels, strict=True)
        if g.dtype != e.dtype
    ]
    if wrong:
        raise Different("\n  ".join(wrong))
    return pair.compare(got, expected, labels, "gradient", slack=slack)


def gradients_elsewhere(pair: Pair) -> Outcome:
    """Compare them at other points."""
    chosen, found = needed(pair), []

    def run(point: list[np.ndarray]) -> Any:
        return pair.original.pull(point, chosen, pair.cts)

    labels = names(pair, chosen, " at another point")
    for point in points(pair, POINTS, run):
        got = pair.port.pull(point, chosen, pair.cts)
        found.append(pair.compare(got, run(point), labels, "gradient"))
    return worst(found)
