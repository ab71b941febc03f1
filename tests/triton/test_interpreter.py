"""Kernels on NumPy arrays: what they compute, and that none leaves its memory."""

import concurrent.futures
import enum
import importlib.metadata
import threading

import jax
import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from triton.language import load as captured
from triton.language import math as captured_math
from triton.language.extra import libdevice as captured_libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice

import jaxfn
from jaxfn._triton import interpreter
from jaxfn._triton.errors import LaunchError
from jaxfn._triton.interpreter import run
from tests.triton import kernels as this_package
from tests.triton.kernels import dtype, jit, values

VERSION = tuple(int(n) for n in importlib.metadata.version("triton").split(".")[:2])
ONE = (1, 1, 1)
exp = tl.exp
FACTOR = tl.constexpr(3)


@triton.jit
def _scaled(x, by):
    return x * by


@triton.jit
def _twice(x, fn: tl.constexpr):
    return fn(fn(x, FACTOR), 2)


@triton.jit
def _everything(x, y, n, BLOCK: tl.constexpr, fn: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    v = captured(x + i, mask=mask, other=0.0)
    total = 0.0
    for k in range(0, n, BLOCK):
        j = k.to(tl.int64) + tl.arange(0, BLOCK)
        total += tl.sum(exp(tl.load(x + j, mask=j < n, other=-float("inf"))), 0)
    v = captured_math.abs(_twice(v, fn)) + captured_libdevice.tanh(v) + total
    v += cuda_libdevice.expm1(0.0 * v)
    tl.store(y + i, v, mask=mask)


@pytest.mark.parametrize("grid", [(3,), (3, 1), (3, 1, 1)])
def test_helpers_aliases_and_loops(grid):
    x, y = values("float32", size=37), np.zeros(37, np.float32)
    arguments = {"x": x, "y": y, "n": 37, "BLOCK": 16, "fn": _scaled}
    run(_everything, grid, arguments)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(
        y, abs(6 * wide) + np.tanh(wide) + np.exp(wide).sum(), 1e-5
    )


@triton.jit
def _normalized(x, w, y, n, eps, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + i, mask=i < n, other=0.0)
    scale = tl.rsqrt(tl.sum(v * v, 0) / n + eps).to(v.dtype)
    tl.store(y + row * n + i, v * scale * tl.load(w + i, mask=i < n), mask=i < n)


def test_bfloat16_is_rounded_after_each_operation():
    bf16 = dtype("bfloat16")
    x, w, y = (
        values("float32", size=60),
        values("bfloat16", 1, size=20),
        np.zeros(60, bf16),
    )
    run(_normalized, (3,), {"x": x, "w": w, "y": y, "n": 20, "eps": 1e-6, "BLOCK": 32})
    rows = x.reshape(3, 20)
    scale = 1 / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-6)
    wanted = (rows * scale * w.astype("f4")).ravel()
    np.testing.assert_array_equal(y, wanted.astype(bf16))


PROGRAMS = """
def kernel(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    a, b = tl.num_programs(0), tl.num_programs(1)
    n = tl.atomic_add(out + 24, 1)
    tl.store(out + n, x + a * (y + b * z))
"""


def test_programs():
    out = np.zeros(25, np.int64)
    run(jit(PROGRAMS), (2, 3, 4), {"out": out})
    assert out.tolist() == [*range(24), 24]
    run(jit(PROGRAMS), (2, 0, 4), {"out": out[:1]})


ARGUMENTS = """
def kernel(
    out, flag, whole, long, number, nothing, kind: tl.constexpr, to: tl.constexpr
):
    tl.store(out, whole + whole)
    tl.store(out + 1, long * 2)
    tl.store(out + 2, (number / 3).to(to))
    if flag:
        tl.store(out + 3, 1)
    tl.store(out + 4, flag)
    if nothing is None and kind == "some":
        tl.store(out + 5, 7)
    tl.store(out + 6, long.dtype.primitive_bitwidth + whole.dtype.primitive_bitwidth)
"""


@pytest.mark.parametrize("flag", [True, False, np.True_])
def test_arguments(flag):
    out = np.zeros(7, np.int64)
    arguments = {
        "flag": flag,
        "whole": 2**31 - 1,
        "long": 2**40,
        "number": 10.0,
        "nothing": None,
        "kind": "some",
        "to": tl.int32,
    }
    run(jit(ARGUMENTS), ONE, {"out": out, **arguments})
    assert out.tolist() == [-2, 2**41, 3, flag, flag, 7, 96]


