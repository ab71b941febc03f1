"""A user's batch rule into `jax.custom_batching.custom_vmap`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._base import Outputs, compat, is_inexact
from jaxfn._engine.attachment import attach, stop_gradient
from jaxfn._engine.linear import linear

Arrays = Sequence[Any]
Fun = Callable[..., Outputs]
Batch = Callable[[int, Sequence[bool], list[Any]], tuple[Outputs, Outputs]]
Own = Callable[[Outputs, Arrays, compat.Recording], list[Any]]
Direction = Callable[..., list[Any]]
Spread = Callable[[Sequence[bool], int, Sequence[int]], list[bool]]


def with_batch_rule(fun: Fun, batch: Batch | None, own: Own | None = None) -> Fun:
    """Return `fun(*arrays)` with `batch(size, batched, arrays) -> outs, outs batched`.

    Batch axes are first, and `batched` says which arrays have one. Where no argument is
    a tracer there is nothing to batch, and `fun` runs as it is: custom_vmap would trace
    it, and a NumPy body could not run.

    `own(outs, arrays, recording)` batches the outputs of an example wherever they must
    be, though the rule did not (`ownership`). It is asked after the rule has run, where
    it is known which vmap is at work; `recording` began before.
    """
    if batch is None:
        return fun

    # custom_vmap calls its rule with nothing batched when its own jvp is batched (it is
    # never differentiated here, but the check costs nothing).
    def rule(size: int, batched: Sequence[bool], *arrays: Any) -> Any:
        if not any(batched):
            outs = fun(*arrays)
            return outs, jax.tree.map(lambda _: False, outs)
        recording = compat.Recording()
        outs, flags = batch(size, batched, list(arrays))
        if own is None:
            return outs, flags
        return _owned(own, recording, size, batched, arrays, outs, flags)

    def call(*arrays: Any) -> Outputs:
        if not any(compat.is_tracer(x) for x in arrays):
            return fun(*arrays)
        f = jax.custom_batching.custom_vmap(fun)
        f.def_vmap(rule)
        return f(*arrays)

    return call


def _owned(
    own: Own,
    recording: compat.Recording,
    size: int,
    batched: Sequence[bool],
    arrays: Arrays,
    outs: Outputs,
    flags: Outputs,
) -> tuple[Outputs, Outputs]:
    """Return what a batch rule did, with `own` called for an example of it."""
    others = recording.active or any(map(compat.batch_axes, arrays))
    if all(flags.arrays) and not others:  # no other vmap is at work or can come
        return outs, flags
    differs: list[bool] = []

    def example(witness: Any, outs_: Arrays, arrays_: Arrays) -> list[Any]:
        found = own(Outputs(list(outs_), outs.static), arrays_, recording)
        (here,) = compat.batch_axes(witness)
        differs[:] = [here in compat.batch_axes(x) for x in found]
        return found

    # The witness is batched over this axis and no other.
    witness = jnp.zeros(size)
    axes = [[0 if b else None for b in bs] for bs in (flags.arrays, batched)]
    found = jax.vmap(example, (0, *axes))(witness, list(outs.arrays), list(arrays))
    owned = [x if d else x[0] for x, d in zip(found, differs, strict=True)]
    return Outputs(owned, outs.static), Outputs(differs, flags.static)


# ---- with a derivative

# JAX differentiates a custom_vmap call forwards, by the jvp of `fun` and, batched, of
# the rule; in reverse mode it fails ("Linearization failed"). So the call runs without
# derivative, and the derivative is attached as a linear map of its own, whose two
# directions are functions of this kind again:
#
#               alone             batched
#     value     fun               rule
#     push      jvp of fun        jvp of rule
#     pull      vjp of fun        vjp of rule


def differentiable(run: Fun, fun: Fun, batch: Batch, *, name: str) -> Fun:
    """Return `run`, with the derivative of `fun` and, batched, of `batch`.

    Args:
        run: `fun` with the rule `batch`; it is not differentiated.
        fun: a differentiable function.
        batch: its rule, differentiable too.
        name: for messages and in jaxprs.
    """

    # With J the Jacobian of `fun`: push is t -> J t, pull, its transpose, ct -> J^T ct.
    def tangents(inputs: Arrays, outs: Arrays, dots: Arrays) -> list[Any]:
        moving = [i for i, d in enumerate(dots) if d is not None]
        smooth = [is_inexact(o) for o in outs]
        avals = [compat.tangent_aval(o) for o in _only(outs, smooth)]
        if not avals:
            return [None] * len(outs)
        derivative = _Derivative(fun, batch, moving, smooth, len(inputs), name)
        push = derivative.directed(_push, _with_own_tangent)
        pull = derivative.directed(_pull, _each_its_own)

        def transposed(res: list[Any], cts: list[Any]) -> list[Any]:
            # `pull` is a function of arrays, so zeros are made.
            given = [
                compat.zeros(a) if ct is None else ct
                for a, ct in zip(avals, cts, strict=True)
            ]
            return pull(*res, *given).arrays

        found = linear(
            lambda res, ts: push(*res, *ts).arrays,
            transposed,
            inputs,
            [dots[i] for i in moving],
            avals,
            name=name,
        )
        rest = iter(found)
        return [next(rest) if s else None for s in smooth]

    def call(*arrays: Any) -> Outputs:
        outs = run(*stop_gradient(arrays))
        return Outputs(attach(tangents, arrays, outs.arrays, name=name), outs.static)

    return call


@dataclasses.dataclass(frozen=True, slots=True)
class _Derivative:
    """The derivative of `fun`, which has the batch rule `batch` and `n` arguments.

    It is taken in the arguments at `moving` and the outputs that are `smooth`.
    """

    fun: Fun
    batch: Batch
    moving: Sequence[int]
    smooth: Sequence[bool]
    n: int
    name: str

    def directed(self, direction: Direction, spread: Spread) -> Fun:
        """Make one of its directions: from arguments and (co)tangents to (co)tangents.

        Args:
            direction: of a function that returns the smooth outputs.
            spread: which values to batch, given which are batched.
        """
        n, moving = self.n, self.moving

        def value(at: Arrays) -> list[Any]:
            return _only(self.fun(*at).arrays, self.smooth)

        def alone(*values: Any) -> Outputs:
            return Outputs(direction(value, moving, values[:n], values[n:]), None)

        def rule(size: int, batched: Sequence[bool], values: list[Any]) -> Any:
            now = spread(batched, n, moving)
            pairs = zip(values, batched, now, strict=True)
            values = [_repeat(x, size) if b and not was else x for x, was, b in pairs]

            # Even where the user's rule says that all examples share an output, each
            # has a tangent or cotangent of its own.
            def value(at: Arrays) -> list[Any]:
                outs, flags = self.batch(size, now[:n], list(at))
                pairs = zip(outs.arrays, flags.arrays, strict=True)
                return _only(
                    [x if b else _repeat(x, size) for x, b in pairs], self.smooth
                )

            found = direction(value, moving, values[:n], values[n:])
            return Outputs(found, None), Outputs([True] * len(found), None)

        run = with_batch_rule(alone, rule)
        return differentiable(run, alone, rule, name=self.name)


def _push(
    value: Callable[[Arrays], list[Any]], moving: Sequence[int], at: Arrays, ts: Arrays
) -> list[Any]:
    """Compute J t, for the Jacobian J of `value` in the arguments `moving`."""
    along = _in(value, moving, at)
    return jax.jvp(along, tuple(at[i] for i in moving), tuple(ts))[1]


def _pull(
    value: Callable[[Arrays], list[Any]], moving: Sequence[int], at: Arrays, cts: Arrays
) -> list[Any]:
    """Compute J^T ct, for the Jacobian J of `value` in the arguments `moving`."""
    along = _in(value, moving, at)
    return list(jax.vjp(along, *[at[i] for i in moving])[1](list(cts)))


def _in(
    value: Callable[[Arrays], list[Any]], moving: Sequence[int], at: Arrays
) -> Callable[..., list[Any]]:
    """Return `value` as a function of the arguments `moving` alone."""

    def along(*values: Any) -> list[Any]:
        full = list(at)
        for i, x in zip(moving, values, strict=True):
            full[i] = x
        return value(full)

    return along


def _with_own_tangent(
    batched: Sequence[bool], n: int, moving: Sequence[int]
) -> list[bool]:
    """Say to batch an argument where its tangent is batched, and the other way round.

    `jax.jvp` of the batch rule wants a tangent that has the shape of its argument.
    """
    now = list(batched)
    for k, i in enumerate(moving):
        now[i] = now[n + k] = batched[i] or batched[n + k]
    return now


def _each_its_own(batched: Sequence[bool], n: int, moving: Sequence[int]) -> list[bool]:
    """Say to batch all cotangents, and all arguments that get one.

    Of any other, `jax.vjp` of the batch rule would give the sum over the examples.
    """
    return [b or i >= n or i in moving for i, b in enumerate(batched)]


def _only(values: Arrays, places: Sequence[bool]) -> list[Any]:
    return [x for x, place in zip(values, places, strict=True) if place]


def _repeat(x: Any, size: int) -> Any:
    return jnp.broadcast_to(x, (size, *x.shape))
