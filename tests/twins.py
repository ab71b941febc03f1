"""Functions with their hand-written twins, from one set of formulas.

What compares jaxfn with `jax.custom_vjp` and `jax.custom_jvp` takes its cases here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.build import function, in_style, rules_of

Arrays = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Twin:
    """The formulas of one Function.

    Attributes:
        arguments: makes the arguments, with about so many elements in the first.
        value: of the arguments.
        pull: the gradients, from `(arguments, value, g)`.
        push: the tangent, from `(arguments, value, tangents)`.
    """

    arguments: Callable[[int], Arrays]
    value: Callable[..., Any]
    pull: Callable[..., Arrays]
    push: Callable[..., Any]


def shape(n: int) -> tuple[int, int]:
    """A matrix with n elements, if n is a multiple of its columns: 4, 100 or 1,000."""
    columns = 4 if n < 1000 else 100 if n < 1_000_000 else 1000
    return n // columns, columns


def _line(low: float, high: float) -> Callable[[int], Any]:
    return lambda n: jnp.linspace(low, high, n).reshape(shape(n))


def _one(n: int) -> Arrays:
    return (_line(-1, 1)(n),)


def _two(n: int) -> Arrays:
    return _line(-1, 1)(n), _line(1, 2)(n)


def _weights(n: int) -> Arrays:
    columns = shape(n)[1]
    return _line(-1, 1)(n), jnp.linspace(0, 1, 5 * columns).reshape(columns, 5)


def _inner(x: Any, y: Any) -> Any:
    return (x * y).sum(-1, keepdims=True)


def _swish_slope(x: Any) -> Any:
    s = jax.nn.sigmoid(x)
    return s * (1 + x * (1 - s))


def _geglu_slopes(gate: Any, value: Any) -> Arrays:
    cdf = 0.5 * (1 + jax.scipy.special.erf(gate / 2**0.5))
    pdf = jnp.exp(-gate * gate / 2) / (2 * jnp.pi) ** 0.5
    return value * (cdf + gate * pdf), gate * cdf


TWINS = {
    "exp": Twin(
        _one, jnp.exp, lambda a, out, g: (g * out,), lambda a, out, t: t[0] * out
    ),
    "sin times y": Twin(
        _two,
        lambda x, y: jnp.sin(x) * y,
        lambda a, out, g: (2 * g * jnp.cos(a[0]) * a[1], g * jnp.sin(a[0])),
        lambda a, out, t: t[0] * jnp.cos(a[0]) * a[1] + t[1] * jnp.sin(a[0]),
    ),
    "matmul": Twin(
        _weights,
        lambda x, w: x @ w,
        lambda a, out, g: (g @ a[1].T, a[0].T @ g),
        lambda a, out, t: t[0] @ a[1] + a[0] @ t[1],
    ),
    "sigmoid": Twin(
        _one,
        jax.nn.sigmoid,
        lambda a, out, g: (g * out * (1 - out),),
        lambda a, out, t: t[0] * out * (1 - out),
    ),
    "straight-through round": Twin(
        _one, jnp.round, lambda a, out, g: (g,), lambda a, out, t: t[0]
    ),
    "logsumexp": Twin(
        _one,
        lambda x: jax.nn.logsumexp(x, axis=1),
        lambda a, out, g: (g[:, None] * jnp.exp(a[0] - out[:, None]),),
        lambda a, out, t: (t[0] * jnp.exp(a[0] - out[:, None])).sum(1),
    ),
    "rms norm": Twin(
        _two,
        lambda x, y: x * jax.lax.rsqrt((x * x).mean(1, keepdims=True)) * y,
        lambda a, out, g: (g * a[1] * out, g * out),
        lambda a, out, t: t[0] * a[1] * out + t[1] * out,
    ),
    "clipped": Twin(
        _one,
        lambda x: jnp.clip(x, -0.5, 0.5),
        lambda a, out, g: (jnp.where(jnp.abs(a[0]) < 0.5, g, 0),),
        lambda a, out, t: jnp.where(jnp.abs(a[0]) < 0.5, t[0], 0),
    ),
    "swish": Twin(
        _one,
        lambda x: x * jax.nn.sigmoid(x),
        lambda a, out, g: (g * _swish_slope(a[0]),),
        lambda a, out, t: t[0] * _swish_slope(a[0]),
    ),
    "softmax": Twin(
        _one,
        lambda x: jax.nn.softmax(x, axis=1),
        lambda a, out, g: (out * (g - _inner(g, out)),),
        lambda a, out, t: out * (t[0] - _inner(t[0], out)),
    ),
    "geglu": Twin(
        _two,
        lambda gate, value: gate * (1 + jax.scipy.special.erf(gate / 2**0.5)) * value,
        lambda a, out, g: tuple(g * s for s in _geglu_slopes(*a)),
        lambda a, out, t: sum(x * s for x, s in zip(t, _geglu_slopes(*a), strict=True)),
    ),
    "softplus": Twin(
        _one,
        lambda x: jnp.logaddexp(x, 0.0),
        lambda a, out, g: (g * jax.nn.sigmoid(a[0]),),
        lambda a, out, t: t[0] * jax.nn.sigmoid(a[0]),
    ),
    "gradient reversal": Twin(
        _one,
        lambda x: 1.0 * x,
        lambda a, out, g: (-0.5 * g,),
        lambda a, out, t: -0.5 * t[0],
    ),
    "surrogate spike": Twin(
        _one,
        lambda x: (x > 0).astype(x.dtype),
        lambda a, out, g: (g / (25 * jnp.abs(a[0]) + 1) ** 2,),
        lambda a, out, t: t[0] / (25 * jnp.abs(a[0]) + 1) ** 2,
    ),
}


def ours(twin: Twin, *, rule: str, style: str = "combined") -> Callable[..., Any]:
    """A new Function with one rule, or with `both`.

    Args:
        twin: the formulas.
        rule: "backward", "jvp" or "both".
        style: "combined" or "separate".
    """

    def save(ctx, args, out):
        if rule != "jvp":
            ctx.save_for_backward(*args, out)
        if rule != "backward":
            ctx.save_for_forward(*args, out)

    def backward(ctx, g):
        *args, out = ctx.saved_tensors
        return twin.pull(args, out, g)

    def jvp(ctx, *ts):
        *args, out = ctx.saved_tensors
        return twin.push(args, out, ts)

    members = in_style(style, lambda *args: twin.value(*args), save)
    return function(**members, **rules_of(rule, backward, jvp)).apply


def by_hand(twin: Twin, *, rule: str) -> Callable[..., Any]:
    """A new `custom_vjp` with symbolic zeros for "backward", `custom_jvp` for "jvp"."""
    if rule == "backward":
        f = jax.custom_vjp(lambda *args: twin.value(*args))

        def fwd(*args):
            args = [x.value for x in args]
            out = f(*args)
            return out, (args, out)

        f.defvjp(fwd, lambda res, g: twin.pull(*res, g), symbolic_zeros=True)
        return f
    f = jax.custom_jvp(lambda *args: twin.value(*args))

    @f.defjvp
    def push(primals, tangents):
        out = f(*primals)
        return out, twin.push(primals, out, tangents)

    return f


def loss(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: f(*args).sum()


def gradient(f: Callable[..., Any], args: Arrays) -> Callable[..., Any]:
    """The gradient of the loss for all of the arguments."""
    return jax.grad(loss(f), tuple(range(len(args))))


def tangent(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jax.jvp(f, args, args)


def stacked(args: Arrays) -> Arrays:
    """Two examples of each argument."""
    return tuple(jnp.stack([x, x]) for x in args)