FLOW = """
def collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps

def kernel(out, n, N: tl.constexpr):
    pid = tl.program_id(0)
    if pid >= n:
        return
    if pid == 2:
        tl.store(out + pid, -1)
        return
    total = 0.
    for i in tl.range(0, pid + 3, num_stages=2):
        for j in tl.static_range(2):
            total += (i * j).to(tl.float32)
    for i in range(5, 0, -2):
        total += i
    k = pid + 5
    tl.store(out + pid, total + collatz(k) * 100)
"""


def test_control_flow():
    out = np.zeros(6, np.float32)
    run(jit(FLOW), (6,), {"out": out, "n": 5, "N": 4})
    steps = {5: 5, 6: 8, 8: 3, 9: 19}
    wanted = [sum(range(p + 3)) + 9 + 100 * steps.get(p + 5, 0) for p in range(5)]
    wanted[2] = -1
    assert out.tolist() == [*wanted, 0]


BLOCKS = """
def kernel(x, y, rows, cols, PAD: tl.constexpr):
    p = tl.make_block_ptr(x, (rows, cols), (cols, 1), (0, 0), (4, 8), (1, 0))
    q = tl.make_block_ptr(y, (rows, 16), (16, 1), (0, 0), (4, 8), (1, 0))
    for k in range(0, 16, 8):
        v = tl.load(p, boundary_check=(0, 1), padding_option=PAD)
        tl.store(q, v, boundary_check=(0,))
        p, q = tl.advance(p, (0, 8)), tl.advance(q, (0, 8))
"""


@pytest.mark.skipif(VERSION >= (3, 9), reason="Triton has no block pointers any more")
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_block_pointers(padding):
    x, y = values("float32", size=3 * 11), np.zeros(3 * 16, np.float32)
    arguments = {"x": x, "y": y, "rows": 3, "cols": 11, "PAD": padding}
    run(jit(BLOCKS), ONE, arguments)
    wanted = np.full((3, 16), 0 if padding == "zero" else np.nan, np.float32)
    wanted[:, :11] = x.reshape(3, 11)
    np.testing.assert_array_equal(y.reshape(3, 16), wanted)
    with pytest.raises(LaunchError, match="reads element 22 of `x`, which has 22 "):
        run(jit(BLOCKS), ONE, {**arguments, "x": x[:22].copy()})


@pytest.mark.skipif(VERSION >= (3, 9), reason="Triton has no block pointers any more")
def test_a_block_that_begins_before_its_array():
    kernel = jit("""
def kernel(x, y, first):
    p = tl.make_block_ptr(x, (2, 4), (4, 1), (first, first), (4, 8), (1, 0))
    q = tl.make_block_ptr(y, (4, 8), (8, 1), (0, 0), (4, 8), (1, 0))
    tl.store(q, tl.load(p, boundary_check=(0, 1), padding_option="zero"))
""")
    x, y = values("float32", size=8), np.ones(32, np.float32)
    run(kernel, ONE, {"x": x, "y": y, "first": -1})
    wanted = np.zeros((4, 8), np.float32)
    wanted[1:3, 1:5] = x.reshape(2, 4)
    np.testing.assert_array_equal(y.reshape(4, 8), wanted)
    # Only the axes that are named are checked against the array's sizes.
    kernel = jit("""
def kernel(x):
    p = tl.make_block_ptr(x, (2, 4), (4, 1), (0, 0), (4, 8), (1, 0))
    tl.store(x, tl.sum(tl.load(p, boundary_check=(0,))))
""")
    with pytest.raises(LaunchError, match="reads element 8 of `x`, which has 8 "):
        run(kernel, ONE, {"x": x})


