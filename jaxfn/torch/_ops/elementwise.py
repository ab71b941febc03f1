"""Operations on single elements, with special functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special as jsp

from jaxfn.torch._ops.row import row, rows

# ---- of one operand, computed in the dtype of the result

rows(
    {
        "aten.acos": jnp.arccos,
        "aten.acosh": jnp.arccosh,
        "aten.asin": jnp.arcsin,
        "aten.asinh": jnp.arcsinh,
        "aten.atan": jnp.arctan,
        "aten.atanh": jnp.arctanh,
        "aten.ceil": jnp.ceil,
        "aten.cos": jnp.cos,
        "aten.cosh": jnp.cosh,
        "aten.exp": jnp.exp,
        "aten.exp2": jnp.exp2,
        "aten.expm1": jnp.expm1,
        "aten.floor": jnp.floor,
        "aten.log": jnp.log,
        "aten.log10": jnp.log10,
        "aten.log1p": jnp.log1p,
        "aten.log2": jnp.log2,
        "aten.neg aten._neg_view aten._neg_view_copy": jnp.negative,
        "aten.positive": jnp.positive,
        "aten.reciprocal": jnp.reciprocal,
        "aten.rsqrt": lambda x: lax.rsqrt(x),
        "aten.sigmoid": jax.nn.sigmoid,
        "aten.sin": jnp.sin,
        "aten.sinh": jnp.sinh,
        "aten.sqrt": jnp.sqrt,
        "aten.tan": jnp.tan,
        "aten.tanh": jnp.tanh,
        "aten.trunc": jnp.trunc,
    },
    promote="out",
    elementwise=True,
)

rows(
    {
        "aten.abs": jnp.abs,
        "aten.complex": lambda x, y: lax.complex(*jnp.broadcast_arrays(x, y)),
        # Torch gives 0 for a real -0.0.
        "aten.angle": lambda x: jnp.where(jnp.isrealobj(x) & (x == 0), 0, jnp.angle(x)),
        "aten.bitwise_not": jnp.bitwise_not,
        "aten.conj_physical aten.conj aten._conj aten._conj_copy aten._conj_physical": (
            jnp.conj
        ),
        "aten.imag": jnp.imag,
        "aten.isfinite": jnp.isfinite,
        "aten.isinf": jnp.isinf,
        "aten.isnan": jnp.isnan,
        "aten.logical_not": jnp.logical_not,
        "aten.real": jnp.real,
        "aten.signbit": jnp.signbit,
        "aten.relu": lambda x: jnp.where(x <= 0, jnp.zeros((), x.dtype), x),
    },
    elementwise=True,
)


@row("aten.sign", elementwise=True)
def sign(x: Any) -> Any:
    """Return -1, 0 or 1; 0 for nan, as torch does."""
    if x.dtype == bool:
        return x
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.where(jnp.isnan(x), jnp.zeros((), x.dtype), jnp.sign(x))
    return jnp.sign(x)


@row("aten.round.default", "aten.round.decimals", elementwise=True)
def round_(x: Any, *, decimals: int = 0) -> Any:
    """Round to this many decimals, halves to even, by torch's formula."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    if decimals == 0:
        return jnp.round(x)
    if x.dtype.itemsize < 4:  # torch computes in float32
        x = x.astype(jnp.float32)
    scale = jnp.asarray(10.0 ** abs(decimals), x.dtype)
    if decimals > 0:
        return jnp.round(x * scale) / scale
    return jnp.round(x / scale) * scale


row("aten.frexp")(jnp.frexp)


# ---- of two operands, computed in the dtype of the result


