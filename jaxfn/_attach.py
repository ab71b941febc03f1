"""Attaching a derivative to values that were computed without one.

    outs = attach(tangents, inputs, values)

`values` were computed from `stop_gradient(inputs)`, so JAX sees no derivative in them.
`outs` are equal to them, and their derivative with respect to `inputs` is what
`tangents(inputs, outs, input_tangents) -> out_tangents` says (None: zero). It runs only
if somebody differentiates, and sees the outs, attached again: a derivative of any order
meets the rule, never the body.

Why a primitive, where calling a `jax.custom_jvp` again would seem to do:
- forward ran once, with its ctx; calling the decorated function would run it again;
- partial evaluation of a scan's body may drop the rule of a custom_jvp in the half that
  it knows (`_compat.SCAN_DROPS_JVP`), so second derivatives were silently wrong.
  Ordinary primitives keep theirs, and this is one;
- under vmap the outs of an example belong to that example, even where their value is
  the same for all: custom_vjp would give the sum of all cotangents to each of them;
- a tangent that reaches `values` shows that forward closed over a traced value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn import _compat
from jaxfn._compat import Named
from jaxfn._errors import CLOSED_OVER, ClosedOverError

Tangents = Callable[[list[Any], list[Any], list[Any]], Sequence[Any]]


def attach(
    tangents: Tangents, inputs: Sequence[Any], values: Sequence[Any], *, name: str
) -> list[Any]:
    """The values, with the derivative that `tangents` gives; see the module.

    Args:
        tangents: the rule.
        inputs: arrays.
        values: arrays; returned as they are if nothing here is a tracer.
        name: of the Function or rule, for messages and in jaxprs.
    """
    if not any(_compat.is_tracer(x) for x in (*inputs, *values)):
        return list(values)
    return _bind(*inputs, *values, tangents=Named(name, tangents), n_in=len(inputs))


def stop_gradient(arrays: Sequence[Any]) -> list[Any]:
    """The arrays without derivative; one that is no tracer is passed as it is.

    What was saved is found by identity. Under eager transformations a concrete array
    stands behind a tracer, and perhaps it is used elsewhere too: as another argument,
    say. So a tracer's array is made an object of its own (with the same buffer).
    """
    traced = [_compat.is_tracer(x) for x in arrays]
    if not any(traced):
        return list(arrays)
    moving = [x for x, t in zip(arrays, traced, strict=True) if t]
    # One by one: of several together, one that is linear would make all linear.
    still: list[Any] = []
    for x in moving:
        y = _compat.as_array(_bind_still(x)[0])
        still.append(_own(y, [y, *still]))
    rest = iter(still)
    return [next(rest) if t else x for x, t in zip(arrays, traced, strict=True)]


def distinct(arrays: Sequence[Any]) -> list[Any]:
    """The arrays, each an object of its own, as they always are in a trace."""
    found: list[Any] = []
    for x in arrays:
        found.append(_own(x, found) if any(x is known for known in found) else x)
    return found


def _own(x: Any, known: Sequence[Any]) -> Any:
    """Another object than the known ones, with the buffer of `x`; a tracer as it is."""
    if _compat.is_tracer(x):
        return x
    y = x
    if type(x) is _compat.ConcreteArray and len(x.sharding.device_set) == 1:
        y = x.addressable_data(0)  # cheap, and commits the array to no device
    if any(y is other for other in known):
        y = jax.device_put(x, x.sharding)
    return y


def _impl(*args: Any, n_in: int, **_: Any) -> list[Any]:
    return list(args[n_in:])


def _jvp(primals: Sequence[Any], dots: Sequence[Any], **params: Any) -> Any:
    n_in = params["n_in"]
    if any(d is not None for d in dots[n_in:]):
        raise ClosedOverError(CLOSED_OVER.format(name=params["tangents"].name))
    outs = _bind(*primals, **params)
    return outs, params["tangents"](list(primals[:n_in]), outs, list(dots[:n_in]))


def _batch(axis: Any, args: Any, dims: Any, **params: Any) -> Any:
    n_in, rule = params["n_in"], params["tangents"]
    in_dims = list(dims[:n_in])
    values = [
        axis.to_front(x, d) for x, d in zip(args[n_in:], dims[n_in:], strict=True)
    ]
    outs = attach(
        axis.vmap(rule, (in_dims, 0, in_dims)), args[:n_in], values, name=rule.name
    )
    return outs, [0] * len(outs)


# ---- transposing a call


# A linear call may be transposed as it stands (jax.linear_transpose). That transposes
# what forward computes, as for a jax.custom_jvp; the rule has no part in it.
def _transpose(cts: Sequence[Any], _: Any, *, n_in: int, **__: Any) -> Any:
    return [None] * n_in + list(cts)


_bind = _compat.define_primitive(
    "attach",
    impl=_impl,
    abstract_eval=_impl,
    jvp=_jvp,
    batch=_batch,
    transpose=_transpose,
    selects=True,
)


# What jax.lax.stop_gradient leaves in a jaxpr can't be transposed.
_bind_still = _compat.define_primitive(
    "stop_gradient",
    impl=lambda x: [x],
    abstract_eval=lambda x: [x],
    jvp=lambda primals, _: (_bind_still(*primals), [None]),
    batch=lambda _, args, dims: (_bind_still(*args), dims),
    transpose=lambda cts, _: cts,
    selects=True,
)