DESCRIPTORS = """
def kernel(x, y, n, PAD: tl.constexpr):
    a = tl.make_tensor_descriptor(x, [n, n], [n, 1], [16, 16], padding_option=PAD)
    b = tl.make_tensor_descriptor(y, [n, n], [n, 1], [16, 16])
    b.store([8, 4], a.load([4, 12]))
    b.atomic_add([0, 0], a.load([0, 0]))
    c = tl.make_tensor_descriptor(x, [n, n], [n, 1], [1, 16])
    d = tl.make_tensor_descriptor(y, [n, n], [n, 1], [1, 16])
    d.scatter(c.gather(tl.arange(0, 8) * 2, 0), tl.arange(0, 8) + 12, 4)
"""


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_descriptors(padding):
    x, y = values("float32", size=400), np.zeros(400, np.float32)
    run(jit(DESCRIPTORS), ONE, {"x": x, "y": y, "n": 20, "PAD": padding})
    x, wanted = x.reshape(20, 20), np.zeros((20, 20), np.float32)
    wanted[8:20, 4:20] = 0 if padding == "zero" else np.nan
    wanted[8:20, 4:12] = x[4:16, 12:20]
    wanted[:16, :16] += x[:16, :16]
    wanted[12:20, 4:20] = x[0:16:2, 0:16]
    np.testing.assert_array_equal(y.reshape(20, 20), wanted)


@pytest.mark.parametrize("name", ["int32", "uint32", "float32"])
@pytest.mark.parametrize("verb", ["add", "min", "max"])
def test_atomics_of_descriptors(verb, name):
    if name == "float32" and verb != "add":
        pytest.skip("Triton has none")
    kernel = jit(f"""
def kernel(x, y):
    a = tl.make_tensor_descriptor(x, [4, 16], [16, 1], [4, 16])
    b = tl.make_tensor_descriptor(y, [4, 16], [16, 1], [4, 16])
    b.atomic_{verb}([0, 0], a.load([0, 0]))
""")
    x, y = values(name), values(name, 1)
    combine = {"add": np.add, "min": np.minimum, "max": np.maximum}[verb]
    wanted = combine(x, y)
    run(kernel, ONE, {"x": x, "y": y})
    np.testing.assert_array_equal(y, wanted)


@triton.jit
def _copied(x, y, n, first, BLOCK: tl.constexpr):
    i = first + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, v, mask=i < n)


def _copy(**changed):
    x, y = values("float32", size=10), np.zeros(10, np.float32)
    arguments = {"x": x, "y": y, "n": 10, "first": 0, "BLOCK": 16}
    run(_copied, ONE, {**arguments, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n": 12}, "`_copied` reads element 10 of `x`, which has 10 elements"),
        ({"first": -3}, "`_copied` reads element -3 of `x`, which has 10 elements"),
        ({"first": -(2**29)}, "reads element -536870912 of `x`"),
        ({"first": 2**30, "n": 2**31}, "reads element 1073741824 of `x`"),
        ({"first": 2**50, "n": 2**60}, "reads an address that belongs to no arg"),
        ({"y": np.zeros(9, np.float32)}, "writes element 9 of `y`, which has 9 "),
        ({"y": np.zeros(0, np.float32)}, "writes element 0 of `y`, which has 0 "),
        ({"y": np.zeros(4, np.int64)}, "writes element 4 of `y`, which has 4 "),
    ],
)
def test_addresses_are_checked(changed, message):
    with pytest.raises(LaunchError, match=message) as error:
        _copy(**changed)
    line = _copied.fn.__code__.co_firstlineno + (4 if "writes" in message else 3)
    assert error.value.place == f"{__file__}:{line}"
    assert error.value.kernel == "_copied"
    assert str(error.value).startswith(f"{__file__}:{line}: `_copied`")


@triton.jit
def _wrapped(a, b, n, BLOCK: tl.constexpr):
    _copied(a, b, n, 0, BLOCK)


def test_errors_name_what_the_user_launched():
    x, y = np.zeros(4, np.float32), np.zeros(9, np.float32)
    arguments = {"a": x, "b": y, "n": 9, "BLOCK": 16}
    with pytest.raises(LaunchError, match="`_copied` reads element 4 of `x`") as error:
        run(_wrapped, ONE, arguments, names={"a": "x"}, title="_copied")
    line = _copied.fn.__code__.co_firstlineno + 3
    assert error.value.place == f"{__file__}:{line}"


def test_places_are_not_in_triton():
    kernel = jit("""
def kernel(x):
    tl.store(x, tl.reduce(tl.load(x + tl.arange(0, 4)), 0, bad))

def bad(a, b):
    tl.device_assert(a == b, "they differ")
    return a
""")
    with pytest.raises(LaunchError, match="has a failed assertion: they differ") as e:
        run(kernel, ONE, {"x": np.arange(4.0)})
    assert e.value.place.endswith(">:8")


