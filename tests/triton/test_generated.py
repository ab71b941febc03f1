"""The kernel of a launch: its text, and what the user's kernel gets by it."""

import dataclasses
import inspect
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl

from jaxfn._triton import KernelError, Loaded, Variant, call, experimental
from tests.triton.kernels import launched, pointer


def result(kernel, /, *buffers, **arguments):
    """The only buffer that a launch writes to, afterwards."""
    (found,) = call.launch(launched(kernel, *buffers, **arguments), buffers)
    return np.asarray(found)


def text(kernel, /, *buffers, **arguments):
    return inspect.getsource(launched(kernel, *buffers, **arguments).generated.fn)


@triton.jit
def stored(y, n):
    tl.store(y, n)


@triton.jit(do_not_specialize=["n"])
def stored_as_number(y, n):
    tl.store(y, n.to(tl.float32) + 0.5)


@triton.jit
def stored_as(y, n: tl.int64):
    tl.static_assert(n.dtype == tl.int64)
    tl.store(y, n)


@triton.jit
def stored_half(y, n: tl.float16):
    tl.static_assert(n.dtype == tl.float16)
    tl.store(y, n)


@triton.jit
def typed(y, n, KIND: tl.constexpr):
    tl.static_assert(n.dtype == KIND)
    tl.store(y, n.to(KIND))


# ---- texts


def test_the_text_of_a_launch():
    @triton.jit
    def add(x, y, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)

    x = jnp.zeros(64)
    arguments = {"x": pointer(0, 4), "y": pointer(1), "n": 12}
    found = text(add, x, x, BLOCK=16, **arguments)
    assert found == (
        "def launch_add(b0, b1):\n"
        "    kernel(x=b0 + 4, y=b1, n=tl.full((), 12, tl.int32), BLOCK=16)\n"
    )
    found = text(add, x, x, **arguments, variants=[{"BLOCK": 8}, {"BLOCK": 16}])
    assert found == (
        "def launch_add(b0, b1, CASE: tl.constexpr):\n"
        "    if CASE == 0:\n"
        "        kernel(x=b0 + 4, y=b1, n=tl.full((), 12, tl.int32), BLOCK=8)\n"
        "    if CASE == 1:\n"
        "        kernel(x=b0 + 4, y=b1, n=tl.full((), 12, tl.int32), BLOCK=16)\n"
    )


def test_variants_with_equal_constants_are_one_case():
    x = jnp.zeros(1)
    variants = tuple(
        Variant({}, {"num_warps": n}, grid)
        for n, grid in ((1, (1, 1, 1)), (2, (1, 1, 1)), (4, (2, 1, 1)))
    )
    made = dataclasses.replace(
        launched(stored, x, y=pointer(0), n=3), variants=variants
    )
    assert [made.constants(v)["CASE"] for v in variants] == [0, 0, 1]
    assert made.usable == variants


def test_the_same_launch_is_the_same_kernel():
    x = jnp.zeros(4)
    one, two, other = (
        launched(stored, x, y=pointer(0, k), n=3).generated for k in (1, 1, 2)
    )
    assert one is two
    assert one is not other


def test_the_text_with_outputs():
    x = jnp.zeros(4)
    made = launched(stored, x, x, y=pointer(1), n=3)
    assert "def launch_stored(b0, b1, o1):" in made.generated_with_outputs.src


# ---- numbers


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (3, "int32"),
        (0, "int32"),
        (-1, "int32"),
        (2**31 - 1, "int32"),
        (-(2**31), "int32"),
        (2**31, "int64"),
        (-(2**31) - 1, "int64"),
        (2**62, "int64"),
        (2**63, "uint64"),
        (1.0, "float32"),
        (0.1, "float32"),
        (1e-6, "float32"),
        (float("inf"), "float32"),
        (-float("inf"), "float32"),
        (True, "int1"),
        (False, "int1"),
        (np.float32(0.1), "float32"),
        (np.int64(3), "int32"),
        (np.bool_(True), "int1"),
    ],
    ids=repr,
)
def test_a_number_has_the_type_that_triton_gives_it(value, kind):
    dtype = {"int1": "bool"}.get(kind, kind)
    with jax.enable_x64():
        y = jnp.zeros(2, dtype)
        arguments = {"y": pointer(0, 1, dtype), "n": value, "KIND": getattr(tl, kind)}
        assert result(typed, y, **arguments)[1] == np.dtype(dtype).type(value)


def test_nan():
    assert math.isnan(result(stored, jnp.zeros(1), y=pointer(0), n=float("nan"))[0])


def test_a_one_is_a_constant_as_in_triton():
    y = jnp.zeros(1)

    @triton.jit
    def stride(y, n):
        tl.static_assert(n == 1)
        tl.store(y, 2.0)

    assert result(stride, y, y=pointer(0), n=1)[0] == 2
    with pytest.raises(KernelError, match="static_assert|has no attribute|constexpr"):
        result(stride, y, y=pointer(0), n=2)
    assert result(stored_as_number, y, y=pointer(0), n=1)[0] == 1.5


def test_an_annotated_number():
    with jax.enable_x64():
        y = jnp.zeros(1, "int64")
        for n in (1, 5):
            assert result(stored_as, y, y=pointer(0, 0, "int64"), n=n)[0] == n
    y = jnp.zeros(1, "float16")
    assert result(stored_half, y, y=pointer(0, 0, "float16"), n=0.5)[0] == 0.5


