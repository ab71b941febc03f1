"""Operations of TTIR that need no memory, in NumPy.

Integers have no sign in TTIR; operations have. Here integers are signed arrays, and an
unsigned operation views the same bits. As on a GPU, small floats are computed in
float32 and rounded. A scalar is a NumPy scalar. No operation writes to an operand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from scipy import special

from jaxfn._triton.errors import Fault
from jaxfn._triton.libdevice import function, multiply_high, named, to_integer
from jaxfn._triton.program import DTYPES, Operation

_FLOAT8 = {dtype for name, dtype in DTYPES.items() if name.startswith("f8")}
_SMALL = {DTYPES["f16"], DTYPES["bf16"], *_FLOAT8}
_BOOL = np.dtype(bool)


def real(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Make `fn` an operation on floats; small ones are computed in float32."""

    def apply(*xs: Any) -> Any:
        dtype = xs[0].dtype
        if dtype in _SMALL:
            return fn(*(x.astype(np.float32) for x in xs)).astype(dtype)
        return fn(*xs)

    return apply


def _unsigned(x: Any) -> Any:
    return x if x.dtype == _BOOL else x.view(f"u{x.dtype.name}")


def whole(fn: Callable[..., Any], *, unsigned: bool = False) -> Callable[..., Any]:
    """Make `fn` an operation on integers. A bool has one bit, so signed True is -1."""

    def apply(*xs: Any) -> Any:
        dtype = xs[0].dtype
        if dtype == _BOOL:
            sign = np.int8(1 if unsigned else -1)
            result = fn(*(sign * x.astype(np.int8) for x in xs))
            return result if result.dtype == _BOOL else (result & 1).astype(bool)
        if unsigned:
            result = fn(*(_unsigned(x) for x in xs))
            return result if result.dtype == _BOOL else result.view(dtype)
        return fn(*xs)

    return apply


def _select(condition: Any, x: Any, y: Any) -> Any:
    # Pointers to blocks are no arrays.
    if np.ndim(condition) == 0:
        return x if condition else y
    return np.where(condition, x, y)


_REAL = {
    **named(
        np,
        "addf=add subf=subtract mulf=multiply divf=divide remf=fmod negf=negative "
        "maxnumf=fmax minnumf=fmin maximumf=maximum minimumf=minimum",
        "arith.",
    ),
    **named(
        np,
        "absf=abs ceil floor cos sin exp exp2 log log2 sqrt tanh round=rint",
        "math.",
    ),
    **named(np, "precise_divf=divide approx_divf=divide precise_sqrt=sqrt", "tt."),
    "math.erf": special.erf,
    "math.fma": function("__nv_fma"),
    "math.rsqrt": function("__nv_rsqrt"),
}
_SIGNED = {
    **named(
        np,
        "addi=add subi=subtract muli=multiply remsi=fmod andi=bitwise_and "
        "ori=bitwise_or xori=bitwise_xor shli=left_shift shrsi=right_shift "
        "maxsi=maximum minsi=minimum",
        "arith.",
    ),
    "math.absi": np.abs,
    "arith.divsi": lambda x, y: (x - np.fmod(x, y)) // y,
}
_UNSIGNED = named(
    np,
    "divui=floor_divide remui=fmod shrui=right_shift maxui=maximum minui=minimum",
    "arith.",
)
PLAIN: dict[str, Callable[..., Any]] = {
    **{name: real(fn) for name, fn in _REAL.items()},
    **{name: whole(fn) for name, fn in _SIGNED.items()},
    **{name: whole(fn, unsigned=True) for name, fn in _UNSIGNED.items()},
    "tt.mulhiui": lambda x, y: multiply_high(x, y, unsigned=True),
    "arith.select": _select,
    "tt.cat": lambda x, y: np.concatenate([x, y]),
    "tt.join": lambda x, y: np.stack([x, y], -1),
    "tt.split": lambda x: (x[..., 0], x[..., 1]),
    "tt.unsplat": lambda x: x.reshape(-1)[0],
    "tt.int_to_ptr": lambda x: x,
    "tt.ptr_to_int": lambda x: x,
    "gpu.barrier": lambda: None,
    "ttg.barrier": lambda: None,
    "llvm.intr.assume": lambda _: None,
}
"""The functions of operations that need only their operands."""

_COMPARE = named(np, "eq=equal ne=not_equal lt=less le=less_equal gt=greater")
_COMPARE["ge"] = np.greater_equal
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def _compare_whole(op: Operation, x: Any, y: Any) -> Any:
    word = op.words[0]
    return whole(_COMPARE[word[-2:]], unsigned=word[0] == "u")(x, y)


def _compare_real(op: Operation, x: Any, y: Any) -> Any:
    word = op.words[0]
    if word in ("ord", "uno"):
        return (np.isnan(x) | np.isnan(y)) ^ (word == "ord")
    if word in ("one", "ueq"):
        return ((x < y) | (x > y)) ^ (word == "ueq")
    if word[0] == "o" or word == "une":
        return _COMPARE[word[1:]](x, y)
    # Unordered comparisons are true for NaN.
    return ~_COMPARE[_OPPOSITE[word[1:]]](x, y)


