"""Each operation of `triton.language` against a formula in NumPy."""

import functools
import math

import ml_dtypes
import numpy as np
import pytest
import triton.language as tl
from scipy import special

from jaxfn._triton.errors import Fault, LaunchError
from jaxfn._triton.interpreter import run
from jaxfn._triton.operations import PLAIN, WITH_OPERATION
from jaxfn._triton.program import Operation
from tests.triton.kernels import (
    FLOATS,
    SIGNED,
    SIZE,
    UNSIGNED,
    compute,
    dtype,
    jit,
    values,
)


def agrees(found, wanted, ulps=1):
    """Equal, or for floats within units of the last place of its type."""
    of = found.dtype
    with np.errstate(all="ignore"):
        wanted = np.asarray(wanted).astype(of)
    if of.kind in "biu":
        np.testing.assert_array_equal(found, wanted)
        return
    step = float(ml_dtypes.finfo(of).eps) * ulps
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=step, atol=step)


ARITHMETIC = {
    "x + y": np.add,
    "x - y": np.subtract,
    "x * y": np.multiply,
    "-x + 0 * y": lambda x, y: -x,
    "tl.maximum(x, y)": np.maximum,
    "tl.minimum(x, y)": np.minimum,
    "tl.where(x > y, x, y * 2)": lambda x, y: np.where(x > y, x, y * 2),
    "tl.where(x <= y, x, y)": lambda x, y: np.where(x <= y, x, y),
    "x * 3 + 1": lambda x, y: x * 3 + 1,
    "2 - x": lambda x, y: 2 - x,
    "tl.abs(x)": lambda x, y: np.abs(x),
}


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("expression", ARITHMETIC)
def test_float_arithmetic(expression, name):
    x, y = values(name), values(name, 1)
    found = compute(expression, x, y, result=name)
    wide = [v.astype(np.float64) for v in (x, y)]
    agrees(found, ARITHMETIC[expression](*wide), ulps=4)


@pytest.mark.parametrize("name", SIGNED + UNSIGNED)
@pytest.mark.parametrize("expression", ARITHMETIC)
def test_integer_arithmetic_wraps(expression, name):
    x, y = values(name), values(name, 1)
    found = compute(expression, x, y, result=name)
    with np.errstate(all="ignore"):
        agrees(found, ARITHMETIC[expression](x, y))


def whole(fn):
    """Exact arithmetic of Python's integers."""
    pairs = functools.partial(zip, strict=True)
    return lambda x, y: np.array([fn(int(a), int(b)) for a, b in pairs(x, y)], object)


INTEGERS = {
    "x // y": whole(lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
    "x % y": whole(lambda a, b: int(math.copysign(abs(a) % abs(b), a))),
    "x & y": np.bitwise_and,
    "x | y": np.bitwise_or,
    "x ^ y": np.bitwise_xor,
    "~x + 0 * y": lambda x, y: ~x,
    "x << 3": lambda x, y: x << 3,
    "x >> 3": lambda x, y: x >> 3,
    "tl.where(x < y, 1, 0)": lambda x, y: x < y,
    "tl.where(x == y, 1, 0)": lambda x, y: x == y,
}


@pytest.mark.parametrize("name", ["int32", "uint32", "int64", "int8", "uint8"])
@pytest.mark.parametrize("expression", INTEGERS)
def test_integers(expression, name):
    x, y = values(name), values(name, 1)
    y = np.where(y == 0, np.ones_like(y), y)
    if expression == "x % y" and name in ("int64", "uint64"):
        x, y = x // 2**20, y // 2**30 + 1
    wanted = INTEGERS[expression](x, y)
    agrees(compute(expression, x, y, result=name), wanted)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "==", "!="])
def test_comparisons_beside_nan(sign, name):
    x, y = values(name), values(name)
    x[3:9], y[7:12], y[20:30] = np.nan, np.nan, 0.5
    found = compute(f"x {sign} y", x, y, result="bool")
    with np.errstate(all="ignore"):
        agrees(found, eval(f"x {sign} y", {"x": x, "y": y}))


