"""Operations of TTIR that need no memory, in NumPy.

Integers have no sign in TTIR: operations have. They are kept as signed arrays, and
what is unsigned looks at the same bits. Small floats are computed in float32 and
rounded, as on a GPU. A scalar is a NumPy scalar. No operation writes to an operand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from scipy import special

from jaxfn._triton import libdevice
from jaxfn._triton.errors import Fault
from jaxfn._triton.program import Operation

_DTYPES = {
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "index": np.int64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
DTYPES = {name: np.dtype(dtype) for name, dtype in _DTYPES.items()}
"""NumPy's type for each of TTIR."""
_FLOAT8 = {dtype for name, dtype in DTYPES.items() if name.startswith("f8")}
_SMALL = {DTYPES["f16"], DTYPES["bf16"], *_FLOAT8}


def kind(text: str) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of the elements that a type of TTIR names; pointers are int64."""
    text = re.split(r" -> | to ", text)[-1].strip().removeprefix("!")
    match = re.fullmatch(r"tensor<((?:\d+x)*)([^,]+)>", text)
    shape = tuple(int(n) for n in match[1].split("x") if n) if match else ()
    element = match[2] if match else text
    if "ptr<" in element:
        return shape, DTYPES["i64"]
    if element not in DTYPES:
        raise Fault(f"values of type `{text}` can't be computed on a CPU")
    return shape, DTYPES[element]


def real(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` of floats; small ones are computed in float32 and rounded."""

    def apply(*xs: Any) -> Any:
        dtype = xs[0].dtype
        if dtype in _SMALL:
            return fn(*(x.astype(np.float32) for x in xs)).astype(dtype)
        return fn(*xs)

    return apply


def _unsigned(x: Any) -> Any:
    return x if x.dtype == np.bool_ else x.view(f"u{x.dtype.name}")


def whole(fn: Callable[..., Any], *, unsigned: bool = False) -> Callable[..., Any]:
    """`fn` of integers. A bool is an integer of one bit, so True is -1 if signed."""

    def apply(*xs: Any) -> Any:
        dtype = xs[0].dtype
        if dtype == np.bool_:
            sign = 1 if unsigned else -1
            result = fn(*(np.int8(sign) * x.astype(np.int8) for x in xs))
            return result if result.dtype == np.bool_ else (result & 1).astype(bool)
        if unsigned:
            result = fn(*(_unsigned(x) for x in xs))
            return result if result.dtype == np.bool_ else result.view(dtype)
        return fn(*xs)

    return apply


def _divide(x: Any, y: Any) -> Any:
    return (x - np.fmod(x, y)) // y


_REAL = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.negf": np.negative,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "math.absf": np.abs,
    "math.ceil": np.ceil,
    "math.cos": np.cos,
    "math.erf": special.erf,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.floor": np.floor,
    "math.fma": libdevice.function("__nv_fma"),
    "math.log": np.log,
    "math.log2": np.log2,
    "math.rsqrt": lambda x: 1 / np.sqrt(x),
    "math.sin": np.sin,
    "math.sqrt": np.sqrt,
    "math.tanh": np.tanh,
    "tt.precise_divf": np.divide,
    "tt.approx_divf": np.divide,
    "tt.precise_sqrt": np.sqrt,
}
_SIGNED = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divsi": _divide,
    "arith.remsi": np.fmod,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "math.absi": np.abs,
}
_UNSIGNED = {
    "arith.divui": np.floor_divide,
    "arith.remui": np.fmod,
    "arith.shrui": np.right_shift,
    "arith.maxui": np.maximum,
    "arith.minui": np.minimum,
}
PLAIN: dict[str, Callable[..., Any]] = {
    **{name: real(fn) for name, fn in _REAL.items()},
    **{name: whole(fn) for name, fn in _SIGNED.items()},
    **{name: whole(fn, unsigned=True) for name, fn in _UNSIGNED.items()},
    "tt.mulhiui": lambda x, y: libdevice.multiply_high(x, y, unsigned=True),
    "arith.select": np.where,
    "tt.cat": lambda x, y: np.concatenate([x, y]),
    "tt.join": lambda x, y: np.stack([x, y], -1),
    "tt.split": lambda x: (x[..., 0], x[..., 1]),
    "tt.unsplat": lambda x: x.reshape(-1)[0],
    "tt.int_to_ptr": lambda x: x,
    "tt.ptr_to_int": lambda x: x,
    "gpu.barrier": lambda: None,
    "ttg.barrier": lambda: None,
    "ttg.local_barrier": lambda: None,
    "llvm.intr.assume": lambda _: None,
}
"""What computes an operation from its operands alone."""

_COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def _compare_whole(op: Operation) -> Callable[..., Any]:
    word = op.words[0]
    return whole(_COMPARE[word[-2:]], unsigned=word[0] == "u")


def _compare_real(op: Operation) -> Callable[..., Any]:
    word = op.words[0]
    if word in ("ord", "uno"):
        return lambda x, y: (np.isnan(x) | np.isnan(y)) ^ (word == "ord")
    if word == "one":
        return lambda x, y: (x < y) | (x > y)
    if word == "ueq":
        return lambda x, y: ~((x < y) | (x > y))
    if word[0] == "o" or word == "une":
        return _COMPARE[word[1:]]
    # Unordered: also true beside NaN.
    opposite = _COMPARE[_OPPOSITE[word[1:]]]
    return lambda x, y: ~opposite(x, y)


def _constant(op: Operation) -> Callable[[], Any]:
    text = op.words[0]
    shape, dtype = kind(op.types or "i1")
    inner = text.removeprefix("dense<").removesuffix(">")
    if inner in ("true", "false"):
        value = np.bool_(inner == "true")
    elif inner.startswith("0x"):
        size = f"<u{dtype.itemsize}"
        value = np.array(int(inner, 16)).astype(size).view(dtype)[()]
    elif re.fullmatch(r"-?[\d.]+(?:[eE][+-]?\d+)?", inner):
        number = float(inner) if "." in inner else int(inner)
        value = np.asarray(number).astype(dtype)[()]
    else:
        raise Fault(f"a constant like `{text}` can't be computed on a CPU")
    result = np.full(shape, value) if shape else value
    return lambda: result


def _saturated(x: Any, dtype: np.dtype) -> Any:
    """Floats of eight bits have no infinity on a GPU: the largest number is taken."""
    if dtype not in _FLOAT8:
        return x
    limit = float(ml_dtypes.finfo(dtype).max)
    return np.clip(x, x.dtype.type(-limit), x.dtype.type(limit))


def _towards_zero(x: Any, dtype: np.dtype) -> Any:
    x = np.asarray(x)
    near = x.astype(dtype)
    bits = near.view(f"u{dtype.itemsize}")
    larger = np.abs(near.astype(x.dtype)) > np.abs(x)
    return (bits - larger.astype(bits.dtype)).view(dtype)[()]


def _to_float(op: Operation) -> Callable[..., Any]:
    dtype = kind(op.types)[1]
    rounding = [*op.words, op.attributes.get("roundingmode", "")]
    if any(word in ("rtz", "toward_zero") for word in rounding):
        return lambda x: _towards_zero(_saturated(x, dtype), dtype)
    return lambda x: _saturated(x, dtype).astype(dtype)


def _extend(op: Operation) -> Callable[..., Any]:
    dtype = kind(op.types)[1]
    if op.name in ("arith.extui", "arith.uitofp"):
        return lambda x: _unsigned(x).astype(dtype)
    return lambda x: (-x.astype(np.int8) if x.dtype == np.bool_ else x).astype(dtype)


def _truncate(op: Operation) -> Callable[..., Any]:
    dtype = kind(op.types)[1]
    if dtype == np.bool_:
        return lambda x: (x & 1).astype(dtype)
    return lambda x: x.astype(dtype)


def _to_integer(op: Operation) -> Callable[..., Any]:
    dtype, unsigned = kind(op.types)[1], op.name == "arith.fptoui"
    if dtype == np.bool_:
        return lambda x: (libdevice.to_integer(x, np.int32) & 1).astype(dtype)
    return lambda x: libdevice.to_integer(x, dtype, unsigned=unsigned)


def _bitcast(op: Operation) -> Callable[..., Any]:
    dtype = kind(op.types)[1]
    return lambda x: x.view(dtype)


def _range(op: Operation) -> Callable[..., Any]:
    first, last = (int(op.attributes[k].split()[0]) for k in ("start", "end"))
    result = np.arange(first, last, dtype=np.int32)
    return lambda: result


