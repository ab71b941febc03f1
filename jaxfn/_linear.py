"""The transposable linear primitive: a linear map given with its transpose.

A Function with both `jvp` and `backward` has a tangent map t -> J t computed by the one
and a transpose ct -> J^T ct computed by the other. JAX has no public way to say so,
thus a primitive: evaluated, batched or lowered it is `evaluate`; transposed it is
`transpose`.

    outs = linear(evaluate, transpose, residuals, tangents, out_avals, name=...)

`evaluate(residuals, tangents) -> outs` is linear in the tangents, and
`transpose(residuals, cts) -> cts of the tangents` in the cts; a ct may be None, for
zero, in both directions. `out_avals` are the types of the outs, taken from the real
primal outputs so that sharding and varying mesh axes survive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn import _compat
from jaxfn._compat import Named

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
    """Bind the primitive. All values are arrays; see the module's docstring."""
    return _bind(
        *residuals,
        *tangents,
        evaluate=Named(name, evaluate),
        transpose=Named(name, transpose),
        n_res=len(residuals),
        out_avals=tuple(out_avals),
    )


def _impl(*args: Any, evaluate: Evaluate, n_res: int, **_: Any) -> list[Any]:
    return list(evaluate(list(args[:n_res]), list(args[n_res:])))


def _abstract_eval(*_: Any, out_avals: Sequence[Any], **__: Any) -> Sequence[Any]:
    return out_avals


# y = E(r) t is linear in t, so  dy = E(r) dt + (dE(r) dr) t.
# The first term is this primitive again. The second differentiates the jvp rule's own
# code with respect to what it saved: that is what makes second derivatives right.
def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    evaluate, n_res = params["evaluate"], params["n_res"]
    res, ts = list(primals[:n_res]), list(primals[n_res:])
    outs = _bind(*primals, **params)
    terms: list[Sequence[Any]] = []
    if any(t is not None for t in tangents[n_res:]):
        dots = [
            _compat.zeros(_compat.tangent_aval(t)) if d is None else d
            for t, d in zip(ts, tangents[n_res:], strict=True)
        ]
        terms.append(_bind(*res, *dots, **params))
    moving = [i for i, d in enumerate(tangents[:n_res]) if d is not None]
    if moving:

        def of_residuals(*values: Any) -> list[Any]:
            at = list(res)
            for i, value in zip(moving, values, strict=True):
                at[i] = value
            return list(evaluate(at, ts))

        dots = tuple(tangents[i] for i in moving)
        terms.append(jax.jvp(of_residuals, tuple(res[i] for i in moving), dots)[1])
    return outs, [sum(parts[1:], parts[0]) for parts in zip(*terms, strict=True)]


def _transpose(cts: list[Any], args: Sequence[Any], **params: Any) -> list[Any]:
    n_res = params["n_res"]
    if all(ct is None for ct in cts):
        return [None] * len(args)
    if any(x is None for x in args[:n_res]):
        raise NotImplementedError(
            f"`{params['evaluate'].name}` was transposed with respect to what it saved "
            "for its rules: expected a transpose with respect to tangents, to which "
            "alone the rules apply. Use jax.vjp."
        )
    return [None] * n_res + list(params["transpose"](list(args[:n_res]), cts))


# Linear arguments that are not batched are repeated first, as an operation of their
# own: its transpose is the sum over the batch, so `transpose` needs no case for it.
def _batch(axis: Any, args: Any, dims: Any, **params: Any) -> Any:
    n_res = params["n_res"]
    res_dims = list(dims[:n_res])
    tangents = [
        axis.to_front(t, d) for t, d in zip(args[n_res:], dims[n_res:], strict=True)
    ]
    outs = linear(
        axis.vmap(params["evaluate"], (res_dims, 0)),
        axis.vmap(params["transpose"], (res_dims, 0)),
        args[:n_res],
        tangents,
        [axis.batched_aval(aval, tangents) for aval in params["out_avals"]],
        name=params["evaluate"].name,
    )
    return outs, [0] * len(outs)


_bind = _compat.define_primitive(
    "linear",
    impl=_impl,
    abstract_eval=_abstract_eval,
    jvp=_jvp,
    batch=_batch,
    transpose=_transpose,
)