@pytest.mark.parametrize("name", FLOATS)
def test_division(name):
    x, y = values(name), values(name, 1, 1.0, 3.0)
    agrees(compute("x / y", x, y, result=name), x.astype(float) / y.astype(float))
    x = x.astype(np.float32)
    y = y.astype(np.float32)
    agrees(compute("tl.fdiv(x, y)", x, y, result="float32"), x / y)
    agrees(compute("tl.div_rn(x, y)", x, y, result="float32"), x / y)
    agrees(compute("x % y", x, y, result="float32"), np.fmod(x, y))


def test_division_by_zero_and_overflow_are_silent():
    x, y = values("int32"), np.zeros(SIZE, np.int32)
    assert (
        compute("tl.where(y == 0, 7, x // y)", x, y, result="int32").tolist()
        == [7] * SIZE
    )
    big = np.full(SIZE, 3e38, np.float32)
    assert np.isinf(compute("x * x", big, result="float32")).all()
    assert np.isinf(compute("x.to(tl.float16)", big, result="float16")).all()


def test_maximum_beside_nan():
    x, y = values("float32"), values("float32", 1)
    x[:4], y[2:6] = np.nan, np.nan
    found = compute("tl.maximum(x, y)", x, y, result="float32")
    np.testing.assert_array_equal(found, np.fmax(x, y))
    found = compute(
        "tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)", x, y, result="float32"
    )
    np.testing.assert_array_equal(found, np.maximum(x, y))
    found = compute("tl.clamp(x, -1.0, 1.0)", x, result="float32")
    np.testing.assert_array_equal(found[4:], np.clip(x[4:], -1, 1))
    found = compute("tl.max(x, 0)", x, result="float32", size=1)
    assert found == np.nanmax(x)


MATH = {
    "tl.exp(x)": np.exp,
    "tl.exp2(x)": np.exp2,
    "tl.log(tl.abs(x) + 1)": lambda x: np.log(abs(x) + 1),
    "tl.log2(tl.abs(x) + 1)": lambda x: np.log2(abs(x) + 1),
    "tl.sin(x)": np.sin,
    "tl.cos(x)": np.cos,
    "tl.sqrt(tl.abs(x))": lambda x: np.sqrt(abs(x)),
    "tl.sqrt_rn(tl.abs(x))": lambda x: np.sqrt(abs(x)),
    "tl.rsqrt(tl.abs(x) + 1)": lambda x: 1 / np.sqrt(abs(x) + 1),
    "tl.erf(x)": special.erf,
    "tl.floor(x)": np.floor,
    "tl.ceil(x)": np.ceil,
    "tl.sigmoid(x)": special.expit,
    "tl.softmax(x)": special.softmax,
    "tl.fma(x, x, x)": lambda x: x * x + x,
}


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("expression", MATH)
def test_math(expression, name):
    if "_rn" in expression and name == "float64":
        pytest.skip("Triton has none")
    x = values(name)
    found = compute(expression, x, result=name)
    agrees(found, MATH[expression](x.astype(np.float64)), ulps=16)


