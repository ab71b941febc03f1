"""Functions of CUDA's libdevice, and of Triton's `math`, in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from jaxfn._triton.errors import Fault


def to_integer(x: Any, dtype: Any, *, unsigned: bool = False) -> Any:
    """Convert as a GPU does: towards zero, to the nearest limit, and NaN to zero."""
    kind = np.dtype(dtype)
    target = np.dtype(f"u{kind.name}") if unsigned else kind
    limits, x = np.iinfo(target), np.asarray(x, np.float64)
    beyond = 2.0 ** (limits.bits if unsigned else limits.bits - 1)
    inside = np.where((x < beyond) & (x >= limits.min), x, 0).astype(target)
    result = np.where(x >= beyond, target.type(limits.max), inside)
    result = np.where(x < limits.min, target.type(limits.min), result)
    return result.view(kind)[()]


def _power_of_integer(x: Any, n: Any) -> Any:
    return np.power(x.astype(np.float64), n).astype(x.dtype)


def _round_away(x: Any) -> Any:
    whole = np.trunc(x)
    return np.where(abs(x - whole) >= 0.5, whole + np.copysign(1, x), whole)


def _rounding(to: Callable[[Any], Any], dtype: Any, unsigned: bool) -> Any:
    return lambda x: to_integer(to(x), dtype, unsigned=unsigned)


_TABLE: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(np, name)
        for name in (
            "sin cos tan sinh cosh tanh exp exp2 expm1 log log2 log10 log1p sqrt cbrt "
            "floor ceil trunc rint fmod hypot copysign fmax fmin nextafter ldexp"
        ).split()
    },
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "pow": np.power,
    "powi": _power_of_integer,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "round": _round_away,
    "nearbyint": np.rint,
    "llrint": _rounding(np.rint, np.int64, False),
    "llround": _rounding(_round_away, np.int64, False),
    "fabs": np.abs,
    "abs": np.abs,
    "fdim": lambda x, y: np.where(x > y, x - y, x - x),
    "fma": lambda x, y, z: _fma(x, y, z),
    "remainder": lambda x, y: x - y * np.rint(x / y),
    "saturate": lambda x: np.fmin(np.fmax(x, 0), 1),
    "erf": special.erf,
    "erfc": special.erfc,
    "erfcx": special.erfcx,
    "erfinv": special.erfinv,
    "erfcinv": special.erfcinv,
    "normcdf": special.ndtr,
    "normcdfinv": special.ndtri,
    "lgamma": special.gammaln,
    "tgamma": special.gamma,
    "j0": special.j0,
    "j1": special.j1,
    "y0": special.y0,
    "y1": special.y1,
    "cyl_bessel_i0": special.i0,
    "cyl_bessel_i1": special.i1,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinited": np.isfinite,
    "isfinite": np.isfinite,
    "finite": np.isfinite,
    "signbit": np.signbit,
    "signbitd": np.signbit,
    "fast_divide": np.divide,
    "div": np.divide,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "rcp": np.reciprocal,
    "mulhi": lambda x, y: multiply_high(x, y, unsigned=False),
    "umulhi": lambda x, y: multiply_high(x, y, unsigned=True),
    "popc": lambda x: np.bitwise_count(x.view(f"u{x.dtype.name}")).astype(np.int32),
    "float_as_int": lambda x: x.view(np.int32),
    "int_as_float": lambda x: x.view(np.float32),
    "float_as_uint": lambda x: x.view(np.int32),
    "uint_as_float": lambda x: x.view(np.float32),
    "double_as_longlong": lambda x: x.view(np.int64),
    "longlong_as_double": lambda x: x.view(np.float64),
}
_ROUNDED = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
_INTEGERS = {"int": np.int32, "uint": np.int32, "ll": np.int64, "ull": np.int64}
_FLOATS = {"float": np.float32, "double": np.float64}


def _fma(x: Any, y: Any, z: Any) -> Any:
    wide = np.float64 if x.dtype.itemsize < 8 else np.longdouble
    return (x.astype(wide) * y.astype(wide) + z.astype(wide)).astype(x.dtype)


def multiply_high(x: Any, y: Any, *, unsigned: bool) -> Any:
    """The upper half of a product of integers."""
    bits = x.dtype.itemsize * 8
    kind = "u" if unsigned else ""
    if bits < 64:
        wide, own = f"{kind}int{2 * bits}", f"{kind}int{bits}"
        product = x.view(own).astype(wide) * y.view(own).astype(wide)
        return (product >> np.dtype(wide).type(bits)).astype(own).view(x.dtype)
    x, y = np.asarray(x).view(f"{kind}int64"), np.asarray(y).view(f"{kind}int64")
    high = x.astype(object) * y.astype(object) >> 64
    return np.asarray(high).astype(x.dtype).view(np.int64)[()]


def _conversion(name: str) -> Callable[..., Any] | None:
    """Functions like `float2int_rn` and `uint2float_rz`."""
    kinds, _, rounding = name.partition("_")
    source, _, target = kinds.partition("2")
    if source in _FLOATS and target in _INTEGERS and rounding in _ROUNDED:
        return _rounding(_ROUNDED[rounding], _INTEGERS[target], target[0] == "u")
    exact = (source, target) in (("int", "double"), ("uint", "double"))
    if source in _INTEGERS and target in _FLOATS and (rounding == "rn" or exact):
        sign = "u" if source[0] == "u" else ""
        whole = f"{sign}int{np.dtype(_INTEGERS[source]).itemsize * 8}"
        return lambda x: x.view(whole).astype(_FLOATS[target])
    if (source, target, rounding) == ("double", "float", "rn"):
        return lambda x: x.astype(np.float32)
    return None


def function(symbol: str) -> Callable[..., Any]:
    """What computes a function of libdevice.

    Raises:
        Fault: It is not in the table.
    """
    name = symbol.removeprefix("__nv_")
    fast = name.removeprefix("fast_").removesuffix("f")
    plain = name.removesuffix("_rn")
    for known in (name, name.removesuffix("f"), fast, plain, plain[1:]):
        if known in _TABLE and (known != plain[1:] or name[:1] in "fd"):
            return _TABLE[known]
    if converted := _conversion(name):
        return converted
    raise Fault(f"libdevice's `{symbol}` can't run on a CPU")
