"""A function with a batch rule, differentiable in every mode, alone and batched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._base import Outputs, compat, errors, is_inexact
from jaxfn._engine.batching import Batch, Fun
from jaxfn._engine.linear import linear
from jaxfn._engine.rules import Arrays

Direction = Callable[..., list[Any]]
Spread = Callable[[Sequence[bool], int, Sequence[int]], list[bool]]

# JAX differentiates a custom_vmap call forwards, by the jvp of `fun` and, batched, of
# the rule; in reverse mode it fails ("Linearization failed"). So the call is an
# operation of our own, whose derivative is a linear map with two directions, which are
# functions of this kind again:
#
#               alone             batched
#     value     fun               rule
#     push      jvp of fun        jvp of rule
#     pull      vjp of fun        vjp of rule
#
# A vmap puts what the rule does in the place of the operation, so from there on the
# derivative is that of what ran, as for a custom_vmap.


def differentiable(fun: Fun, batch: Batch, *, name: str) -> Fun:
    """Return `fun(*arrays)`, a differentiable function, with a batch rule like it.

    Args:
        fun: the function.
        batch: its rule, as that of `with_batch_rule`.
        name: for messages and in jaxprs.
    """

    def call(*arrays: Any) -> Outputs:
        if not any(compat.is_tracer(x) for x in arrays):
            return fun(*arrays)
        static: list[Any] = []

        def flat(*arrays: Any) -> list[Any]:
            outs = fun(*arrays)
            static[:] = [outs.static]
            return outs.arrays

        held, staged = compat.Staged.trace(flat, (), *arrays)
        if compat.is_staging() and any(map(compat.is_reference, held)):
            raise NotImplementedError(errors.REFERENCE.format(name=name))
        outs = _bind(
            *held,
            *arrays,
            staged=staged,
            rule=compat.Named(name, batch),
            n_held=len(held),
        )
        return Outputs(outs, static[0])

    return call


def _impl(*args: Any, staged: compat.Staged, **_: Any) -> list[Any]:
    return staged(*args)


def _batch(axis: Any, args: Any, dims: Any, **params: Any) -> Any:
    """Do what the rule does, in the place of the operation."""
    n, rule = params["n_held"], params["rule"]
    if all(d is None for d in dims):
        outs = _bind(*args, **params)
        return outs, [None] * len(outs)
    # The rule says nothing of what the function closes over.
    if any(d is not None for d in dims[:n]):
        raise errors.ClosedOverError(errors.BATCHED_CLOSURE.format(name=rule.name))
    batched = [d is not None for d in dims[n:]]
    pairs = zip(args[n:], dims[n:], strict=True)
    arrays = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in pairs]
    outs, flags = rule(axis.size, batched, arrays)
    return outs.arrays, [0 if b else None for b in flags.arrays]


def _jvp(primals: Sequence[Any], dots: Sequence[Any], **params: Any) -> Any:
    """Give the outputs, and their tangents as a linear map of those of the inputs."""
    n, staged, rule = params["n_held"], params["staged"], params["rule"]
    ran = _Ran(rule)
    outs = _bind(*primals, **{**params, "rule": compat.Named(rule.name, ran.run)})
    if any(d is not None for d in dots[:n]):
        raise errors.ClosedOverError(errors.CLOSED_OVER.format(name=rule.name))
    held, still = primals[:n], staged.without_effects()
    if not still.is_repeatable_after(staged):
        raise NotImplementedError(errors.NOT_REPEATABLE.format(name=rule.name))

    def fun(*arrays: Any) -> Outputs:
        return Outputs(still(*held, *arrays), None)

    tangents = _tangents(fun, ran.again, rule.name)
    return outs, tangents(list(primals[n:]), outs, list(dots[n:]))


class _Ran:
    """The batch rule of a value and of its derivative, which is that of what ran.

    The two are batched one after the other, in the same contexts. But a rule that draws
    random numbers, say, is to run once for both.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._last: tuple[Any, Callable[..., tuple[Outputs, Outputs]]] | None = None

    def run(
        self, size: int, batched: Sequence[bool], arrays: list[Any]
    ) -> tuple[Outputs, Outputs]:
        """Run the rule, for the value."""
        found: list[tuple[Outputs, Outputs]] = []

        def flat(*arrays: Any) -> list[Any]:
            outs, flags = self._batch(size, batched, list(arrays))
            found[:] = [(outs, flags)]
            return outs.arrays

        try:
            held, ran = compat.Staged.trace(flat, (), *arrays)
        except Exception:  # noqa: BLE001  (a rule that needs values may raise anything)
            self._last = None
            return self._batch(size, batched, arrays)
        ((outs, flags),), still = found, ran.without_effects()
        static = outs.static
        # Not with a tracer that the rule closes over: it would outlive its trace here.
        if any(map(compat.is_tracer, held)):
            self._last = None
        else:
            self._last = (
                _key(size, batched, arrays),
                lambda arrays: (Outputs(still(*held, *arrays), static), flags),
            )
        return Outputs(ran(*held, *arrays), static), flags

    def again(
        self, size: int, batched: Sequence[bool], arrays: list[Any]
    ) -> tuple[Outputs, Outputs]:
        """Run, for the derivative, what ran for the value; the rule if that differs."""
        if self._last is not None and self._last[0] == _key(size, batched, arrays):
            return self._last[1](arrays)
        return self._batch(size, batched, arrays)


def _key(size: int, batched: Sequence[bool], arrays: list[Any]) -> Any:
    return (size, *batched, *map(jax.typeof, arrays))


_bind = compat.define_primitive(
    "batched",
    impl=_impl,
    abstract_eval=lambda *_, staged, **__: staged.out_avals,
    jvp=_jvp,
    batch=_batch,
    staged=lambda staged, **_: staged,
)


def _tangents(fun: Fun, batch: Batch, name: str) -> Callable[..., list[Any]]:
    """Return the rule for the tangents of `fun`, which has the batch rule `batch`."""

    # With J the Jacobian of `fun`: push is t -> J t, pull, its transpose, ct -> J^T ct.
    def tangents(inputs: Arrays, outs: Arrays, dots: Arrays) -> list[Any]:
        moving = [i for i, d in enumerate(dots) if d is not None]
        smooth = [is_inexact(o) for o in outs]
        avals = [compat.tangent_aval(o) for o in _only(outs, smooth)]
        if not avals or not moving:
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

    return tangents


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

        return differentiable(alone, rule, name=self.name)


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