LIBDEVICE = {
    "tanh": np.tanh,
    "erf": special.erf,
    "exp": np.exp,
    "expm1": np.expm1,
    "log1p(tl.abs(x))": lambda x: np.log1p(abs(x)),
    "sinh": np.sinh,
    "atan": np.arctan,
    "atan2(x, x + 1.5)": lambda x: np.arctan2(x, x + 1.5),
    "asin(x / 5)": lambda x: np.arcsin(x / 5),
    "pow(tl.abs(x), x)": lambda x: abs(x) ** x,
    "pow(x, tl.full([N], 3, tl.int32))": lambda x: x**3,
    "fmod(x, x * 0 + 1.5)": lambda x: np.fmod(x, 1.5),
    "lgamma(tl.abs(x) + 1)": lambda x: special.gammaln(abs(x) + 1),
    "rsqrt(tl.abs(x) + 1)": lambda x: 1 / np.sqrt(abs(x) + 1),
    "round": lambda x: np.copysign(np.floor(abs(x) + 0.5), x),
    "nearbyint": np.rint,
    "trunc": np.trunc,
    "copysign(x, -x)": lambda x: -x,
    "fast_expf": np.exp,
    "fast_dividef(x, tl.abs(x) + 1)": lambda x: x / (abs(x) + 1),
    "float2int_rn": np.rint,
    "float2int_rz": np.trunc,
    "float2int_rd": np.floor,
    "float2uint_rz": lambda x: np.maximum(np.trunc(x), 0),
    "isnan(x).to(tl.float32)": np.isnan,
    "div_rn(x, tl.abs(x) + 1)": lambda x: x / (abs(x) + 1),
    "normcdf": special.ndtr,
    "exp10": lambda x: 10**x,
    "ilogb(tl.abs(x) + 1)": lambda x: np.floor(np.log2(abs(x) + 1)),
    "signbit(x)": lambda x: x < 0,
    "sinpi": lambda x: np.sin(np.pi * x),
    "cbrt": np.cbrt,
}


@pytest.mark.parametrize("call", LIBDEVICE)
def test_libdevice(call):
    x = values("float32")
    text = call if "(" in call else f"{call}(x)"
    found = compute(f"libdevice.{text}", x, result="float32")
    agrees(found, LIBDEVICE[call](x.astype(np.float64)), ulps=64)


def test_integers_of_libdevice():
    x = values("int32")
    ones = compute("libdevice.popc(x)", x, result="int32")
    agrees(ones, [(int(a) & 0xFFFFFFFF).bit_count() for a in x])
    zeros = compute("libdevice.clz(x >> 5)", abs(x), result="int32")
    agrees(zeros, [32 - int(a >> 5).bit_length() for a in abs(x)])
    high = compute("tl.umulhi(x, y)", x.view("u4"), x.view("u4"), result="uint32")
    agrees(high, [int(a) * int(a) >> 32 for a in x.view("u4")])
    y = values("uint64")
    high = compute("tl.umulhi(x, x)", y, result="uint64")
    agrees(high, np.array([int(a) * int(a) >> 64 for a in y], np.uint64))


KINDS = ("bool", "int8", "int32", "int64", "uint8", "uint32", *FLOATS, "float64")


@pytest.mark.parametrize("source", KINDS)
def test_conversions(source):
    x = np.arange(-32, 32, dtype=np.float64) * (1.37 if source in FLOATS else 1)
    x = (abs(x) if source[0] in "ub" else x).astype(dtype(source))
    for target in KINDS:
        found = compute("x", x, result=target)
        wide = x.astype(np.float64)
        if target == "bool":
            wide = wide != 0
        elif dtype(target).kind in "iu":
            wide = np.trunc(wide)
            if source in (*FLOATS, "float64") and target[0] == "u":
                wide = np.maximum(wide, 0)
            wide = wide.astype(np.int64)
        agrees(found, wide.astype(dtype(target)), ulps=0)


@pytest.mark.parametrize("target", ["bfloat16", "float16"])
def test_rounds_to_nearest_even(target):
    x = np.arange(SIZE, dtype=np.float32) / 4 + (128 if target == "bfloat16" else 1024)
    agrees(compute("x", x, result=target), x.astype(dtype(target)), ulps=0)
    found = compute(f"x.to(tl.{target}, fp_downcast_rounding='rtz')", -x, result=target)
    step = 1.0
    agrees(found, -np.floor(x / step) * step, ulps=0)