def _add(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    x = jnp.asarray(x)
    if x.dtype == bool:
        return jnp.logical_or(x, y if alpha else False)
    return x + (y if alpha == 1 else jnp.asarray(alpha).astype(x.dtype) * y)


def _sub(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return x - (y if alpha == 1 else jnp.asarray(alpha).astype(x.dtype) * y)


rows(
    {
        "aten.add": _add,
        "aten.sub": _sub,
        "aten.mul": lambda x, y: (
            jnp.logical_and(x, y) if jnp.asarray(x).dtype == bool else x * y
        ),
        "aten.atan2": jnp.arctan2,
        "aten.hypot": jnp.hypot,
        "aten.copysign": jnp.copysign,
        "aten.maximum": jnp.maximum,
        "aten.minimum": jnp.minimum,
        "aten.fmax": jnp.fmax,
        "aten.fmin": jnp.fmin,
        "aten.gcd": jnp.gcd,
        "aten.lcm": jnp.lcm,
        "aten.ldexp": lambda x, y: x * jnp.exp2(y),
        "aten.bitwise_and aten.__and__": jnp.bitwise_and,
        "aten.bitwise_or aten.__or__": jnp.bitwise_or,
        "aten.bitwise_xor aten.__xor__": jnp.bitwise_xor,
        "aten.bitwise_left_shift aten.__lshift__": jnp.left_shift,
        "aten.bitwise_right_shift aten.__rshift__": jnp.right_shift,
        "aten.polar": lambda r, t: r * jnp.exp(1j * t.astype(r.dtype)),
    },
    promote="out",
    elementwise=True,
)


def _same(x: Any, y: Any) -> tuple[Any, Any]:
    x, y = jnp.broadcast_arrays(x, y)
    dtype = jnp.result_type(x, y)
    return x.astype(dtype), y.astype(dtype)


rows(
    {
        "aten.fmod": lambda x, y: lax.rem(*_same(x, y)),
        "aten.remainder": jnp.remainder,
        "aten.nextafter": lambda x, y: jnp.nextafter(*_same(x, y)),
    },
    promote="out",
    elementwise=True,
    half_precision=True,
)


@row("aten.div", promote="out", elementwise=True)
def div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    """Divide; `rounding_mode` may round the quotient down or towards zero."""
    x, y = jnp.asarray(x), jnp.asarray(y)
    if rounding_mode is None:
        return x / y
    floor = rounding_mode == "floor"
    if jnp.issubdtype(x.dtype, jnp.integer) and jnp.issubdtype(y.dtype, jnp.integer):
        return jnp.floor_divide(x, y) if floor else lax.div(*_same(x, y))
    return _floor_divide(*_same(x, y)) if floor else jnp.trunc(x / y)


def _floor_divide(x: Any, y: Any) -> Any:
    # Torch computes it from the remainder: 0.3 // 0.1 is 2. For y = 0 it returns x / y.
    rest = lax.rem(x, y)
    whole = (x - rest) / y
    whole = jnp.where((rest != 0) & ((rest < 0) != (y < 0)), whole - 1, whole)
    floor = jnp.floor(whole)
    whole = jnp.where(whole - floor > 0.5, floor + 1, floor)
    whole = jnp.where(whole == 0, jnp.copysign(jnp.zeros_like(x), x / y), whole)
    return jnp.where(y == 0, x / y, whole)


@row("aten.pow", promote="out", elementwise=True)
def power(x: Any, y: Any) -> Any:
    """Return x ** y."""
    x, y = _same(jnp.asarray(x), jnp.asarray(y))
    if not jnp.issubdtype(x.dtype, jnp.signedinteger):
        return jnp.power(x, y)
    # In torch, an integer to a negative power is 0, unless it is 1 or -1.
    found = jnp.power(x, jnp.abs(y))
    return jnp.where((y < 0) & (jnp.abs(x) != 1), 0, found)


@row("aten.pow.Tensor_Scalar", elementwise=True, typed=True)
def power_scalar(out: Any, x: Any, y: Any) -> Any:
    """Return x ** y for a number; torch multiplies if it is a small integer."""
    x = lax.convert_element_type(x, out.dtype) if out.dtype != x.dtype else x
    if isinstance(y, (int, float)) and not isinstance(y, bool):
        if y == 0.5:
            return jnp.sqrt(x)
        if float(y).is_integer() and abs(y) <= 64:
            return lax.integer_pow(x, int(y)) if y != 0 else jnp.ones_like(x)
    return jnp.power(*_same(x, jnp.asarray(y, None if y is None else out.dtype)))


# ---- activations

rows(
    {
        "aten.elu": lambda x, alpha=1, scale=1, input_scale=1: (
            scale
            * jnp.where(x <= 0, alpha * jnp.expm1(jnp.minimum(x, 0) * input_scale), x)
        ),
        "aten.gelu": lambda x, *, approximate="none": jax.nn.gelu(
            x, approximate=approximate == "tanh"
        ),
        "aten.leaky_relu": lambda x, slope=0.01: jax.nn.leaky_relu(x, slope),
    },
    promote="out",
    elementwise=True,
)
row("aten.softshrink_backward", "aten.hardshrink_backward")(
    lambda g, x, bound=0.5: jnp.where(jnp.abs(x) <= bound, 0, g)
)


# ---- copies and casts

rows(
    {
        "aten.alias aten.clone aten.detach_copy aten.lift_fresh_copy aten.lift_fresh "
        "aten.lift aten.contiguous aten.resolve_conj aten.resolve_neg aten._to_copy "
        # `checked` makes the cast: it knows the dtype of the result.
        "aten.to prims.convert_element_type": lambda x, *_, **__: x,
    },
    elementwise=True,
)
row("aten.copy", elementwise=True)(
    lambda x, source, *_, **__: jnp.broadcast_to(jnp.asarray(source), jnp.shape(x))
)
# A graph that changes an input ends with a write into it, which has no effect in JAX.
row("aten.copy_")(lambda x, source, *_: source)


def _digamma(x: Any) -> Any:
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), lax.digamma(x))


