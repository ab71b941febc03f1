"""What is compared: outputs, gradients, second derivatives and tangents, in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tests.parity.catalogue.case import Case

Arrays = list[Any]


def outputs(f: Callable[..., Any], xs: Sequence[Any]) -> Arrays:
    """The arrays among the outputs."""
    return [x for x in jax.tree.leaves(f(*xs)) if isinstance(x, jax.Array)]


def is_smooth(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def gradients(f: Callable[..., Any], xs: Sequence[Any], cts: Arrays) -> Arrays:
    """The gradients of the float inputs for these cotangents, in torch's convention."""
    diff = [x for x in xs if is_smooth(x)]
    _, pull = jax.vjp(lambda *d: _smooth_outputs(f, xs, d), *diff)
    return [jnp.conj(g) for g in pull([jnp.conj(ct) for ct in cts])]


def second(
    f: Callable[..., Any], xs: Sequence[Any], cts: Arrays, weights: Arrays
) -> Arrays:
    """The derivatives of the weighted gradients, for the inputs and the cotangents."""

    def total(diff: Arrays, cts: Arrays) -> Any:
        grads = gradients(f, _merge(xs, diff), cts)
        pairs = zip(weights, grads, strict=True)
        return sum(jnp.real(jnp.conj(w) * g).sum() for w, g in pairs)

    diff = [x for x in xs if is_smooth(x)]
    by_diff, by_cts = jax.grad(total, (0, 1))(diff, list(cts))
    return [jnp.conj(g) for g in (*by_diff, *by_cts)]


def tangents(f: Callable[..., Any], xs: Sequence[Any], dots: Arrays) -> Arrays:
    """The tangents of the float outputs."""
    diff = [x for x in xs if is_smooth(x)]
    return jax.jvp(lambda *d: _smooth_outputs(f, xs, d), diff, list(dots))[1]


def cotangents(case: Case, outs: Arrays) -> Arrays:
    return case.like([o for o in outs if is_smooth(o)], "cotangents")


def measure(
    case: Case, f: Callable[..., Any], dtype: str, *, eager: bool
) -> dict[str, Arrays]:
    """All quantities of one case that `record` has, of `f` in place of its function.

    Second derivatives and tangents are always compiled, as one program: op by op they
    take seconds, and what differs between the two is tested elsewhere.
    """
    program = (lambda g: g) if case.concrete else jax.jit
    first = (lambda g: g) if eager else program
    xs = [jnp.asarray(x) for x in case.arrays(dtype)]
    diff = [x for x in xs if is_smooth(x)]
    outs = first(lambda *xs: outputs(f, xs))(*xs)
    cts = [jnp.asarray(ct) for ct in cotangents(case, outs)]
    found = {"outputs": outs}
    found["gradients"] = first(lambda xs, cts: gradients(f, xs, cts))(xs, cts)
    if case.second or case.exact:
        weights = [jnp.asarray(w) for w in case.like(diff, "weights")]
        run = program(lambda xs, cts, weights: second(f, xs, cts, weights))
        found["second"] = run(xs, cts, weights)
    if case.forward:
        dots = [jnp.asarray(t) for t in case.like(diff, "tangents")]
        found["tangents"] = program(lambda xs, t: tangents(f, xs, t))(xs, dots)
    return found


def _merge(xs: Sequence[Any], diff: Sequence[Any]) -> Arrays:
    rest = iter(diff)
    return [next(rest) if is_smooth(x) else x for x in xs]


def _smooth_outputs(f: Callable[..., Any], xs: Sequence[Any], diff: Any) -> Arrays:
    return [o for o in outputs(f, _merge(xs, diff)) if is_smooth(o)]
