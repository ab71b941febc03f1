"""Functions of CUDA's libdevice in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from jaxfn._triton.errors import Fault


def named(module: Any, names: str, prefix: str = "") -> dict[str, Callable[..., Any]]:
    """Make a table of functions, from "name" or "name=name in the module"."""
    pairs = (entry.split("=") for entry in names.split())
    return {prefix + pair[0]: getattr(module, pair[-1]) for pair in pairs}


def to_integer(x: Any, dtype: Any, *, unsigned: bool = False) -> Any:
    """Convert like a GPU: towards zero, to the nearest limit, and NaN to zero.

    In 64 bits, of either side, NaN becomes the sign bit (PTX ISA, `cvt`). A GPU has no
    conversion to eight bits: it converts to sixteen, and truncates.
    """
    kind = np.dtype(dtype)
    if kind.itemsize == 1:
        return to_integer(x, np.int16, unsigned=unsigned).astype(kind)
    target = np.dtype(f"u{kind.name}") if unsigned else kind
    wide = kind.itemsize == 8 or np.asarray(x).dtype == np.float64
    limits, x = np.iinfo(target), np.asarray(x, np.float64)
    beyond = 2.0 ** (limits.bits if unsigned else limits.bits - 1)
    inside = np.where((x < beyond) & (x >= limits.min), x, 0).astype(target)
    result = np.where(x >= beyond, target.type(limits.max), inside)
    result = np.where(x < limits.min, target.type(limits.min), result)
    nan = np.isnan(x) & wide
    return np.where(nan, np.iinfo(kind).min, result.view(kind)).astype(kind)[()]


def multiply_high(x: Any, y: Any, *, unsigned: bool) -> Any:
    """Return the upper half of a product of integers."""
    bits, dtype = x.dtype.itemsize * 8, x.dtype
    own = f"u{dtype.name}" if unsigned else dtype.name
    # NumPy has no integers of 128 bits; Python has.
    wide = own.replace(str(bits), str(2 * bits)) if bits < 64 else object
    x, y = (np.asarray(v.view(own)).astype(wide) for v in (x, y))
    return np.asarray(x * y >> bits).astype(own).view(dtype)[()]


def _fma(x: Any, y: Any, z: Any) -> Any:
    wide = np.float64 if x.dtype.itemsize < 8 else np.longdouble
    return (x.astype(wide) * y.astype(wide) + z.astype(wide)).astype(x.dtype)


def _power_of_integer(x: Any, n: Any) -> Any:
    return np.power(x.astype(np.float64), n).astype(x.dtype)


def _away(x: Any) -> Any:
    """Round to the nearest integer, halves away from zero."""
    whole = np.trunc(x)
    return np.where(abs(x - whole) >= 0.5, whole + np.copysign(1, x), whole)


def _ones(x: Any) -> Any:
    return np.bitwise_count(x.view(f"u{x.dtype.name}")).astype(np.int32)


def _zeros(x: Any) -> Any:
    """Count the zeros before the first one."""
    bits, x = x.dtype.itemsize * 8, np.asarray(x).view(f"u{x.dtype.name}")
    for i in range(int(math.log2(bits))):
        x = x | x >> x.dtype.type(2**i)
    return bits - _ones(x.view(f"int{bits}"))


_ROUNDED = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
_INTEGERS = {"int": np.int32, "uint": np.int32, "ll": np.int64, "ull": np.int64}
_FLOATS = {"float": np.float32, "double": np.float64}
_TABLE: dict[str, Callable[..., Any]] = {
    **named(
        np,
        "sin cos tan sinh cosh tanh asin=arcsin acos=arccos atan=arctan atan2=arctan2 "
        "asinh=arcsinh acosh=arccosh atanh=arctanh exp exp2 expm1 log log2 log10 log1p "
        "sqrt cbrt pow=power fmod hypot",
    ),
    **named(
        np,
        "floor ceil trunc rint nearbyint=rint ldexp scalbn=ldexp fabs abs llabs=abs "
        "copysign nextafter fmax fmin isnan isnand=isnan isinf isinfd=isinf "
        "finite=isfinite isfinited=isfinite signbit signbitd=signbit",
    ),
    **named(
        np, "fdivide=divide div=divide add sub=subtract mul=multiply rcp=reciprocal"
    ),
    **named(
        special,
        "erf erfc erfcx erfinv erfcinv j0 j1 y0 y1 lgamma=gammaln tgamma=gamma "
        "normcdf=ndtr normcdfinv=ndtri cyl_bessel_i0=i0 cyl_bessel_i1=i1",
    ),
    "fma": _fma,
    "powi": _power_of_integer,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "round": _away,
    "llrint": lambda x: to_integer(np.rint(x), np.int64),
    "llround": lambda x: to_integer(_away(x), np.int64),
    "ilogb": lambda x: np.frexp(x)[1] - 1,
    "fdim": lambda x, y: np.where(x > y, x - y, x - x),
    "remainder": lambda x, y: x - y * np.rint(x / y),
    "saturate": lambda x: np.fmin(np.fmax(x, 0), 1),
    "mulhi": lambda x, y: multiply_high(x, y, unsigned=False),
    "umulhi": lambda x, y: multiply_high(x, y, unsigned=True),
    "popc": _ones,
    "popcll": _ones,
    "clz": _zeros,
    "clzll": _zeros,
    **{f"float_as_{to}": lambda x: x.view(np.int32) for to in ("int", "uint")},
    **{f"{of}_as_float": lambda x: x.view(np.float32) for of in ("int", "uint")},
    "double_as_longlong": lambda x: x.view(np.int64),
    "longlong_as_double": lambda x: x.view(np.float64),
}


def _conversion(name: str) -> Callable[..., Any] | None:
    """Find conversions like `float2int_rz` and `uint2double_rn`, or return None."""
    kinds, _, rounding = name.partition("_")
    source, _, target = kinds.partition("2")
    if source in _FLOATS and target in _INTEGERS and rounding in _ROUNDED:
        to, dtype = _ROUNDED[rounding], _INTEGERS[target]
        return lambda x: to_integer(to(x), dtype, unsigned=target[0] == "u")
    if source in _INTEGERS and target in _FLOATS and rounding == "rn":
        kind = np.dtype(_INTEGERS[source]).name
        own = f"u{kind}" if source[0] == "u" else kind
        return lambda x: x.view(own).astype(_FLOATS[target])
    return None


def function(symbol: str) -> Callable[..., Any]:
    """Return the NumPy function for a function of libdevice.

    Raises:
        Fault: It is not in the table.
    """
    name = symbol.removeprefix("__nv_")
    short = name.removeprefix("fast_").removesuffix("_rn")
    for known in (name, short, short.removesuffix("f")):
        if known in _TABLE:
            return _TABLE[known]
    # Arithmetic with its type and rounding in the name, like `fadd_rn` and `dsqrt_rn`.
    if name.endswith("_rn") and short[0] in "fd" and short[1:] in _TABLE:
        return _TABLE[short[1:]]
    if converted := _conversion(name):
        return converted
    raise Fault(f"can't run on a CPU: libdevice's `{symbol}` has no counterpart there")