def _broadcast(op: Operation) -> Callable[..., Any]:
    shape = kind(op.types)[0]
    return lambda x: np.broadcast_to(x, shape)


def _reshape(op: Operation) -> Callable[..., Any]:
    shape = kind(op.types)[0]
    return lambda x: np.reshape(x, shape)


def numbers(op: Operation, key: str) -> list[int]:
    """An attribute that is an array of integers."""
    text = op.attributes.get(key, "").partition(":")[2]
    return [int(n) for n in re.findall(r"-?\d+", text)]


def number(op: Operation, key: str) -> int:
    """An attribute that is an integer."""
    return int(op.attributes[key].split()[0])


def _transpose(op: Operation) -> Callable[..., Any]:
    order = numbers(op, "order")
    return lambda x: np.transpose(x, order)


def _expand(op: Operation) -> Callable[..., Any]:
    axis = number(op, "axis")
    return lambda x: np.expand_dims(x, axis)


def _gather(op: Operation) -> Callable[..., Any]:
    axis = number(op, "axis")
    return lambda x, index: np.take_along_axis(x, index, axis)


def _histogram(op: Operation) -> Callable[..., Any]:
    (count,), dtype = kind(op.types)

    def apply(x: Any, mask: Any = True) -> Any:
        inside = x[(x >= 0) & (x < count) & mask]
        return np.bincount(inside, minlength=count).astype(dtype)

    return apply


def _clamp(op: Operation) -> Callable[..., Any]:
    if "all" in op.words:
        return real(lambda x, low, high: np.minimum(np.maximum(x, low), high))
    return real(lambda x, low, high: np.fmin(np.fmax(x, low), high))


def _dot(_: Operation) -> Callable[..., Any]:
    def apply(a: Any, b: Any, c: Any) -> Any:
        wide = c.dtype if c.dtype not in _SMALL else np.dtype(np.float32)
        product = np.matmul(a.astype(wide), b.astype(wide))
        return (product + c.astype(wide)).astype(c.dtype)

    return apply


def _extern(op: Operation) -> Callable[..., Any]:
    fn, dtype = libdevice.function(op.symbol), kind(op.types)[1]
    return lambda *xs: fn(*xs).astype(dtype)


def _poison(op: Operation) -> Callable[..., Any]:
    if "ptr<" in op.types or "tensor<" in op.types:
        shape, dtype = kind(op.types)
        return lambda: np.zeros(shape, dtype)
    dtype = kind(op.types)[1]
    return lambda: dtype.type(0)


def _add_pointer(op: Operation) -> Callable[..., Any]:
    size = item_size(op.types)
    return lambda pointer, offset: pointer + offset.astype(np.int64) * size


def pointee(types: str) -> str:
    """The type that a pointer points to."""
    found = re.search(r"ptr<(tensor<[^>]*>|[^<>,]+)", types)
    if found is None:
        raise Fault(f"`{types}` has no pointer")
    return found[1]


def item_size(types: str) -> np.int64:
    """Size of the elements that a pointer points to, in bytes."""
    return np.int64(kind(pointee(types))[1].itemsize)


MADE: dict[str, Callable[[Operation], Callable[..., Any]]] = {
    "arith.cmpi": _compare_whole,
    "arith.cmpf": _compare_real,
    "arith.constant": _constant,
    "arith.extf": _to_float,
    "arith.truncf": _to_float,
    "tt.fp_to_fp": _to_float,
    "arith.extsi": _extend,
    "arith.extui": _extend,
    "arith.sitofp": _extend,
    "arith.uitofp": _extend,
    "arith.index_cast": _truncate,
    "arith.trunci": _truncate,
    "arith.fptosi": _to_integer,
    "arith.fptoui": _to_integer,
    "arith.bitcast": _bitcast,
    "tt.bitcast": _bitcast,
    "tt.make_range": _range,
    "tt.splat": _broadcast,
    "tt.broadcast": _broadcast,
    "tt.reshape": _reshape,
    "tt.expand_dims": _expand,
    "tt.trans": _transpose,
    "tt.gather": _gather,
    "tt.histogram": _histogram,
    "tt.clampf": _clamp,
    "tt.dot": _dot,
    "tt.extern_elementwise": _extern,
    "tt.addptr": _add_pointer,
    "ub.poison": _poison,
}
"""What computes an operation, made from its words, attributes and types."""