POINTERS = """
def kernel(x, y):
    i = tl.arange(0, 8)
    p = tl.where(i < 4, x + i, y + i - 4)
    v = tl.load(p)
    tl.store(p, v + 1)
    tl.store(x.to(tl.pointer_type(tl.int16)) + 1, 0)
    q = (x.to(tl.int64) + 8).to(tl.pointer_type(tl.float32))
    tl.store(q, 50.0)
"""


def test_pointers_into_several_buffers_and_of_other_types():
    x, y = np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32)
    run(jit(POINTERS), ONE, {"x": x, "y": y})
    first = np.array([1.0], np.float32).view(np.int16)
    first[1] = 0
    assert x.tolist() == [first.view(np.float32)[0], 2, 50, 4]
    assert y.tolist() == [1, 2, 3, 4]


def test_addresses_are_aligned_and_pointers_come_from_arguments():
    for change, message in (
        ("(x.to(tl.int64) + 2).to(tl.pointer_type(tl.float32))", "is not aligned"),
        ("tl.load(x.to(tl.pointer_type(tl.int64))).to(tl.pointer_type(tl.int8))", "no"),
    ):
        kernel = jit(f"def kernel(x):\n    tl.store({change}, 1)\n")
        with pytest.raises(LaunchError, match=message):
            run(kernel, ONE, {"x": np.ones(4, np.float32)})


def test_one_array_as_two_arguments():
    x = np.arange(10, dtype=np.float32)
    _copy(x=x, y=x[::1], n=10)
    _copy(x=x[2:], y=x[:8], n=8)
    assert x.tolist() == [*range(2, 10), 8, 9]


@pytest.mark.parametrize("name", ["bool", "uint8", "int64", "float8_e5m2", "float64"])
def test_types_of_memory(name):
    x, y = values(name, size=10), np.zeros(10, dtype(name))
    _copy(x=x, y=y)
    np.testing.assert_array_equal(x.view("u1"), y.view("u1"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.zeros((2, 5), np.float32)}, "`x` of `_copied`: memory must be"),
        ({"x": np.zeros(20, np.float32)[::2]}, "contiguous, writeable array of one"),
        ({"x": np.broadcast_to(np.float32(0), 10)}, "memory must be a contiguous"),
        ({"x": np.zeros(10, np.complex64)}, "no kernel points to complex64"),
        ({"x": np.zeros(41, np.uint8)[1:].view(np.float32)}, "must be aligned"),
        ({"n": (1, 2)}, "tuples are constants only"),
        ({"n": 2**70}, "is too large"),
        ({"z": 1}, "`_copied` has no parameters \\['z'\\]"),
    ],
)
def test_arguments_are_checked(changed, message):
    with pytest.raises(LaunchError, match=message):
        _copy(**changed)


def test_missing_argument():
    with pytest.raises(LaunchError, match="`_copied` got no arguments .*'y'"):
        run(_copied, ONE, {"x": np.zeros(1)})


def test_what_is_no_kernel():
    def plain(x):
        pass

    class InterpretedFunction:
        __name__ = "kernel"

    for kernel in (plain, triton.autotune([triton.Config({})], [])(_copied)):
        with pytest.raises(LaunchError, match="not a kernel of `triton.jit`"):
            run(kernel, ONE, {})
    with pytest.raises(LaunchError, match="`kernel` is a InterpretedFunction, not"):
        run(InterpretedFunction(), ONE, {})


def test_gluon():
    gluon = pytest.importorskip("triton.experimental.gluon")
    with pytest.raises(LaunchError, match="is a GluonJITFunction, not a kernel"):
        run(gluon.jit(_copied.fn), ONE, {})


REFUSED = {
    "tl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r', [i], tl.int32, True, 1)": (
        "can't run on a CPU: it uses inline assembly"
    ),
    "libdevice.add_ru(1.0 * i, 1.0 * i)": "libdevice's `__nv_fadd_ru`",
    "no_such_name(i)": "Triton can't compile `kernel`",
    "tl.exp(i)": "Triton can't compile `kernel`",
}