@pytest.mark.parametrize("target", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_eight_bits(target):
    kind = {"float8_e4m3fn": "tl.float8e4nv", "float8_e5m2": "tl.float8e5"}[target]
    x = values("float32")
    x[:3] = 1e9, -1e9, np.nan
    found = compute(f"x.to({kind})", x, result=target)
    limit = float(ml_dtypes.finfo(target).max)
    wanted = np.clip(x, -limit, limit).astype(dtype(target))
    np.testing.assert_array_equal(found.astype("f4"), wanted.astype("f4"))
    back = compute("x.to(tl.float32) * 2", found, result="float32")
    np.testing.assert_array_equal(back, found.astype("f4") * 2)


def test_floats_beyond_integers():
    x = np.array([3e9, -3e9, np.nan, np.inf, -np.inf, 1.9, -1.9, 5e18] * 8, np.float32)
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    found = compute("x.to(tl.int32)", x, result="int32")[:7]
    assert found.tolist() == [high, low, 0, high, low, 1, -1]
    # Of 64 bits, before or after, NaN becomes the sign bit (PTX ISA, `cvt`).
    long = compute("x.to(tl.int64)", x, result="int64")[2:4]
    assert long.tolist() == [np.iinfo(np.int64).min, np.iinfo(np.int64).max]
    double = compute("x.to(tl.float64).to(tl.int32)", x, result="int32")[:3]
    assert double.tolist() == [high, low, low]


def test_gather_takes_no_index_from_the_end():
    with pytest.raises(LaunchError, match="out of bounds"):
        compute(
            "tl.gather(x, tl.arange(0, 64) - 1, 0)", values("float32"), result="float32"
        )


@pytest.mark.parametrize("pair", [("float32", "int32"), ("bfloat16", "int16")])
def test_bitcasts(pair):
    source, target = pair
    x = values(source)
    found = compute(f"x.to(tl.{target}, bitcast=True)", x, result=target)
    np.testing.assert_array_equal(found, x.view(dtype(target)))


REDUCTIONS = {
    "tl.sum(x, 0)": np.sum,
    "tl.max(x, 0)": np.max,
    "tl.min(x, 0)": np.min,
    "tl.argmax(x, 0)": np.argmax,
    "tl.argmin(x, 0)": np.argmin,
    "tl.max(x, 0, return_indices=True)[1]": np.argmax,
}


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "int32", "uint8"])
@pytest.mark.parametrize("expression", REDUCTIONS)
def test_reductions(expression, name):
    x = values(name)
    if dtype(name).kind in "iu":
        x = x % 50
    found = compute(expression, x, result="float32", size=1)
    wanted = REDUCTIONS[expression](x.astype(np.float64))
    assert abs(found[0] - wanted) <= 5e-2 * (1 + abs(wanted)) * (name in FLOATS)


def test_ties_go_to_the_left():
    x = np.array([1, 5, 5, 0, 0, 5, 3, 3], np.float32)
    assert compute("tl.argmax(x, 0)", x, result="int32", size=1) == 1
    assert compute("tl.argmin(x, 0)", x, result="int32", size=1) == 3


SQUARES = {
    "tl.sum(m, 0)": lambda m: m.sum(0),
    "tl.sum(m, 1)": lambda m: m.sum(1),
    "tl.max(m, 1)": lambda m: m.max(1),
    "tl.sum(tl.sum(m, 1, keep_dims=True), 1)": lambda m: m.sum(1),
    "tl.sum(tl.cumsum(m, 0), 0)": lambda m: m.cumsum(0).sum(0),
    "tl.sum(tl.cumsum(m, 1, reverse=True), 0)": lambda m: (
        m[:, ::-1].cumsum(1)[:, ::-1].sum(0)
    ),
    "tl.sum(tl.trans(m), 0)": lambda m: m.sum(1),
    "tl.sum(tl.permute(m, (1, 0)), 0)": lambda m: m.sum(1),
    "tl.sum(m.T, 0)": lambda m: m.sum(1),
    "tl.sum(m * tl.arange(0, 8)[:, None], 0)": lambda m: (
        m * np.arange(8)[:, None]
    ).sum(0),
    "tl.sum(m + tl.arange(0, 8)[None, :], 1)": lambda m: (m + np.arange(8)).sum(1),
    "tl.sum(tl.flip(m, 1) * tl.arange(0, 8)[None, :], 1)": lambda m: (
        m[:, ::-1] * np.arange(8)
    ).sum(1),
    "tl.sum(tl.sort(m, 1) * tl.arange(0, 8)[None, :], 1)": lambda m: (
        np.sort(m) * np.arange(8)
    ).sum(1),
    "tl.sum(tl.gather(m, (tl.zeros([8, 8], tl.int32) + 3), 1), 1)": lambda m: (
        8 * m[:, 3]
    ),
    "tl.sum(tl.reshape(tl.broadcast_to(m[:, :, None], [8, 8, 2]), [8, 16]), 1)": (
        lambda m: 2 * m.sum(1)
    ),
}