def _zeta(x: Any, q: Any) -> Any:
    pole = (x == 1) | ((x > 1) & (q <= 0) & (q == jnp.floor(q)))
    return jnp.where(pole, jnp.inf, jnp.where(x < 1, jnp.nan, jsp.zeta(x, q)))


rows(
    {
        "aten.erf": lax.erf,
        "aten.erfc": lax.erfc,
        "aten.erfinv": lax.erf_inv,
        "aten.lgamma": lax.lgamma,
        "aten.digamma": _digamma,
        "aten.special_ndtri": jsp.ndtri,
        "aten.i0 aten.special_modified_bessel_i0": jsp.i0,
        "aten.special_i1 aten.special_modified_bessel_i1": jsp.i1,
        "aten.special_i0e": jsp.i0e,
        "aten.special_i1e": jsp.i1e,
        "aten.special_zeta": _zeta,
        "aten.igamma": jsp.gammainc,
        "aten.igammac": jsp.gammaincc,
    },
    promote="out",
    elementwise=True,
)


@row("aten.polygamma", elementwise=True)
def polygamma(n: int, x: Any) -> Any:
    """Return the derivative of digamma of order n."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = x.astype(jnp.float32)
    if n == 0:
        return _digamma(x)
    if n > 1:
        return jsp.polygamma(n, x)
    # JAX's result is wrong below 0. There the reflection formula helps, with y = 1 - x:
    #     polygamma(1, x) + polygamma(1, y) = (pi / sin(pi x))^2
    low = x < 0.5
    upper = jsp.polygamma(1, jnp.where(low, 1 - x, x))
    # The distance to the nearest integer has all digits, unlike pi x.
    sine = jnp.sin(jnp.pi * (x - jnp.round(x)))
    return jnp.where(low, (jnp.pi / sine) ** 2 - upper, upper)


@row("aten.special_erfcx", promote="out", elementwise=True)
def erfcx(x: Any) -> Any:
    """Return exp(x²) erfc(x), by a continued fraction if a factor leaves the range.

    For x > 2, it begins at the far end (Abramowitz and Stegun 7.1.14).
    """
    near = jnp.minimum(x, 2.0)
    far = jnp.maximum(x, 2.0)
    tail = far
    for k in range(60, 0, -1):
        tail = far + (k / 2) / tail
    asymptotic = 1 / (jnp.sqrt(jnp.pi).astype(x.dtype) * tail)
    return jnp.where(x < 2, jnp.exp(near * near) * lax.erfc(near), asymptotic)
