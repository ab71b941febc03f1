"""A function with a batch rule, differentiable in every mode, alone and batched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._base import Outputs, compat, errors, is_inexact
from jaxfn._engine import directions
from jaxfn._engine.closures import are_constants, beside, traced
from jaxfn._engine.directions import Derivative, only
from jaxfn._engine.linear import linear
from jaxfn._engine.rules import Arrays, Batch, Fun

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
        batch: its rule.
        name: for messages and in jaxprs.
    """

    def call(*arrays: Any) -> Outputs:
        if not any(compat.is_tracer(x) for x in arrays):
            return fun(*arrays)
        held, staged, static = traced(fun, arrays)
        if compat.is_staging() and any(map(compat.is_reference, held)):
            raise NotImplementedError(errors.REFERENCE.format(name=name))
        outs = _bind(
            *held,
            *arrays,
            staged=staged,
            batch=compat.Named(name, batch),
            fixed=are_constants(held),
        )
        return Outputs(outs, static)

    return call


def _impl(*args: Any, staged: compat.Staged, **_: Any) -> list[Any]:
    return staged(*args)


def _batch(axis: Any, args: Any, dims: Any, **params: Any) -> Any:
    """Do what the rule does, in the place of the operation."""
    if all(d is None for d in dims):
        outs = _bind(*args, **params)
        return outs, [None] * len(outs)

    def alone(*values: Any) -> Outputs:
        return Outputs(_bind(*values, **params), None)

    batched = [d is not None for d in dims]
    pairs = zip(args, dims, strict=True)
    values = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in pairs]
    batch = beside(params["fixed"], alone, params["batch"], params["batch"].name)
    outs, flags = batch(axis.size, batched, values)
    return outs.arrays, [0 if b else None for b in flags.arrays]


def _jvp(primals: Sequence[Any], dots: Sequence[Any], **params: Any) -> Any:
    """Give the outputs, and their tangents as a linear map of those of the inputs."""
    fixed, staged, rule = params["fixed"], params["staged"], params["batch"]
    n, ran = len(fixed), _Ran(rule)
    outs = _bind(*primals, **{**params, "batch": compat.Named(rule.name, ran.run)})
    if any(d is not None for d in dots[:n]):
        raise errors.ClosedOverError(errors.CLOSED_OVER.format(name=rule.name))
    still = staged.without_effects()
    if not still.is_repeatable_after(staged):
        raise NotImplementedError(errors.NOT_REPEATABLE.format(name=rule.name))

    # The transpose runs when this trace may be over. So what the function closes over
    # is among its arguments here, where it stays with what is saved for the transpose.
    def fun(*values: Any) -> Outputs:
        return Outputs(still(*values), None)

    batch = beside(fixed, fun, ran.again, rule.name)
    return outs, _tangents(fun, batch, n, rule.name)(list(primals), outs, list(dots))


# Of a batch y_i = B x_i the rule computes all y from all x, and is linear in them as
# well. So its transpose is the rule of the transpose.
def _transpose(cts: Sequence[Any], args: Sequence[Any], **params: Any) -> list[Any]:
    """Transpose it with respect to the arguments that are None."""
    n, staged, rule = len(params["fixed"]), params["staged"], params["batch"]
    if all(ct is None for ct in cts):
        return [None] * len(args)
    held, arrays = args[:n], list(args[n:])
    if any(x is None for x in held):
        raise errors.ClosedOverError(errors.CLOSED_OVER.format(name=rule.name))
    moving = [i for i, x in enumerate(arrays) if x is None]
    for i in moving:
        arrays[i] = compat.zeros(staged.in_avals[n + i])
    smooth = [jnp.issubdtype(a.dtype, jnp.inexact) for a in staged.out_avals]
    given = [
        compat.zeros(aval) if ct is None else ct
        for ct, aval in zip(
            only(cts, smooth), only(staged.out_avals, smooth), strict=True
        )
    ]

    def fun(*arrays: Any) -> Outputs:
        return Outputs(staged(*held, *arrays), None)

    derivative = Derivative(fun, rule, moving, smooth, len(arrays), 0)
    back = derivative.directed(
        directions.transposed, directions.each_its_own, of_value=False
    )
    pull = differentiable(*back, name=rule.name)
    found = iter(pull(*arrays, *given).arrays)
    in_cts = [next(found) if x is None else None for x in args[n:]]
    return [*[None] * n, *in_cts]


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
    transpose=_transpose,
    staged=lambda staged, **_: staged,
)


def _tangents(fun: Fun, batch: Batch, held: int, name: str) -> Callable[..., list[Any]]:
    """Return the rule for the tangents of `fun`; see `Derivative`."""

    # With J the Jacobian of `fun`: push is t -> J t, pull, its transpose, ct -> J^T ct.
    def tangents(inputs: Arrays, outs: Arrays, dots: Arrays) -> list[Any]:
        moving = [i for i, d in enumerate(dots) if d is not None]
        smooth = [is_inexact(o) for o in outs]
        avals = [compat.tangent_aval(o) for o in only(outs, smooth)]
        if not avals or not moving:
            return [None] * len(outs)
        derivative = Derivative(fun, batch, moving, smooth, len(inputs), held)
        forwards = derivative.directed(directions.push, directions.with_own_tangent)
        back = derivative.directed(directions.pull, directions.each_its_own)
        push = differentiable(*forwards, name=name)
        pull = differentiable(*back, name=name)

        def transposed(res: list[Any], cts: list[Any]) -> list[Any]:
            # `pull` is a function of arrays, so zeros are made.
            given = [
                compat.zeros(a) if ct is None else ct
                for a, ct in zip(avals, cts, strict=True)
            ]
            try:
                return pull(*res, *given).arrays
            except jax.errors.UnexpectedTracerError as error:
                # The batch rule closes over what is differentiated.
                raise errors.ClosedOverError(
                    errors.CLOSED_OVER.format(name=name)
                ) from error

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