def test_numbers_are_constants_to_the_compiler():
    y = jnp.zeros(1)
    module = experimental.ttir(
        launched(stored, y, y=pointer(0), n=48).generated, {"b0": "*fp32"}, {}, {}
    )
    assert "arith.constant 4.8" in str(module)
    assert "tensor<" not in str(module)


# ---- constants


@triton.jit
def doubled(x):
    return 2 * x


@triton.jit
def through(y, x, WITH: tl.constexpr, KIND: tl.constexpr, NAME: tl.constexpr):
    v = tl.load(x)
    if WITH is not None:
        v = WITH(v)
    if NAME == 'it\'s "one"':
        v += 1
    tl.store(y, v.to(KIND))


def test_constants_that_are_no_numbers():
    x = y = jnp.full(1, 1.25)
    given = {"y": pointer(1), "x": pointer(0), "KIND": tl.float16}
    name = 'it\'s "one"'
    assert result(through, x, y, WITH=doubled, NAME=name, **given)[0] == 3.5
    assert result(through, x, y, WITH=None, NAME="", **given)[0] == 1.25
    found = text(through, x, y, WITH=doubled, NAME=name, **given)
    assert "WITH=C1, KIND=C2" in found


@triton.jit
def sizes(y, shape, SIZES: tl.constexpr):
    tl.store(y, shape[0] * 100 + shape[1] * 10 + SIZES[1])


def test_tuples():
    y = jnp.zeros(1)
    assert result(sizes, y, y=pointer(0), shape=(1, 3), SIZES=(5, 6))[0] == 136


def test_none_for_a_pointer():
    @triton.jit
    def maybe(x, y):
        if x is None:
            tl.store(y, 3.0)
        else:
            tl.store(y, tl.load(x))

    x = jnp.full(1, 2.0)
    assert result(maybe, x, x=None, y=pointer(0))[0] == 3
    assert result(maybe, x, x, x=pointer(0), y=pointer(1))[0] == 2


def test_a_parameter_with_the_name_of_an_option():
    @triton.jit
    def named(y, num_warps: tl.constexpr, grid, name, kernel, CASE: tl.constexpr):
        tl.store(y, num_warps * 1000 + grid * 100 + name * 10 + kernel + CASE)

    arguments = {"y": pointer(0), "grid": 2, "name": 3, "kernel": 4}
    variants = [{"num_warps": 8, "CASE": 0}, {"num_warps": 4, "CASE": 1}]
    y = jnp.zeros(1)
    assert result(named, y, variants=variants, **arguments)[0] == 8234


# ---- pointers


def test_offsets_and_shared_buffers():
    @triton.jit
    def add(x, y, n):
        i = tl.arange(0, 4)
        tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)

    both = jnp.arange(8.0)
    found = result(add, both, x=pointer(0, 1), y=pointer(0, 5), n=3)
    assert found.tolist() == [0, 1, 2, 3, 4, 1, 2, 3]


def test_a_pointer_of_another_type():
    @triton.jit
    def bits(x, y):
        tl.store(y, tl.load(x))

    x, y = jnp.array([0.0, 1.0]), jnp.zeros(1, "int32")
    found = result(bits, x, y, x=pointer(0, 1, "int32"), y=pointer(1, 0, "int32"))
    assert found.tolist() == [0x3F800000]


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("int32", 7, 7),
        ("int32", 1, 1),
        ("int64", 2**40, 2**40),
        ("float32", 0.5, 0.5),
        ("bfloat16", 0.5, 0.5),
        ("bool", True, 1),
    ],
)
def test_a_number_that_is_a_value(dtype, value, expected):
    with jax.enable_x64():
        y, n = jnp.zeros(1, "float64"), jnp.array([value], dtype)
        assert result(stored, y, n, y=pointer(0, 0, "float64"), n=Loaded(1)) == expected


def test_a_float_that_is_a_value_has_the_type_that_triton_gives_it():
    y, n = jnp.zeros(1), jnp.array([0.5], "bfloat16")
    arguments = {"y": pointer(0), "n": Loaded(1), "KIND": tl.float32}
    assert result(typed, y, n, **arguments)[0] == 0.5


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        *(f"{kind}{n}" for kind in ("int", "uint") for n in (8, 16, 32)),
        "float16",
        "bfloat16",
        "float32",
        "float8_e5m2",
        "float8_e4m3fn",
    ],
)
def test_buffers_of_all_types(dtype):
    @triton.jit
    def copied(x, y):
        i = tl.arange(0, 4)
        tl.store(y + i, tl.load(x + i))

    x = jnp.array([0, 1, 1, 0]).astype(dtype)
    kind = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, x.dtype)
    arguments = {"x": pointer(0, 0, kind), "y": pointer(1, 0, kind)}
    found = result(copied, x, jnp.zeros_like(x), **arguments)
    assert found.dtype == x.dtype
    assert found.astype("float32").tolist() == [0, 1, 1, 0]


def test_a_type_that_triton_lacks():
    y = jnp.zeros(1, "complex64")
    with pytest.raises(KernelError, match="got complex64 for `y`.*Cast the array"):
        result(stored, y, y=pointer(0), n=2)
