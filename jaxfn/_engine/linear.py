"""The transposable linear primitive: a linear map given with its transpose.

A Function with a backward, ct -> J^T ct, has a tangent map t -> J t: its jvp, or the
transpose of backward. JAX's `linear_call` binds the two together, but JAX can neither
batch nor differentiate it. So jaxfn has this primitive: evaluated, batched or lowered
it is `evaluate`; transposed it is `transpose`.

    outs = linear(evaluate, transpose, residuals, tangents, out_avals, name=...)

The calling convention of the equation  `*outs = linear[...] *values *tangents`:

    values      The first `n` operands: the residuals, and after them all other values
                that `evaluate` closes over. They have a derivative, but no transpose.
    tangents    The other operands, one for each differentiated argument. The map is
                linear in them together.
    outs        One for each differentiable output, of the types `out_avals`. These come
                from the real outputs, which keeps sharding and varying mesh axes.
    jaxpr       A closed jaxpr without constants, (*values, *tangents) -> outs. JAX's
                tools that walk jaxprs find it under this name. If `evaluate` can't be
                traced, a `compat.Failed` takes its place.
    transpose   transpose(values, cts) -> cts of the tangents. A ct is None for zero, in
                both directions. It is a Python callable, like the bwd of a custom_vjp:
                it runs when JAX transposes.

The invariant: neither the jaxpr nor `transpose` holds an array or a tracer. `values`
hold all that they need of the call, and change when JAX batches or differentiates the
equation.

`evaluate` runs at once, inside the caller's contexts, like the rule of a custom_jvp. If
any value is traced, `evaluate` is traced too, with its effects: later stages run no
Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn._base import compat, errors
from jaxfn._engine.attachment import shared
from jaxfn._engine.rules import jvp_along

Evaluate = Callable[[list[Any], list[Any]], Sequence[Any]]
Transpose = Callable[[list[Any], list[Any]], Sequence[Any]]


def linear(
    evaluate: Evaluate,
    transpose: Transpose,
    residuals: Sequence[Any],
    tangents: Sequence[Any],
    out_avals: Sequence[Any],
    *,
    name: str,
) -> list[Any]:
    """Bind the primitive. All values are arrays; see the module's docstring.

    Args:
        evaluate: The map.
        transpose: Its transpose.
        residuals: Residuals of both maps.
        tangents: Tangents to map.
        out_avals: Types of the outs.
        name: Name of the Function, for messages and in jaxprs.
    """
    # If nothing is traced, JAX can't transpose, batch or compile the map. The rule runs
    # on values, and may use NumPy.
    if not any(map(compat.is_tracer, (*residuals, *tangents))):
        return list(evaluate(list(residuals), list(tangents)))
    n_res = len(residuals)

    def run(*tangents: Any) -> list[Any]:
        return list(evaluate(list(residuals), list(tangents)))

    try:
        values, staged = compat.Staged.trace(run, residuals, *tangents)
        if any(map(compat.is_reference, values)):
            raise NotImplementedError(errors.REFERENCE.format(name=name))
    except Exception as error:  # noqa: BLE001  (whatever the user's rule raises)
        # Reverse mode evaluates nothing. So a jvp that can't be traced (one in NumPy)
        # does no harm there.
        values, staged = residuals, compat.Failed(error)
    return _bind(
        *values,
        *tangents,
        jaxpr=staged.parameter,
        transpose=compat.Named(
            name, lambda values, cts: transpose(values[:n_res], cts)
        ),
        n=len(values),
        out_avals=tuple(out_avals),
    )


def _impl(*args: Any, jaxpr: Any, **_: Any) -> list[Any]:
    """Evaluate: y = E(r) t, for values r and tangents t."""
    return compat.Staged.of(jaxpr)(*args)


def _abstract_eval(*_: Any, out_avals: Sequence[Any], **__: Any) -> Sequence[Any]:
    return out_avals


# y = E(r) t is linear in t, so  dy = E(r) dt + (dE(r) dr) t.
# The first term is this primitive again. The second differentiates the operations of
# the jvp rule by the residuals, which makes second derivatives right.
def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    staged, n = compat.Staged.of(params["jaxpr"]), params["n"]
    values, ts = list(primals[:n]), list(primals[n:])
    outs = _bind(*primals, **params)
    # The effects of the rule happen with the outs. They must not happen again.
    staged = staged.repeated()
    if staged is None:
        name = params["transpose"].name
        raise NotImplementedError(errors.NOT_REPEATABLE.format(name=name))
    terms: list[Sequence[Any]] = []
    if any(t is not None for t in tangents[n:]):
        # E(r) dt: the primitive takes a value for each tangent, so zeros are made.
        filled = [
            compat.zeros(compat.tangent_aval(t)) if d is None else d
            for t, d in zip(ts, tangents[n:], strict=True)
        ]
        terms.append(_bind(*values, *filled, **{**params, "jaxpr": staged.parameter}))
    if any(d is not None for d in tangents[:n]):
        # (dE(r) dr) t, along the values that have a tangent.
        found = jvp_along(
            lambda *values: staged(*values, *ts),
            values,
            tangents[:n],
            [True] * len(outs),
        )
        terms.append(found)
    return outs, [sum(parts[1:], parts[0]) for parts in zip(*terms, strict=True)]


# `transpose` computes the transpose of t -> E(r) t from r and the cts. With respect to
# r there is no transpose, because y is not linear in r.
def _transpose(cts: list[Any], args: Sequence[Any], **params: Any) -> list[Any]:
    n = params["n"]
    # A linear map takes zero to zero, so the user's rule need not run.
    if all(ct is None for ct in cts):
        return [None] * len(args)
    if any(x is None for x in args[:n]):
        raise NotImplementedError(
            f"`{params['transpose'].name}` was transposed with respect to its "
            "residuals, but its rules define only the transpose with respect to "
            "tangents. Use jax.vjp."
        )
    return [None] * n + list(params["transpose"](list(args[:n]), cts))


# For a batch y_i = E(r_i) t_i, both directions are one example's under vmap. A separate
# operation first repeats unbatched tangents. Its transpose is the sum over the batch,
# so `transpose` needs no case for it.
def _batch(axis: Any, args: Any, dims: Any, **params: Any) -> Any:
    n, transpose = params["n"], params["transpose"]
    staged = compat.Staged.of(params["jaxpr"])
    if all(d is None for d in dims):
        outs = _within(axis, args, **params)
        if outs is not None:
            return outs, [None] * len(outs)
    value_dims = list(dims[:n])
    tangents = [axis.to_front(t, d) for t, d in zip(args[n:], dims[n:], strict=True)]
    outs = linear(
        axis.vmap(lambda values, ts: staged(*values, *ts), (value_dims, 0)),
        axis.vmap(transpose, (value_dims, 0)),
        args[:n],
        tangents,
        [axis.batched_aval(aval, tangents) for aval in params["out_avals"]],
        name=transpose.name,
    )
    return outs, [0] * len(outs)


def _within(axis: Any, args: Any, **params: Any) -> list[Any] | None:
    """Bind the primitive for unbatched arguments, inside a named axis.

    Both directions may use the axis, for example in a collective. Returns None if an
    out differs among the examples.
    """
    n, transpose = params["n"], params["transpose"]
    staged = compat.Staged.of(params["jaxpr"])

    pull = shared(axis, transpose, transpose.name)
    if not staged.uses_axis(axis.name):
        named = compat.Named(transpose.name, pull)
        return _bind(*args, **{**params, "transpose": named})
    differs: list[bool] = []

    def push(values: list[Any], ts: list[Any]) -> list[Any]:
        outs, differs[:] = axis.around(staged, *values, *ts)
        return [out[0] for out in outs]

    jax.eval_shape(push, list(args[:n]), list(args[n:]))
    if any(differs):
        return None
    avals = params["out_avals"]
    return linear(push, pull, args[:n], args[n:], avals, name=transpose.name)


_bind = compat.define_primitive(
    "linear",
    impl=_impl,
    abstract_eval=_abstract_eval,
    jvp=_jvp,
    batch=_batch,
    transpose=_transpose,
    evaluates=True,
)
