"""What kernels read and write: each way in which a pointer can go."""

import jax
import numpy as np
import pytest
import triton
import triton.language as tl

from jaxfn._triton import Loaded
from jaxfn._triton.effects import _Walk
from jaxfn._triton.program import read
from tests.triton.kernels import F32, launched, pointer

HAS_BLOCK_POINTERS = pytest.mark.skipif(
    triton.__version__.split(".") >= ["3", "9"], reason="Triton 3.9 removed them"
)


def launch(kernel, *, variants=({},), dtype=F32, **arguments):
    """A launch with a buffer of 64 elements for each letter among the parameters."""
    names = [p for p in "xyz" if p in kernel.arg_names]
    buffers = [jax.ShapeDtypeStruct((64,), dtype)] * len(names)
    pointers = {p: pointer(i, 0, dtype) for i, p in enumerate(names)}
    return launched(kernel, *buffers, variants=variants, **pointers, **arguments)


def effects(kernel, **arguments):
    """The letters of the parameters that are read, and those that are written."""
    made = launch(kernel, **arguments)
    return tuple(
        "".join(p for i in numbers for p in made.parameters_of(i))
        for numbers in (made.reads, made.writes)
    )


KNOWN = []


def known(reads, writes, *marks):
    """A kernel that reads what these letters point to, and writes to those."""

    def put(fn):
        kernel = triton.jit(fn)
        KNOWN.append(pytest.param(kernel, reads, writes, id=fn.__name__, marks=marks))
        return kernel

    return put


@known("x", "y")
def copied(x, y, n):
    i = tl.arange(0, 8)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@known("xy", "x")
def updated(x, y):
    tl.store(x, tl.load(x) + tl.load(y))


@known("xy", "y")
def added(x, y):
    tl.atomic_add(y + tl.arange(0, 8), tl.load(x + tl.arange(0, 8)))


@known("y", "xy")
def swapped(x, y):
    tl.store(x, tl.atomic_cas(y, 0.0, 1.0))


@known("xy", "z")
def gathered(x, y, z):
    i = tl.load(y + tl.arange(0, 8)).to(tl.int32)
    tl.store(z + i, tl.load(x + i))


@known("x", "y")
def walked(x, y, n):
    for _ in range(n + tl.program_id(0)):
        tl.store(y, tl.load(x))
        x += 1
        y += 1


@known("", "xy")
def exchanged(x, y, n):
    for _ in range(n + tl.program_id(0)):
        tl.store(x, 1.0)
        x, y = y, x


@known("", "xy")
def after_loop(x, y, n):
    for _ in range(n + tl.program_id(0)):
        y = x
    tl.store(y, 1.0)


@known("y", "x")
def while_loop(x, y, n):
    i = n + tl.program_id(0)
    while i > 0:
        x += 1
        i -= 1
    tl.store(x, tl.load(y))


@known("", "xy")
def while_exchanged(x, y, n):
    i = n + tl.program_id(0)
    while i > 0:
        tl.store(x, 1.0)
        x, y = y, x
        i -= 1


@known("", "xy")
def after_while(x, y, n):
    i = n + tl.program_id(0)
    p = x
    while i > 0:
        p = y
        i -= 1
    tl.store(p, 1.0)


@known("z", "xy")
def chosen(x, y, z, n):
    if n + tl.program_id(0) > 3:
        p = x
    else:
        p = y
    tl.store(p, tl.load(z))


@known("z", "xy")
def selected(x, y, z, n):
    tl.store(tl.where(n + tl.program_id(0) > 3, x, y), tl.load(z))


@known("z", "xy")
def left_early(x, y, z, n):
    if n + tl.program_id(0) > 3:
        tl.store(x, 1.0)
        return
    tl.store(y, tl.load(z))


@known("z", "xy")
def left_later(x, y, z, n):
    p = x
    if n + tl.program_id(0) > 3:
        p = y
        if n + tl.program_id(0) > 5:
            return
    tl.store(p, tl.load(z))


@triton.jit
def inner(p, q):
    tl.store(p, tl.load(q))


@triton.jit(noinline=True)
def inner_called(p, q):
    tl.store(p, tl.load(q))


@triton.jit
def moved(p, q, n):
    if n + tl.program_id(0) > 3:
        p = q
    return p + 1, q


@known("yz", "x")
def through_helper(x, y, z):
    inner(x, y)
    inner(x, z)


@known("yz", "x")
def through_function(x, y, z):
    inner_called(x, y)
    inner_called(x, z)


@known("yz", "xy")
def returned(x, y, z, n):
    p, q = moved(x, y, n)
    tl.store(p, tl.load(q) + tl.load(z))


# Triton 3.9 has no block pointers any more.
@known("x", "y", HAS_BLOCK_POINTERS)
def block_pointer(x, y):
    p = tl.make_block_ptr(x, (8, 8), (8, 1), (0, 0), (4, 4), (1, 0))
    q = tl.make_block_ptr(y, (8, 8), (8, 1), (0, 0), (4, 4), (1, 0))
    for _ in range(2):
        tl.store(q, tl.load(p))
        p = tl.advance(p, (4, 0))
        q = tl.advance(q, (4, 0))


@known("x", "y")
def descriptor(x, y):
    p = tl.make_tensor_descriptor(x, (8, 8), (8, 1), (4, 8))
    q = tl.make_tensor_descriptor(y, (8, 8), (8, 1), (4, 8))
    q.store([0, 0], p.load([0, 0]))