@pytest.mark.parametrize("name", ["float32", "int32", "bfloat16"])
@pytest.mark.parametrize("expression", SQUARES)
def test_shapes_and_axes(expression, name):
    x = (values("float32") * 4).round().astype(dtype(name))
    found = compute(
        expression, x, result="float32", size=8, before="m = tl.reshape(x, [8, 8])"
    )
    wanted = SQUARES[expression](x.astype(np.float64).reshape(8, 8))
    np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2)


ORDERS = {
    "tl.sort(x)": np.sort,
    "tl.sort(x, descending=True)": lambda x: np.sort(x)[::-1],
    "tl.flip(x, 0)": lambda x: x[::-1],
    "tl.cumsum(x, 0)": np.cumsum,
    "tl.cumprod(1 + x / 64, 0)": lambda x: np.cumprod(1 + x / 64),
    "tl.interleave(*tl.split(tl.reshape(x, [32, 2])))": lambda x: x,
    "tl.reshape(tl.join(*tl.split(tl.reshape(x, [32, 2]))), [64])": lambda x: x,
    "tl.ravel(tl.trans(tl.reshape(x, [8, 8])))": lambda x: x.reshape(8, 8).T.ravel(),
    "tl.gather(x, (tl.arange(0, 64) * 7) % 64, 0)": lambda x: x[np.arange(64) * 7 % 64],
}


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.parametrize("expression", ORDERS)
def test_orders(expression, name):
    if name == "bfloat16" and "cum" in expression:
        pytest.skip("the order of roundings differs")
    x = values(name)
    agrees(compute(expression, x, result=name), ORDERS[expression](x.astype("f8")), 32)


def test_cat_and_histogram():
    x, y = values("int32") % 16, values("int32", 1) % 16
    both = compute("tl.cat(x, y, can_reorder=True)", x, y, result="int32", size=128)
    assert sorted(both) == sorted([*x, *y])
    counts = compute("tl.histogram(x, 16)", x, result="int32", size=16)
    agrees(counts, np.bincount(x, minlength=16))


OTHERS = {
    "tl.full([N], 2.5, tl.float32) + tl.zeros_like(x)": lambda x: 0 * x + 2.5,
    "tl.zeros([N], tl.float32) + tl.cdiv(N + 1, 4)": lambda x: 0 * x + 17,
    "tl.reshape(tl.expand_dims(x, 0), [64])": lambda x: x,
    "tl.view(x, [8, 8]).reshape(64)": lambda x: x,
    "tl.xor_sum((x * 9).to(tl.int32), 0)": lambda x: np.bitwise_xor.reduce(
        (x * 9).astype(int)
    ),
    "tl.sum(tl.topk(x, 4), 0)": lambda x: np.sort(x)[-4:].sum(),
    "(x > 1) & (x < 2) | (x == 0)": lambda x: ((x > 1) & (x < 2)) | (x == 0),
    "(0 < x) and (x < 2)": lambda x: (x > 0) & (x < 2),
    "not (x < 2)": lambda x: x >= 2,
    "tl.cast(x, tl.int32)": np.trunc,
    "x.to(tl.int32) // -3": lambda x: np.trunc(np.trunc(x) / -3),
    "tl.sum(x.to(tl.float64), 0)": np.sum,
    "tl.cumsum(x, 0, reverse=True)": lambda x: x[::-1].cumsum()[::-1],
}


