"""Ports that are wrong, each in another way, for `compare` to find.

`WRONG` has for each the port, the original and the arguments, a row that must fail, and
what its message must say. All rows before that one must agree.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.autograd import Function

import jaxfn
from tests.build import function

from . import pairs
from .pairs import INDEX, A, B, C, V, W
from .ports import original, saving


class Wrong(NamedTuple):
    row: str
    text: str
    port: Any
    original: Any
    args: tuple[Any, ...]


WRONG: dict[str, Wrong] = {}
OF_X, OF_Y = "gradient of argument 0", "gradient of argument 1"


def wrong(name, row, text, original, args, base=jaxfn.Function, **members):
    """A port with these members."""
    WRONG[name] = Wrong(row, text, function(name, base, **members), original, args)


def backward(name, row, text, pair, rule):
    """The right port of a pair, with another backward."""
    port, original, args = pairs.RIGHT[pair]
    wrong(name, row, text, original, args, port, backward=rule)


def saved(ctx):
    return ctx.saved_tensors


# ---- gradients

backward(
    "Factor", OF_X, "the whole gradient is 2 times the expected one",
    "output saved", lambda ctx, g: 2 * g * saved(ctx)[0],
)  # fmt: skip
backward(
    "Sign", OF_X, "the whole gradient is the expected one with the sign turned",
    "output saved", lambda ctx, g: -g * saved(ctx)[0],
)  # fmt: skip
backward(
    "NoneForGradient", OF_Y, "the whole gradient is zero",
    "cotangents written",
    lambda ctx, g, h: ((g * saved(ctx)[1] + h).at[0].set(0), None),
)  # fmt: skip
backward(
    "DoubleCount", OF_X, "the cotangent of output 1 counts 2 times",
    "separate", lambda ctx, g, h: (g * ctx.k + 2 * h * saved(ctx)[0], None),
)  # fmt: skip
backward(
    "IgnoredCotangent", OF_X, "the cotangent of output 0 counts 0 times",
    "separate", lambda ctx, g, h: (h * saved(ctx)[0], None),
)  # fmt: skip
backward(
    "MeanForSum", OF_Y, "is 0.3333 times the expected one (1/3)",
    "broadcast", lambda ctx, g: (g, g.mean(0)),
)  # fmt: skip
backward(
    "RowForSum", OF_Y, "elements differ",
    "broadcast", lambda ctx, g: (g, g[0]),
)  # fmt: skip
backward(
    "WrongDim", OF_Y, "elements differ",
    "broadcast", lambda ctx, g: (g, g.sum(1)),
)  # fmt: skip
backward(
    "Conjugate", OF_X, "a conjugate is missing",
    "complex", lambda ctx, g: (g * saved(ctx)[1], g * saved(ctx)[0].conj()),
)  # fmt: skip
backward(
    "WrongStatic", OF_X, "expected",
    "options and a list", lambda ctx, g: (g * 2.0, None, None),
)  # fmt: skip
backward(
    "MissingMask", OF_X, "1 of 3 elements differ",
    "index and mask",
    lambda ctx, g: (jnp.zeros(ctx.shape, g.dtype).at[saved(ctx)[0]].add(g), None, None),
)  # fmt: skip
backward(
    "SetForAdd", OF_X, "[2]: expected",
    "index and mask",
    lambda ctx, g: (
        jnp.zeros(ctx.shape, g.dtype).at[saved(ctx)[0][1:]].set(g[1:] * INDEX[1][1:]),
        None,
        None,
    ),
)  # fmt: skip
backward(
    "WrongCount", OF_X, "the port raises, on arguments cast to float64: ",
    "broadcast", lambda ctx, g: g,
)  # fmt: skip
backward(
    "WrongGradientShape", OF_X, "the port raises",
    "output saved", lambda ctx, g: (g * saved(ctx)[0])[:2],
)  # fmt: skip


Matmul = original("Matmul", torch.matmul, lambda g, a, b: (g @ b.mT, a.mT @ g))
SQUARE = A, A[::-1].copy() + 0.5
wrong(
    "Transposed", OF_X, "the whole gradient is the transpose of the expected one",
    Matmul, SQUARE, forward=saving(jnp.matmul),
    backward=lambda ctx, g: ((g @ saved(ctx)[1].T).T, saved(ctx)[0].T @ g),
)  # fmt: skip
wrong(
    "Swapped", OF_X, "gradient of argument 0 and gradient of argument 1 are swapped",
    Matmul, SQUARE, forward=saving(jnp.matmul),
    backward=lambda ctx, g: (saved(ctx)[0].T @ g, g @ saved(ctx)[1].T),
)  # fmt: skip
wrong(
    "SwappedForward", "value", "elements differ",
    Matmul, SQUARE, forward=saving(lambda a, b: b @ a),
    backward=lambda ctx, g: (g @ saved(ctx)[1].T, saved(ctx)[0].T @ g),
)  # fmt: skip
wrong(
    "InputForOutput", OF_X, "3 of 3 elements differ",
    pairs.Exp, (V,), forward=saving(jnp.exp), backward=lambda ctx, g: g * saved(ctx)[0],
)  # fmt: skip


def _two(ctx, x):
    ctx.save_for_backward(x)
    return jnp.sin(x), jnp.cos(x)


TwoOutputs = function(
    "TwoOutputs",
    Function,
    forward=saving(lambda x: (x.sin(), x.cos())),
    backward=lambda ctx, g, h: g * saved(ctx)[0].cos() - h * saved(ctx)[0].sin(),
)
wrong(
    "WrongOutput", OF_X, "the cotangents of output 0 and output 1 are swapped",
    TwoOutputs, (V,), forward=_two,
    backward=lambda ctx, g, h: h * jnp.cos(saved(ctx)[0]) - g * jnp.sin(saved(ctx)[0]),
)  # fmt: skip
wrong(
    "OutputsSwapped", "value", "output 0 and output 1 are swapped",
    TwoOutputs, (V,), forward=lambda ctx, x: _two(ctx, x)[::-1],
    backward=lambda ctx, g, h: g * jnp.cos(saved(ctx)[0]) - h * jnp.sin(saved(ctx)[0]),
)  # fmt: skip
wrong(
    "OutputMissing", "outputs", "expected 2 outputs, got 1",
    TwoOutputs, (V,), forward=lambda ctx, x: _two(ctx, x)[0],
    backward=lambda ctx, g: g * jnp.cos(saved(ctx)[0]),
)  # fmt: skip
wrong(
    "OutputNone", "outputs", "output 1: expected an array, got None",
    TwoOutputs, (V,), forward=lambda ctx, x: (_two(ctx, x)[0], None),
    backward=lambda ctx, g, h: g * jnp.cos(saved(ctx)[0]),
)  # fmt: skip


def _needs_both(ctx, g):
    x, y = ctx.saved_tensors
    if not all(ctx.needs_input_grad):
        return None, None
    return g * y, g * x


wrong(
    "ForgottenNeeds", "gradients of subsets", "(argument 0 alone differentiated)",
    pairs.Product, (V, W), forward=saving(jnp.multiply), backward=_needs_both,
)  # fmt: skip


def _materialized_never(ctx, x):
    ctx.set_materialize_grads(False)
    return _two(ctx, x)


def _both_or_none(ctx, g, h):
    (x,) = ctx.saved_tensors
    return None if g is None or h is None else g * jnp.cos(x) - h * jnp.sin(x)


wrong(
    "DropsUnused", "gradients of outputs", "(output 0 alone used)",
    TwoOutputs, (V,), forward=_materialized_never, backward=_both_or_none,
)  # fmt: skip


# ---- values


def _norm(x, w, eps):
    y = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + eps)
    return y * w


WRONG["WrongEps"] = Wrong(
    "value", "(off by 1.3e-06); the whole value is 0.999999216 times",
    lambda x, w, eps: _norm(x, w, eps + 1e-6), pairs.Norm, (A, V, 0.1),
)  # fmt: skip
WRONG["WrongAxis"] = Wrong(
    "value", "9 of 9 elements differ",
    lambda x, w, eps: _norm(x.T, w, eps).T, pairs.Norm, (A, V, 0.1),
)  # fmt: skip
WRONG["IgnoredStatic"] = Wrong(
    "value", "output 0 at", lambda x, w, eps: _norm(x, w, 1e-5), pairs.Norm, (A, V, 0.1)
)  # fmt: skip
WRONG["MissingClone"] = Wrong(
    "value", "[0]: expected 0, got 0.77",
    lambda x, y: (x * y, x + y), pairs.Writes, (V, W),
)  # fmt: skip
WRONG["Reversed"] = Wrong(
    "value", "the whole value is the expected one reversed along axis 0",
    lambda x: jnp.exp(x)[::-1], pairs.Exp, (V,),
)  # fmt: skip
WRONG["Offset"] = Wrong(
    "value", "every element is off by 0.5", lambda x: jnp.exp(x) + 0.5, pairs.Exp, (V,)
)  # fmt: skip
WRONG["OneElement"] = Wrong(
    "value", "output 0 at [1, 2]: expected 6.68589, got 7.68589 (off by 1); 1 of 6",
    lambda x: jnp.exp(x).at[1, 2].add(1), pairs.Exp, (B,),
)  # fmt: skip
WRONG["Shape"] = Wrong(
    "shape", "output 0: expected shape (2, 3), got (3, 2); the axes are reversed",
    lambda x: jnp.exp(x).T, pairs.Exp, (B,),
)  # fmt: skip
WRONG["KeptDimension"] = Wrong(
    "shape", "output 3: expected shape (), got (1,)",
    lambda x: (jnp.exp(x), x.argmax(-1), None, x.sum().reshape(1), 2, "name"),
    pairs.Several, (B,),
)  # fmt: skip
WRONG["Number"] = Wrong(
    "value", "output 4: expected 2, got 3 (off by 1)",
    lambda x: (jnp.exp(x), x.argmax(-1), None, x.sum(), 3, "name"),
    pairs.Several, (B,),
)  # fmt: skip
WRONG["Dtype"] = Wrong(
    "dtype", "output 0: expected dtype bfloat16, got float32",
    lambda x: jnp.exp(x).astype(jnp.float32), pairs.Exp, (jnp.ones(2, jnp.bfloat16),),
)  # fmt: skip
WRONG["IntegerDtype"] = Wrong(
    "dtype", "output 1: expected dtype int32, got float32",
    lambda x: (jnp.exp(x), x.argmax(-1) * 1.0, None, x.sum(), 2, "name"),
    pairs.Several, (B,),
)  # fmt: skip


wrong(
    "OnlyHere", "value at other points", "at another point at [",
    pairs.Exp, (V,),
    forward=saving(lambda x: jnp.asarray(np.exp(V.astype(np.float64)), x.dtype)),
    backward=lambda ctx, g: g * jnp.exp(saved(ctx)[0]),
)  # fmt: skip
WRONG["Raises"] = Wrong(
    "outputs", "the port raises: TypeError", lambda x: jnp.exp(x, x, x), pairs.Exp, (V,)
)  # fmt: skip


def _double_if_differentiated(ctx, x, y):
    ctx.save_for_backward(x, y)
    return x * y * (2 if any(ctx.needs_input_grad) else 1)


wrong(
    "OnlyDifferentiated", "value while differentiated",
    "the whole value is 2 times the expected one",
    pairs.Product, (V, W), forward=_double_if_differentiated,
    backward=lambda ctx, g: (g * saved(ctx)[1], g * saved(ctx)[0]),
)  # fmt: skip

# ---- further


def both(name, row, text, **members):
    wrong(name, row, text, pairs.Both, (V, W), pairs.BothPort, **members)


both(
    "JvpFactor", "jvp", "tangent of output 0 along argument 0, 1",
    jvp=lambda ctx, s, t: (
        2 * s * jnp.cos(saved(ctx)[0]) * saved(ctx)[1] + t * jnp.sin(saved(ctx)[0]),
        s + t,
    ),
)  # fmt: skip
both(
    "JvpNone",
    "jvp",
    "the whole tangent is zero",
    jvp=lambda ctx, s, t: (None, s + t),
)


def _vmap(scale, *, last=False):
    def rule(info, in_dims, x, y):
        x, y = (
            v if d is not None else jnp.broadcast_to(v, (info.batch_size, *v.shape))
            for v, d in zip((x, y), in_dims, strict=True)
        )
        if last:
            x = jnp.broadcast_to(x[:1], x.shape)
        return (scale * jnp.sin(x) * y, x + y), (0, 0)

    return rule


both("VmapFactor", "vmap", "the whole value is 3 times the expected", vmap=_vmap(3))
both("VmapFirst", "vmap", "(in_axes=(0, 0))", vmap=_vmap(1, last=True))
WRONG["VmapRuleMissing"] = Wrong(
    "vmap", "PyTorch's vmap rule differs from a loop of its forward",
    lambda x: 2 * x, pairs.BatchedOther, (V,),
)  # fmt: skip


Sin = original("Sin", torch.sin, lambda g, x: g * x.cos())
wrong(
    "StoppedSecond", "second derivative", "the whole second derivative is zero",
    Sin, (V,), forward=saving(jnp.sin),
    backward=lambda ctx, g: g * jnp.cos(jax.lax.stop_gradient(saved(ctx)[0])),
)  # fmt: skip
wrong(
    "OnceOnly", "second derivative", "trying to differentiate twice",
    Sin, (V,), forward=saving(jnp.sin),
    backward=jaxfn.once_differentiable(lambda ctx, g: g * jnp.cos(saved(ctx)[0])),
)  # fmt: skip


def _wrong_second(ctx, g):
    """As the original, but for a part that is zero here and has a derivative."""
    y, scale, w = ctx.saved_tensors
    y = y + 0.1 * (y - jax.lax.stop_gradient(y))
    h = g * w
    means = h.mean(-1, keepdims=True), (h * y).mean(-1, keepdims=True)
    return scale * (h - means[0] - y * means[1]), (g * y).sum(0), None


backward(
    "SecondBesideIntermediates", "second derivative",
    "finite differences of PyTorch's gradient: second derivative by argument 0",
    "intermediates saved", _wrong_second,
)  # fmt: skip
wrong(
    "NumPyInForward", "value under jit", "the port raises, on arguments cast to",
    Sin, (V,), forward=saving(lambda x: jnp.asarray(np.sin(np.asarray(x)))),
    backward=lambda ctx, g: g * jnp.cos(saved(ctx)[0]),
)  # fmt: skip


def _short_in_single(x):
    """Right in double precision alone."""
    short = jnp.bfloat16 if x.dtype == jnp.float32 else x.dtype
    return jnp.sin(x.astype(short)).astype(x.dtype)


WRONG["GivenPrecision"] = Wrong(
    "value as given", "output 0 at [", _short_in_single, Sin, (V,)
)  # fmt: skip
WRONG["ComplexSwapped"] = Wrong(
    "value", "the whole value is the conjugate of the expected one",
    lambda x, y: (x * y).conj(), pairs.Product, (C, C[::-1].copy()),
)  # fmt: skip
