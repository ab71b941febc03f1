"""The directions of a derivative of a function that has a batch rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._base import Outputs, compat, errors
from jaxfn._engine import linearity
from jaxfn._engine.rules import Arrays, Batch, Fun

Value = Callable[[Arrays], list[Any]]
Direction = Callable[[Value, Sequence[int], Arrays, Arrays], list[Any]]
Spread = Callable[[Sequence[bool], int, Sequence[int]], list[bool]]


@dataclasses.dataclass(frozen=True, slots=True)
class Derivative:
    """The derivative of `fun`, which has the batch rule `batch` and `n` arguments.

    It is taken in the arguments at `moving` and the outputs that are `smooth`. The
    first `held` arguments are what a function has closed over: the rule is not told.
    """

    fun: Fun
    batch: Batch
    moving: Sequence[int]
    smooth: Sequence[bool]
    n: int
    held: int

    def directed(
        self, direction: Direction, spread: Spread, *, of_value: bool = True
    ) -> tuple[Fun, Batch]:
        """Make one of its directions: from arguments and (co)tangents to (co)tangents.

        Args:
            direction: of a function that returns the smooth outputs.
            spread: which values to batch, given which are batched.
            of_value: is it the derivative at a value, which the function has computed
                and not the rule, where no argument is batched?
        """
        n, moving = self.n, self.moving

        def value(at: Arrays) -> list[Any]:
            return only(self.fun(*at).arrays, self.smooth)

        def alone(*values: Any) -> Outputs:
            return Outputs(direction(value, moving, values[:n], values[n:]), None)

        def rule(size: int, batched: Sequence[bool], values: list[Any]) -> Any:
            if of_value and not any(batched[self.held : n]):
                axes = [0 if b else None for b in batched]
                found = jax.vmap(lambda *values: alone(*values).arrays, axes)(*values)
                return Outputs(found, None), Outputs([True] * len(found), None)
            now = spread(batched, n, moving)
            pairs = zip(values, batched, now, strict=True)
            values = [_repeat(x, size) if b and not was else x for x, was, b in pairs]

            # Even where the user's rule says that all examples share an output, each
            # has a tangent or cotangent of its own.
            def value(at: Arrays) -> list[Any]:
                outs, flags = self.batch(size, now[:n], list(at))
                pairs = zip(outs.arrays, flags.arrays, strict=True)
                return only(
                    [x if b else _repeat(x, size) for x, b in pairs], self.smooth
                )

            found = direction(value, moving, values[:n], values[n:])
            return Outputs(found, None), Outputs([True] * len(found), None)

        return alone, rule


def push(value: Value, moving: Sequence[int], at: Arrays, ts: Arrays) -> list[Any]:
    """Compute J t, for the Jacobian J of `value` in the arguments `moving`."""
    along = _in(value, moving, at)
    return jax.jvp(along, tuple(at[i] for i in moving), tuple(ts))[1]


def pull(value: Value, moving: Sequence[int], at: Arrays, cts: Arrays) -> list[Any]:
    """Compute J^T ct, for the Jacobian J of `value` in the arguments `moving`."""
    along = _in(value, moving, at)
    return list(jax.vjp(along, *[at[i] for i in moving])[1](list(cts)))


def transposed(
    value: Value, moving: Sequence[int], at: Arrays, cts: Arrays
) -> list[Any]:
    """Compute B^T ct, for a `value` that is B x in the arguments `moving`.

    Raises:
        RuleValueError: it is not.
    """
    given = [at[i] for i in moving]
    jaxpr = jax.make_jaxpr(_in(value, moving, at))(*given)

    def along(*arrays: Any) -> list[Any]:
        return compat.evaluate(jaxpr, arrays)

    for _, why in linearity.nonzero_outputs(jaxpr):
        raise errors.RuleValueError(errors.NOT_LINEAR_BATCH.format(why=why))
    try:
        return list(jax.linear_transpose(along, *given)(list(cts)))
    except Exception as error:
        why = f"what JAX can't transpose ({error})"
        raise errors.RuleValueError(errors.NOT_LINEAR_BATCH.format(why=why)) from error


def _in(value: Value, moving: Sequence[int], at: Arrays) -> Callable[..., list[Any]]:
    """Return `value` as a function of the arguments `moving` alone."""

    def along(*values: Any) -> list[Any]:
        full = list(at)
        for i, x in zip(moving, values, strict=True):
            full[i] = x
        return value(full)

    return along


def with_own_tangent(
    batched: Sequence[bool], n: int, moving: Sequence[int]
) -> list[bool]:
    """Say to batch an argument where its tangent is batched, and the other way round.

    `jax.jvp` of the batch rule wants a tangent that has the shape of its argument.
    """
    now = list(batched)
    for k, i in enumerate(moving):
        now[i] = now[n + k] = batched[i] or batched[n + k]
    return now


def each_its_own(batched: Sequence[bool], n: int, moving: Sequence[int]) -> list[bool]:
    """Say to batch all cotangents, and all arguments that get one.

    Of any other, `jax.vjp` of the batch rule would give the sum over the examples.
    """
    return [b or i >= n or i in moving for i, b in enumerate(batched)]


def only(values: Arrays, places: Sequence[bool]) -> list[Any]:
    return [x for x, place in zip(values, places, strict=True) if place]


def _repeat(x: Any, size: int) -> Any:
    return jnp.broadcast_to(x, (size, *x.shape))