def _constant(op: Operation) -> Any:
    if "value" not in op.attributes:
        text = " ".join(op.words).removeprefix("dense<").removesuffix(">")
        op.types = op.types or "i1"
        if text.startswith("0x"):
            bits = np.array(int(text, 16)).astype(f"u{op.dtype.itemsize}")
            value = bits.view(op.dtype)[()]
        elif re.fullmatch(r"true|false|-?\d[\d.]*(e[+-]?\d+)?", text, re.IGNORECASE):
            number = text == "true" if text[0] in "tf" else float(text)
            number = int(text) if re.fullmatch(r"-?\d+", text) else number
            value = np.asarray(number).astype(op.dtype)[()]
        else:
            raise Fault(f"can't run on a CPU: a constant `{text}`")
        op.attributes["value"] = np.full(op.shape, value) if op.shape else value
    return op.attributes["value"]


def _to_float(op: Operation, x: Any) -> Any:
    rounding = [*op.words, op.attributes.get("roundingmode", "")]
    if "rtz" in rounding or "toward_zero" in rounding:
        near = np.asarray(x.astype(op.dtype))
        larger = np.abs(near.astype(x.dtype)) > np.abs(x)
        bits = near.view(f"u{op.dtype.itemsize}")
        return (bits - larger.astype(bits.dtype)).view(op.dtype)[()]
    if op.dtype in _FLOAT8:
        # A GPU takes the largest number instead of infinity.
        limit = float(ml_dtypes.finfo(op.dtype).max)
        x = np.clip(x.astype(np.float32), np.float32(-limit), np.float32(limit))
    return x.astype(op.dtype)


def _from_signed(op: Operation, x: Any) -> Any:
    return (-x.astype(np.int8) if x.dtype == _BOOL else x).astype(op.dtype)


def _to_integer(op: Operation, x: Any) -> Any:
    if op.dtype == _BOOL:
        return (to_integer(x, np.int32) & 1).astype(bool)
    return to_integer(x, op.dtype, unsigned=op.name == "arith.fptoui")


def _range(op: Operation) -> Any:
    return np.arange(op.attributes["start"], op.attributes["end"], dtype=np.int32)


def _histogram(op: Operation, x: Any, mask: Any = True) -> Any:
    inside = x[(x >= 0) & (x < op.shape[0]) & mask]
    return np.bincount(inside, minlength=op.shape[0]).astype(op.dtype)


def _clamp(op: Operation, x: Any, low: Any, high: Any) -> Any:
    if "all" in op.words:
        return real(lambda x, y, z: np.minimum(np.maximum(x, y), z))(x, low, high)
    return real(lambda x, y, z: np.fmin(np.fmax(x, y), z))(x, low, high)


def _dot(_op: Operation, a: Any, b: Any, c: Any) -> Any:
    wide = np.dtype(np.float32) if c.dtype in _SMALL else c.dtype
    product = np.matmul(a.astype(wide), b.astype(wide))
    return (product + c.astype(wide)).astype(c.dtype)


WITH_OPERATION: dict[str, Callable[..., Any]] = {
    "arith.cmpi": _compare_whole,
    "arith.cmpf": _compare_real,
    "arith.constant": _constant,
    **dict.fromkeys(("arith.extf", "arith.truncf", "tt.fp_to_fp"), _to_float),
    **dict.fromkeys(("arith.extsi", "arith.sitofp"), _from_signed),
    **dict.fromkeys(
        ("arith.extui", "arith.uitofp"), lambda op, x: _unsigned(x).astype(op.dtype)
    ),
    "arith.trunci": lambda op, x: (x & 1 if op.dtype == _BOOL else x).astype(op.dtype),
    "arith.index_cast": lambda op, x: x.astype(op.dtype),
    **dict.fromkeys(("arith.fptosi", "arith.fptoui"), _to_integer),
    **dict.fromkeys(("arith.bitcast", "tt.bitcast"), lambda op, x: x.view(op.dtype)),
    **dict.fromkeys(
        ("tt.splat", "tt.broadcast"), lambda op, x: np.broadcast_to(x, op.shape)
    ),
    "ub.poison": lambda op: np.zeros(op.shape, op.dtype)[()],
    "tt.make_range": _range,
    "tt.reshape": lambda op, x: np.reshape(x, op.shape),
    "tt.expand_dims": lambda op, x: np.expand_dims(x, op.attributes["axis"]),
    "tt.trans": lambda op, x: np.transpose(x, op.attributes["order"]),
    "tt.gather": lambda op, x, i: np.take_along_axis(
        x, np.where(i < 0, x.size, i), op.attributes["axis"]
    ),
    "tt.histogram": _histogram,
    "tt.clampf": _clamp,
    "tt.dot": _dot,
    "tt.extern_elementwise": lambda op, *x: function(op.symbol)(*x).astype(op.dtype),
    "tt.addptr": lambda op, x, i: x + i.astype(np.int64) * op.pointee.itemsize,
}
"""The functions of operations that also need words, attributes or types."""