@pytest.mark.parametrize("expression", OTHERS)
def test_other_functions(expression):
    x = values("float32")
    wanted = OTHERS[expression](x.astype(np.float64)) + 0 * x
    agrees(compute(expression, x, result="float32"), wanted, 64)


MAPPED = """
def chosen(a, b):
    if a > b:
        c = a
    else:
        c = b * 2
    return c, a - b

def kernel(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.map_elementwise(chosen, tl.load(x + i), tl.load(y + i))
    tl.store(out + i, a)
    tl.store(out + N + i, b)
"""


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32"])
def test_map_elementwise(name):
    x, y, out = values(name), values(name, 1), np.zeros(2 * SIZE, dtype(name))
    run(jit(MAPPED), (1, 1, 1), {"x": x, "y": y, "out": out, "N": SIZE})
    with np.errstate(all="ignore"):
        agrees(out, np.concatenate([np.where(x > y, x, y * 2), x - y]))


@pytest.mark.skipif(not hasattr(tl, "atomic_load"), reason="Triton has none")
def test_atomic_load_and_store():
    kernel = jit("""
def kernel(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_store(x + i, tl.atomic_load(x + i, i > 1) + 1, i > 2)
""")
    x = np.arange(8, dtype=np.int32)
    run(kernel, (1, 1, 1), {"x": x, "N": 8})
    assert x.tolist() == [0, 1, 2, 4, 5, 6, 7, 8]


HELPERS = """
def product(a, b):
    return a * b

def recurrence(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2

def larger(a, b):
    if a > b:
        return a
    else:
        return b
"""


def test_reduce_and_scan_by_helpers():
    kernel = jit(
        HELPERS
        + """
def kernel(x_ptr, y_ptr, out, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out, tl.reduce(x, 0, product))
    tl.store(out + 1, tl.reduce(x, 0, larger))
    a, b = tl.associative_scan((x, y), 0, recurrence)
    tl.store(out + 2 + i, b)
    a, b = tl.reduce((x, y), 0, recurrence)
    tl.store(out + 2 + 2 * N, b)
    a, b = tl.associative_scan((x, y), 0, recurrence, reverse=True)
    tl.store(out + 2 + N + i, b)
"""
    )
    x, y = values("float32", 0, 0.5, 1.2), values("float32", 1)
    out = np.zeros(3 + 2 * SIZE, np.float32)
    run(kernel, (1, 1, 1), {"x_ptr": x, "y_ptr": y, "out": out, "N": SIZE})

    def scan(x, y):
        state, found = 0.0, []
        for a, b in zip(x.astype(float), y.astype(float), strict=True):
            state = a * state + b
            found.append(state)
        return np.array(found)

    agrees(out[:2], [np.prod(x.astype(float)), x.max()], 16)
    np.testing.assert_allclose(out[2 : 2 + SIZE], scan(x, y), rtol=1e-5, atol=1e-5)
    backwards = scan(x[::-1], y[::-1])[::-1]
    np.testing.assert_allclose(out[2 + SIZE : -1], backwards, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(out[-1], scan(x, y)[-1], rtol=1e-5, atol=1e-5)


DOT = """
def kernel(a, b, c, K: tl.constexpr, WANTED: tl.constexpr):
    i, j, k = tl.arange(0, 16), tl.arange(0, 32), tl.arange(0, K)
    x = tl.load(a + i[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * 32 + j[None, :])
    start = tl.full([16, 32], 1, WANTED)
    tl.store(c + i[:, None] * 32 + j[None, :], tl.dot(x, y, start, out_dtype=WANTED))
"""


@pytest.mark.parametrize("name", [*FLOATS, "int8", "float8_e4m3fn", "float8_e5m2"])
def test_dot(name):
    x, y = (values(name, seed, size=32 * n) for seed, n in ((0, 16), (1, 32)))
    result = "int32" if name == "int8" else "float32"
    out = np.zeros(16 * 32, dtype(result))
    arguments = {"a": x, "b": y, "c": out, "K": 32, "WANTED": getattr(tl, result)}
    run(jit(DOT), (1, 1, 1), arguments)
    wide = [v.astype(np.float64).reshape(-1, 32) for v in (x, y)]
    np.testing.assert_allclose(out.reshape(16, 32), 1 + wide[0] @ wide[1], 1e-5, 1e-4)


def test_dot_of_batches_and_of_an_accumulator_in_half_precision():
    kernel = jit("""
def kernel(a, b, c, d):
    n, i, j = tl.arange(0, 2), tl.arange(0, 16), tl.arange(0, 16)
    at = n[:, None, None] * 256 + i[None, :, None] * 16 + j[None, None, :]
    x, y = tl.load(a + at), tl.load(b + at)
    tl.store(c + at, tl.dot(x, y))
    tl.store(d + at, tl.dot(x, y, out_dtype=tl.float16))
""")
    x, y = values("float16", 0, size=512), values("float16", 1, size=512)
    c, d = np.zeros(512, np.float32), np.zeros(512, np.float16)
    run(kernel, (1, 1, 1), {"a": x, "b": y, "c": c, "d": d})
    wanted = np.matmul(*(v.astype(float).reshape(2, 16, 16) for v in (x, y))).ravel()
    agrees(c, wanted, 256)
    np.testing.assert_allclose(d, wanted, 2e-3, 2e-2)


def philox(seed, counter):
    """Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3": ten rounds."""
    keys, mask = [seed & 0xFFFFFFFF, seed >> 32], 0xFFFFFFFF
    c = [counter & mask, 0, 0, 0]
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ keys[0], low1, high0 ^ c[3] ^ keys[1], low0]
        keys = [(keys[0] + 0x9E3779B9) & mask, (keys[1] + 0xBB67AE85) & mask]
    return c


