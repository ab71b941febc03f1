"""Three primitives that say which derivative a value has.

`gate` keeps derivatives out, `attach` gives one, and `linear` has two directions. Each
stands below as its evaluation, derivative, batch rule and transpose, and ends with
`define_primitive`. None is a zero tangent or cotangent throughout.

The invariant of all three: parameters hold no array of the call and no tracer, because
they outlive the trace. Operands hold all that a rule needs of the call, and change when
JAX batches or differentiates the equation. Rules are Python callables, like those of a
custom_vjp: they run when JAX differentiates or transposes. The evaluation of `linear`
is a jaxpr.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._core import jax_internals as internals
from jaxfn._core import messages
from jaxfn._core.values import Arrays, is_inexact, spread

TangentRule = Callable[[list[Any], list[Any], list[Any]], Arrays]
"""`rule(inputs, outs, tangents of the inputs) -> tangents of the outs`."""

Linear = Callable[[list[Any], list[Any]], Arrays]
"""`map(residuals, tangents) -> tangents`, or the same for cotangents."""


class Named:
    """A function as a parameter of an equation, which a jaxpr shows by name."""

    def __init__(self, name: str, fun: Callable[..., Any]) -> None:
        self.name, self.fun = name, fun

    def __call__(self, *args: Any) -> Any:
        return self.fun(*args)

    def __repr__(self) -> str:
        return self.name


# ---- gate: y = x, dy = 0. Unlike jax.lax.stop_gradient, it can be transposed.


def gate(x: Any) -> Any:
    """Return `x` without derivative; an array that is no tracer as it is."""
    return internals.as_array(_bind_gate(x)[0]) if internals.is_tracer(x) else x


_bind_gate = internals.define_primitive(
    "gate",
    impl=lambda x: [x],
    jvp=lambda primals, _: (_bind_gate(*primals), [None]),
    batch=lambda _, args, dims: (_bind_gate(*args), dims),
    transpose=lambda cts, _: cts,
)


# ---- attach: outs = values, with the derivative by `inputs` that a rule gives.
#
# The equation is  `*outs = attach[...] *inputs *closed *values`:
#
#   inputs   The first `n_in` operands, which the rule gets with their tangents.
#   closed   The next `n_closed`: traced values that forward closed over, if the values
#            have the derivative of the operations that ran; else `n_closed` is None. A
#            derivative by one of them raises, because the rule doesn't give it.
#   values   The last operands. If `n_closed` is None, they were computed from inputs
#            without derivative. So a tangent of one shows that forward closed over it.
#   tangent_rule    It gets the outs, not the values: derivatives of any order use it.
#   spreads  For each value, whether a vmap gives each example a value of its own.


def attach(
    rule: TangentRule,
    inputs: Arrays,
    values: Arrays,
    *,
    name: str,
    closed: Arrays | None = None,
    spreads: Sequence[bool] = (),
) -> list[Any]:
    """Return the values, with the derivative by `inputs` that `rule` gives.

    An output of a vmap is batched if JAX computes it from a batched value. Otherwise
    all examples share it, and JAX sums their cotangents g_i before it calls the rule.
    For a forward that returns x, a backward that gives `g * scale`, and a batched
    `scale`, the rule would give scale_i * sum(g), although scale_i * g_i is right. With
    `spreads`, each example has an output of its own.
    """
    # If nothing is traced, JAX can't differentiate the values.
    if not any(map(internals.is_tracer, (*inputs, *values))):
        return list(values)
    return _bind_attach(
        *inputs,
        *(closed or ()),
        *values,
        tangent_rule=_TracedOnce(name, rule),
        n_in=len(inputs),
        n_closed=None if closed is None else len(closed),
        spreads=tuple(spreads) or (False,) * len(values),
    )


def _attach_impl(*args: Any, spreads: Sequence[bool], **_: Any) -> list[Any]:
    return list(args[len(args) - len(spreads) :])


def _attach_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    rule, n_in, n_closed = params["tangent_rule"], params["n_in"], params["n_closed"]
    lost = tangents[n_in:] if n_closed is None else tangents[n_in : n_in + n_closed]
    if any(t is not None for t in lost):
        raise messages.closed_over(rule.name)
    outs = _bind_attach(*primals, **{**params, "tangent_rule": rule.again()})
    if all(t is None for t in tangents[:n_in]):
        return outs, [None] * len(outs)
    return outs, rule.along(primals[:n_in], outs, tangents[:n_in])


def _attach_batch(
    axis: internals.BatchAxis, args: Any, dims: Any, **params: Any
) -> Any:
    rule, n_in, spreads = params["tangent_rule"], params["n_in"], params["spreads"]
    if all(d is None for d in dims):  # inside a vmap whose axis a rule may use
        outs = _attach_by(args, params, _shared(axis, rule))
        return outs, [None] * len(outs)
    n = len(args) - len(spreads)
    values, in_dims, out_dims = args[n:], dims[:n_in], dims[n:]
    # As in a plain call, `tied`, the batch axis comes first.
    for i, (dim, spreads_here) in enumerate(zip(out_dims, spreads, strict=True)):
        if spreads_here or dim is not None:
            values[i], out_dims[i] = axis.to_front(values[i], dim), 0

    # A tangent has the shape of its value, and the batch axis in the same place.
    def of_batch(inputs: Any, outs: Any, tangents: Any) -> list[Any]:
        found = axis.vmap(rule.fun, (in_dims, out_dims, in_dims))(
            inputs, outs, tangents
        )
        return [
            t if t is None or dim == 0 else t[0]
            for t, dim in zip(found, out_dims, strict=True)
        ]

    return _attach_by([*args[:n], *values], params, of_batch), out_dims


def _attach_by(args: Arrays, params: dict[str, Any], rule: TangentRule) -> list[Any]:
    """Bind the same equation again, with another rule."""
    return _bind_attach(
        *args,
        **{**params, "tangent_rule": _TracedOnce(params["tangent_rule"].name, rule)},
    )


def _shared(axis: internals.BatchAxis, rule: Named) -> Callable[..., Any]:
    """Return a rule for values that all examples share; it may use the axis.

    Its result is a derivative of a shared value. If it differs among examples, no
    example's part can be told apart, and JAX refuses to take it out of the vmap.
    """

    def shared(*args: Any) -> Any:
        run = axis.vmap(lambda _: rule.fun(*args), 0, None)
        try:
            return run(jnp.zeros(axis.size))
        except ValueError as error:
            if "but out_axes is None" not in str(error):
                raise
            raise messages.own_derivative(rule.name) from error

    return shared


# As for a jax.custom_jvp, jax.linear_transpose of a call transposes the operations of
# forward, and the rule has no part in it: the cotangents go to the values.
def _attach_transpose(cts: Any, args: Any, **_: Any) -> Any:
    return [None] * (len(args) - len(cts)) + cts


_bind_attach = internals.define_primitive(
    "attach",
    impl=_attach_impl,
    jvp=_attach_jvp,
    batch=_attach_batch,
    transpose=_attach_transpose,
)


class _TracedOnce(Named):
    """The rule of one call. While JAX makes a jaxpr, it runs once for the same types.

    JAX differentiates a branch or the body of a loop several times, until it knows
    which results have a tangent. For a custom_jvp, JAX caches the result of the rule.
    If values are known, the rule gets these instead, and runs each time: it may need
    them.
    """

    def __init__(self, name: str, fun: Callable[..., Any]) -> None:
        super().__init__(name, fun)
        self._traced: dict[Any, Any] = {}
        self._again: _TracedOnce | None = None

    def again(self) -> _TracedOnce:
        """Return the rule for the next derivative, which may come in other contexts."""
        self._again = self._again or _TracedOnce(self.name, self.fun)
        return self._again

    def along(self, inputs: Arrays, outs: Arrays, tangents: Arrays) -> list[Any]:
        """Return the tangents of the outs."""
        places = [t is not None for t in tangents]
        values = [*inputs, *outs, *[t for t in tangents if t is not None]]
        if not internals.is_staging() or not all(map(internals.is_abstract, values)):
            return list(self.fun(list(inputs), list(outs), list(tangents)))
        key = (*map(jax.typeof, values), *places)
        traced = self._traced.get(key)
        if traced is None:
            traced = self._trace(len(inputs), len(outs), values, places)
            # A tracer that the rule closed over must not outlive its trace.
            if not any(map(internals.is_tracer, traced[1])):
                self._traced[key] = traced
        jaxpr, consts, nonzero = traced
        return spread(internals.evaluate(jaxpr, [*consts, *values]), nonzero)

    def _trace(self, n_in: int, n_out: int, values: Any, places: Any) -> Any:
        nonzero: list[bool] = []

        def flat(*values: Any) -> list[Any]:
            inputs, outs = list(values[:n_in]), list(values[n_in : n_in + n_out])
            found = self.fun(inputs, outs, spread(values[n_in + n_out :], places))
            nonzero[:] = [t is not None for t in found]
            return [t for t in found if t is not None]

        return *internals.trace(flat, values), nonzero


# ---- linear: outs = E(residuals) tangents, with a transpose of its own.
#
# A Function with a backward, ct -> J^T ct, has the tangent map t -> J t: its jvp, or
# the transpose of backward. JAX's `linear_call` binds the two together, but JAX can
# neither batch nor differentiate it. The equation is
# `*outs = linear[...] *consts *residuals *tangents`:
#
#   consts      The first `n_consts` operands: what the traced E closes over, and so
#               also the residuals that it uses, which are operands twice: `linear[…] a
#               a t`. They have a derivative, but no transpose.
#   residuals   The next `n_res`: the operands of the transpose.
#   tangents    The others. The map is linear in them together.
#   jaxpr       E as a jaxpr of (*consts, *tangents), with its effects: no later stage
#               runs its Python. `Failed` if E can't be traced: reverse mode doesn't
#               evaluate it, so a jvp in NumPy does no harm there.
#   transpose   transpose(residuals, cts) -> cts of the tangents.
#   out_types   Types of the real outputs' tangents, which have their sharding and their
#               varying mesh axes.


def linear(
    evaluate: Callable[[list[Any]], Arrays],
    transpose: Linear,
    residuals: Arrays,
    tangents: Arrays,
    out_types: Sequence[Any],
    *,
    name: str,
) -> list[Any]:
    """Return `evaluate(residuals, tangents)`; JAX transposes it by `transpose`.

    `evaluate` runs (or is traced) at once, in the caller's contexts, like the rule of a
    custom_jvp. If the trace fails, the error is raised when the map is evaluated.
    """
    # If nothing is traced, JAX can't transpose, batch or compile the map. The rule runs
    # on values, and may use NumPy.
    if not any(map(internals.is_tracer, (*residuals, *tangents))):
        return list(evaluate(list(tangents)))
    try:
        jaxpr, consts = internals.trace(
            lambda *tangents: evaluate(list(tangents)), tangents
        )
        if any(map(internals.is_reference, consts)):
            raise messages.reference(name)
    except Exception as error:  # noqa: BLE001  (whatever the user's rule raises)
        jaxpr, consts = Failed(error), []
    return _bind_linear(
        *consts,
        *residuals,
        *tangents,
        jaxpr=jaxpr,
        transpose=Named(name, transpose),
        n_consts=len(consts),
        n_res=len(residuals),
        out_types=tuple(out_types),
    )


class Failed:
    """In place of a jaxpr, the error of its trace, which its use raises.

    The error has no frames, because they hold tracers, which must not outlive a trace.
    """

    def __init__(self, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        if user := [f for f in frames if not f.filename.startswith(_NOT_THE_USERS)]:
            at = user[-1]
            error.add_note(f"Raised in {at.name}, {at.filename}:{at.lineno}.")
        self.error = error.with_traceback(None)
        self.error.__context__ = self.error.__cause__ = None

    def __repr__(self) -> str:
        return repr(self.error)


_NOT_THE_USERS = (str(Path(jax.__file__).parent), str(Path(__file__).parents[1]))


def _evaluated(jaxpr: Any, *args: Any) -> list[Any]:
    if isinstance(jaxpr, Failed):
        raise jaxpr.error
    return internals.evaluate(jaxpr, args)


def _jaxpr_of(
    args: Any, *, jaxpr: Any, n_consts: int, n_res: int, **_: Any
) -> tuple[Any, list[Any]]:
    """Return E as a jaxpr, and its arguments."""
    if isinstance(jaxpr, Failed):
        raise jaxpr.error
    return jaxpr, [*args[:n_consts], *args[n_consts + n_res :]]


# y = E(r) t is linear in t, so  dy = E(r) dt + (dE(r) dr) t.
# The first term is this primitive again. The second differentiates the operations of E
# by what it closes over. That includes the residuals: their own tangents add nothing.
def _linear_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    jaxpr, n_consts = params["jaxpr"], params["n_consts"]
    n = n_consts + params["n_res"]
    consts, ts, terms = primals[:n_consts], primals[n:], []
    outs = _bind_linear(*primals, **params)
    if isinstance(jaxpr, Failed):
        # The derivative by a residual is unknown, too. Its use raises.
        if lost := [t for t in tangents[:n] if t is not None]:
            name, types = params["transpose"].name, params["out_types"]
            raising = functools.partial(_evaluated, jaxpr)
            terms.append(linear(raising, raising, [], lost, types, name=name))
    else:
        # The effects of the rule happen with the outs. They must not happen again.
        jaxpr = internals.without_effects(jaxpr)
        if jaxpr is None:
            raise messages.not_repeatable(params["transpose"].name)
        params["jaxpr"] = jaxpr
    if any(t is not None for t in tangents[n:]):
        dts = [
            internals.zeros(internals.tangent_type(t)) if dt is None else dt
            for t, dt in zip(ts, tangents[n:], strict=True)
        ]
        terms.append(_bind_linear(*primals[:n], *dts, **params))
    if any(t is not None for t in tangents[:n_consts]):
        of_consts = lambda *consts: _evaluated(jaxpr, *consts, *ts)  # noqa: E731
        terms.append(jvp_along(of_consts, consts, tangents[:n_consts])[1])
    if not terms:
        return outs, [None] * len(outs)
    return outs, [sum(parts[1:], parts[0]) for parts in zip(*terms, strict=True)]


def jvp_along(
    f: Callable[..., Arrays], inputs: Arrays, tangents: Arrays
) -> tuple[list[Any], list[Any]]:
    """Return `f(*inputs)` and its tangents by jax.jvp; None for an integer output."""
    # Leave out the others: with symbolic zeros, JAX would call them perturbed.
    perturbed = [i for i, t in enumerate(tangents) if t is not None]

    def along(*values: Any) -> list[Any]:
        at = list(inputs)
        for i, x in zip(perturbed, values, strict=True):
            at[i] = x
        return list(f(*at))

    at = tuple([inputs[i] for i in perturbed])
    outs, found = jax.jvp(along, at, tuple([tangents[i] for i in perturbed]))
    pairs = zip(outs, found, strict=True)
    return outs, [t if is_inexact(out) else None for out, t in pairs]


# For a batch y_i = E(r_i) t_i, both directions are one example's under vmap. A separate
# operation first repeats unbatched tangents. Its transpose is the sum over the batch,
# so `transpose` needs no case for it.
def _linear_batch(
    axis: internals.BatchAxis, args: Any, dims: Any, **params: Any
) -> Any:
    jaxpr, transpose = params["jaxpr"], params["transpose"]
    n_consts, n = params["n_consts"], params["n_consts"] + params["n_res"]
    consts, const_dims, ts = args[:n_consts], dims[:n_consts], args[n:]
    run = Named(transpose.name, functools.partial(_evaluated, jaxpr))
    # Inside a vmap whose axis the rules may use. If evaluation does, its results may
    # differ among examples: they are batched below.
    shared = all(d is None for d in dims)
    if shared and (isinstance(jaxpr, Failed) or _is_shared(axis, run, [*consts, *ts])):
        outs = linear(
            lambda ts: _shared(axis, run)(*consts, *ts),
            _shared(axis, transpose),
            args[n_consts:n],
            ts,
            params["out_types"],
            name=transpose.name,
        )
        return outs, [None] * len(outs)
    ts = [axis.to_front(t, d) for t, d in zip(ts, dims[n:], strict=True)]
    one = axis.vmap(lambda consts, ts: run(*consts, *ts), (const_dims, 0))
    types = [axis.batched_type(t, ts) for t in params["out_types"]]
    outs = linear(
        lambda ts: one(consts, ts),
        axis.vmap(transpose.fun, (dims[n_consts:n], 0)),
        args[n_consts:n],
        ts,
        types,
        name=transpose.name,
    )
    return outs, [0] * len(outs)


def _is_shared(axis: internals.BatchAxis, run: Named, args: Arrays) -> bool:
    """Return whether all examples get the same results."""
    try:
        jax.eval_shape(_shared(axis, run), *args)
    except messages.RuleError:
        return False
    return True


def _linear_transpose(cts: Any, args: Any, **params: Any) -> list[Any]:
    n_consts, n = params["n_consts"], params["n_consts"] + params["n_res"]
    # A linear map takes zero to zero, so the user's rule need not run.
    if all(ct is None for ct in cts):
        return [None] * len(args)
    if any(x is None for x in args[:n]):
        raise messages.transposed_by_residuals(params["transpose"].name)
    return [None] * n + list(params["transpose"](list(args[n_consts:n]), cts))


_bind_linear = internals.define_primitive(
    "linear",
    impl=lambda *args, **params: internals.evaluate(*_jaxpr_of(args, **params)),
    jvp=_linear_jvp,
    batch=_linear_batch,
    transpose=_linear_transpose,
    jaxpr_of=_jaxpr_of,
)


def refusing(
    error: Callable[[], Exception], inputs: Arrays, values: Arrays, *, name: str
) -> list[Any]:
    """Return the values, whose derivative by `inputs` raises when it is used.

    JAX asks for derivatives that nobody uses, for example under lax.stop_gradient. So
    the rule gives a linear map that raises only when it is evaluated or transposed.
    """

    def refuse(*_: Any) -> Any:
        raise error()

    def rule(_: Arrays, outs: Arrays, tangents: Arrays) -> list[Any]:
        places = list(map(is_inexact, outs))
        types = [
            internals.tangent_type(o) for o, x in zip(outs, places, strict=True) if x
        ]
        ts = [t for t in tangents if t is not None]
        return spread(linear(refuse, refuse, [], ts, types, name=name), places)

    return attach(rule, inputs, values, name=name)