@known("x", "y")
def grid_of_pointers(x, y):
    i = tl.arange(0, 4)
    p = y + i[:, None] * 4 + i[None, :]
    q = tl.trans(tl.reshape(x + tl.arange(0, 16), (4, 4)))
    tl.store(tl.broadcast_to(p, (4, 4)), tl.load(q))


@known("x", "y")
def cast(x, y):
    p = y.to(tl.pointer_type(tl.int32))
    tl.store(p + tl.arange(0, 8), tl.load(x + tl.arange(0, 8)).to(tl.int32))


@known("x", "y")
def sums(x, y):
    total = tl.sum(tl.load(x + tl.arange(0, 8)))
    running = tl.cumsum(tl.load(x + tl.arange(0, 8)))
    tl.store(y, total + tl.max(running))


@known("", "")
def nothing(x, y):
    i = tl.program_id(0)
    tl.device_assert(i < 5)


@known("", "y")
def only_written(x, y):
    tl.store(y, 1.0)


@pytest.mark.parametrize(("kernel", "reads", "writes"), KNOWN)
def test_a_pointer_is_followed(kernel, reads, writes):
    arguments = {"n": 5} if "n" in kernel.arg_names else {}
    assert effects(kernel, **arguments) == (reads, writes)


# ---- what is not known counts as everything


@triton.jit
def loaded_pointer(x, y, z):
    p = tl.load(x).to(tl.pointer_type(tl.float32))
    tl.store(p, tl.load(y))


@triton.jit
def address_as_number(x, y, z):
    n = x.to(tl.int64) | 4
    tl.store(n.to(tl.pointer_type(tl.float32)), tl.load(y))


@triton.jit
def stored_pointer(x, y, z):
    tl.store(x, y.to(tl.int64))


@triton.jit
def assembly(x, y, z):
    p = tl.inline_asm_elementwise(
        "mov.b64 $0, $1;", "=l,l", [x], dtype=tl.int64, is_pure=True, pack=1
    )
    tl.store(z, p.to(tl.float32))


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        (loaded_pointer, "int64"),
        (address_as_number, "float32"),
        (stored_pointer, "int64"),
        (assembly, "float32"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_what_can_not_be_followed_counts_as_all(kernel, dtype):
    assert effects(kernel, dtype=np.dtype(dtype)) == ("xyz", "xyz")


def test_a_pointer_that_is_stored_counts_as_all():
    # Not every release of Triton has pointers to pointers.
    text = """module {
      tt.func public @kernel(%x: !tt.ptr<!tt.ptr<f32>>, %y: !tt.ptr<f32>) {
        tt.store %x, %y : !tt.ptr<!tt.ptr<f32>>
        tt.return
      }
    }"""
    assert _Walk(read(text)).is_lost


def test_code_that_can_not_be_read_counts_as_all(monkeypatch):
    from jaxfn._triton import compile as compiling

    def fails(text):
        raise ValueError(text)

    @triton.jit
    def unread(x, y):
        tl.store(y, tl.load(x))

    monkeypatch.setattr(compiling, "read", fails)
    assert effects(unread) == ("xy", "xy")


# ---- buffers and variants


def test_two_parameters_in_one_buffer():
    buffer = jax.ShapeDtypeStruct((64,), F32)
    made = launched(copied, buffer, x=pointer(0), y=pointer(0, 8), n=5)
    assert (made.reads, made.writes) == ((0,), (0,))
    assert made.parameters_of(0) == ("x", "y")
    assert made.parameter_of(0) == "`x` and `y`"


def test_a_number_that_is_loaded_is_read():
    buffers = [jax.ShapeDtypeStruct((64,), F32)] * 2
    number = jax.ShapeDtypeStruct((1,), np.dtype("int32"))
    made = launched(copied, *buffers, number, x=pointer(0), y=pointer(1), n=Loaded(2))
    assert (made.reads, made.writes) == ((0, 2), (1,))


@triton.jit
def one_of(x, y, z, WHICH: tl.constexpr):
    tl.static_assert(WHICH < 3)
    if WHICH == 0:
        tl.store(x, tl.load(z))
    else:
        tl.store(y, 1.0)


def test_variants_that_read_and_write_different_buffers():
    made = launch(one_of, variants=[{"WHICH": 0}, {"WHICH": 1}])
    assert (made.reads, made.writes) == ((2,), (0, 1))
    assert launch(one_of, WHICH=0).writes == (0,)
    assert launch(one_of, WHICH=1).writes == (1,)


def test_variants_that_do_not_compile_are_left_out():
    made = launch(one_of, variants=[{"WHICH": 3}, {"WHICH": 1}, {"WHICH": 4}])
    assert [v.constants for v in made.usable] == [{"WHICH": 1}]
    assert made.writes == (1,)


def test_if_no_variant_compiles_the_error_has_tritons_words():
    made = launch(one_of, variants=[{"WHICH": 3}, {"WHICH": 4}])
    words = r"can't compile the kernel `one_of`.*here\.py:1.*CompileTimeAssertion"
    with pytest.raises(RuntimeError, match=words):
        _ = made.writes


def test_many_threads_compile():
    from concurrent.futures import ThreadPoolExecutor

    def one(n):
        return launch(copied, n=n).writes

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(100, 116))) == {(1,)}