def test_random_numbers():
    x = np.arange(SIZE, dtype=np.int32)
    found = compute("tl.randint(7, x)", x, result="int32").view(np.uint32)
    agrees(found, [philox(7, i)[0] for i in range(SIZE)])
    found = compute("tl.randint4x(7, x)[2]", x, result="int32").view(np.uint32)
    agrees(found, [philox(7, i)[2] for i in range(SIZE)])
    found = compute("tl.rand(7, x)", x, result="float32")
    bits = np.array([philox(7, i)[0] for i in range(SIZE)], np.uint32).view(np.int32)
    wanted = np.where(bits < 0, -1 - bits.astype(np.int64), bits) * 4.6566127342e-10
    np.testing.assert_allclose(found, wanted, 1e-6)
    found = compute("tl.randn(7, x)", x, result="float32")
    assert abs(found.mean()) < 0.5
    assert 0.6 < found.std() < 1.4


ATOMICS = {
    "add": lambda a, b: a + b,
    "max": max,
    "min": min,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "xchg": lambda a, b: b,
}
COMBINE = """
def kernel(x, index, out, old, N: tl.constexpr):
    i = tl.arange(0, N)
    v, j = tl.load(x + i), tl.load(index + i)
    tl.store(old + i, tl.atomic_NAME(out + j, v, mask=i % 5 != 4))
"""