@pytest.mark.parametrize("call", REFUSED)
def test_refusals(call):
    head = "def kernel(x):\n    i = tl.arange(0, 8)\n"
    source = f"{head}    tl.store(x + i, {call})\n"
    with pytest.raises(LaunchError, match=REFUSED[call]):
        run(jit(source), ONE, {"x": np.zeros(8, np.float32)})


def test_a_program_that_waits_for_another_ends(monkeypatch):
    monkeypatch.setattr(interpreter, "_PATIENCE", 1000)
    kernel = jit("""
def kernel(x):
    while tl.atomic_add(x, 0) == 0:
        pass
""")
    with pytest.raises(
        LaunchError, match="a `while` that did not end after 1000 turns"
    ):
        run(kernel, ONE, {"x": np.zeros(1, np.int32)})
    run(kernel, ONE, {"x": np.ones(1, np.int32)})


def test_prints_and_hints(capsys):
    kernel = jit("""
def kernel(x, n):
    tl.assume(n > 3)
    n = tl.multiple_of(n, 4)
    tl.debug_barrier()
    i = tl.max_contiguous(tl.arange(0, 4), 4)
    tl.static_assert(True)
    tl.device_print("seen", tl.load(x + i, cache_modifier=".ca", volatile=True), n)
    tl.store(x + i, i, eviction_policy="evict_first")
""")
    x = np.ones(4, np.float32)
    run(kernel, ONE, {"x": x, "n": 4})
    assert "seen" in capsys.readouterr().out
    assert x.tolist() == [0, 1, 2, 3]


def test_threads_do_not_disturb_each_other():
    barrier = threading.Barrier(4)

    def launch(seed):
        x, y = values("float32", seed, size=500), np.zeros(500, np.float32)
        barrier.wait()
        for n in (499, 500):
            run(_copied, ONE, {"x": x, "y": y, "n": n, "first": 0, "BLOCK": 512})
        return (x == y).all()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(launch, range(4)))


def test_a_helper_of_another_module():
    kernel = jit(
        """
def kernel(x):
    tl.store(x, other.helper(tl.load(x), 5))
""",
        other=this_package,
    )
    this_package.helper = _scaled
    x = np.array([2], ml_dtypes.bfloat16)
    run(kernel, ONE, {"x": x})
    assert x == 10


class Mode(enum.Enum):
    SLOW = 3


def test_constants_are_told_apart():
    kernel = jit("""
def kernel(x, c: tl.constexpr, fn: tl.constexpr):
    if c is True:
        tl.store(x, 10)
    else:
        tl.store(x, fn(c + 1, 2))
""")
    source = "def kernel(a, b):\n    return a SIGN b\n"
    plus, times = (jit(source.replace("SIGN", sign)) for sign in "+*")
    for c, fn, wanted in (
        *((1, plus, 4), (True, plus, 10), (1.0, plus, 4), (1, times, 4)),
        *((2, plus, 5), (2, times, 6), (tl.constexpr(2), times, 6)),
    ):
        x = np.zeros(1, np.float32)
        run(kernel, ONE, {"x": x, "c": c, "fn": fn})
        assert x == wanted


def test_constants_of_any_type():
    kernel = jit(
        "def kernel(x, mode: tl.constexpr, sizes: tl.constexpr):\n"
        "    if mode == SLOW:\n        tl.store(x, sizes[1])\n",
        SLOW=tl.constexpr(Mode.SLOW),
    )
    x = np.zeros(1, np.float32)
    run(kernel, ONE, {"x": x, "mode": Mode.SLOW, "sizes": (1, 7)})
    assert x == 7


def test_global_constants_that_change_are_noticed():
    kernel = jit("def kernel(x):\n    tl.store(x, C)\n", C=tl.constexpr(3))
    out = {"x": jax.ShapeDtypeStruct((1,), np.float32)}
    assert jaxfn.triton_call(kernel, 1, out=out) == 3
    kernel.fn.__globals__["C"] = tl.constexpr(4)
    with pytest.raises(RuntimeError, match="variable C has changed since `kernel`"):
        jaxfn.triton_call(kernel, 1, out=out)


@pytest.mark.parametrize("grid", [(1, 1, 1, 1), (-1,)])
def test_grids_are_checked(grid):
    with pytest.raises(LaunchError, match="`_copied` has no grid"):
        run(
            _copied,
            grid,
            {"x": np.zeros(1), "y": np.zeros(1), "n": 0, "first": 0, "BLOCK": 1},
        )