@pytest.mark.parametrize("name", ["int32", "uint32", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("verb", ATOMICS)
def test_atomics_with_duplicates(verb, name):
    small = name in ("bfloat16", "float16")
    if (verb in ("and", "or", "xor") and name in FLOATS) or (small and verb != "add"):
        pytest.skip("Triton has none")
    x, out = (values(name, 0) % 64).astype(dtype(name)), np.zeros(8, dtype(name))
    index = np.random.default_rng(2).integers(0, 8, SIZE, np.int32)
    old, wanted, before = np.zeros_like(x), out.copy(), np.zeros_like(x)
    for i in range(SIZE):
        if i % 5 != 4:
            before[i] = wanted[index[i]]
            wanted[index[i]] = ATOMICS[verb](wanted[index[i]], x[i])
    kernel = jit(COMBINE.replace("NAME", verb))
    run(
        kernel,
        (1, 1, 1),
        {"x": x, "index": index, "out": out, "old": old, "N": SIZE},
    )
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(old, before)


@pytest.mark.parametrize("name", ["int32", "int64", "float32"])
def test_compare_and_swap(name):
    source = """
def kernel(out, old, N: tl.constexpr):
    i = tl.arange(0, N)
    seen = tl.atomic_cas(out + i // 4, (i % 4).to(KIND), (i % 4 + 1).to(KIND))
    tl.store(old + i, seen)
"""
    out, old = np.zeros(4, dtype(name)), np.zeros(16, dtype(name))
    kernel = jit(source.replace("KIND", f"tl.{name}"))
    run(kernel, (1, 1, 1), {"out": out, "old": old, "N": 16})
    assert out.tolist() == [4] * 4
    assert old.tolist() == [0, 1, 2, 3] * 4


def test_bool_is_one_bit():
    x, y = values("bool"), values("bool", 1)
    agrees(compute("x & y", x, y, result="bool"), x & y)
    agrees(compute("x | ~y", x, y, result="bool"), x | ~y)
    agrees(compute("x ^ y", x, y, result="bool"), x ^ y)
    agrees(compute("x.to(tl.int32) + y", x, y, result="int32"), x.astype(int) + y)
    assert compute("tl.sum(x.to(tl.int32), 0)", x, result="int32", size=1) == x.sum()


# ---- operations that today's Triton makes of no kernel, or of few


def operation(name, types, *values, words=()):
    made = Operation(f"arith.{name}", types=types, words=list(words))
    return WITH_OPERATION[made.name](made, *values)


def test_each_comparison():
    x = np.array([1, 2, 3, np.nan, 1], np.float32)
    y = np.array([1, 3, 2, 1, np.nan], np.float32)
    nan = np.isnan(x) | np.isnan(y)
    for kind, wanted in {
        "eq": x == y,
        "ne": (x < y) | (x > y),
        "lt": x < y,
        "le": x <= y,
        "gt": x > y,
        "ge": x >= y,
    }.items():
        for first, beside_nan in (("o", False), ("u", True)):
            found = operation("cmpf", "f32", x, y, words=[first + kind])
            np.testing.assert_array_equal(found, np.where(nan, beside_nan, wanted))
    np.testing.assert_array_equal(operation("cmpf", "f32", x, y, words=["uno"]), nan)
    np.testing.assert_array_equal(operation("cmpf", "f32", x, y, words=["ord"]), ~nan)


def test_true_is_minus_one_if_it_has_a_sign():
    x = np.array([True, False])
    assert operation("extsi", "i1 to i32", x).tolist() == [-1, 0]
    assert operation("extui", "i1 to i32", x).tolist() == [1, 0]
    assert operation("sitofp", "i1 to f32", x).tolist() == [-1, 0]
    assert operation("uitofp", "i1 to bf16", x).tolist() == [1, 0]
    less = operation("cmpi", "i1", x, x[::-1], words=["slt"])
    assert less.tolist() == [True, False]
    assert PLAIN["arith.addi"](x, x).tolist() == [False, False]
    assert PLAIN["arith.maxsi"](x, x[::-1]).tolist() == [False, False]


@pytest.mark.parametrize("text", ["0x7FC00000", "-1.5e+00", "true", "[1, 2]"])
def test_constants(text):
    if text[0] == "[":
        with pytest.raises(Fault, match="a constant `\\[1, 2\\]`"):
            operation("constant", "tensor<2xi32>", words=[f"dense<{text}>"])
        return
    types = "tensor<2xi1>" if text == "true" else "tensor<2xf32>"
    found = operation("constant", types, words=[f"dense<{text}>"])
    wanted = {"0x7FC00000": np.nan, "-1.5e+00": -1.5, "true": True}[text]
    np.testing.assert_array_equal(found, [wanted] * 2)
