"""Kernels from text, and values to try them with."""

import itertools
import linecache
import re

import jax
import ml_dtypes
import numpy as np
import triton
import triton.language as tl
from triton.language.extra import libdevice

from jaxfn._triton import Launch, Pointer, Variant
from jaxfn._triton.interpreter import run

SIZE = 64
F32 = np.dtype("float32")
FLOATS = ("float32", "bfloat16", "float16")
SIGNED = ("int32", "int8", "int16", "int64")
UNSIGNED = ("uint32", "uint8", "uint16", "uint64")
_numbers = itertools.count()


def dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def jit(source, **names):
    """A kernel, named `kernel`, from a text: each function there is for Triton."""
    source = re.sub(r"^(?=def )", "@triton.jit\n", source, flags=re.MULTILINE)
    file = f"<kernel {next(_numbers)}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    space = {
        "__name__": "kernels",
        "tl": tl,
        "triton": triton,
        "libdevice": libdevice,
        **names,
    }
    exec(compile(source, file, "exec"), space)
    return space["kernel"]


def compute(expression, *arrays, result, size=None, before="", **constants):
    """An expression of `x`, `y`, `z` in a kernel, as an array."""
    letters = "xyz"[: len(arrays)]
    parameters = ", ".join(f"{c}: tl.constexpr" for c in ("N", "M", *constants))
    lines = [
        f"def kernel({''.join(f'{a}_ptr, ' for a in letters)}out, {parameters}):",
        *(f"    {a} = tl.load({a}_ptr + tl.arange(0, N))" for a in letters),
        *(f"    {line}" for line in before.splitlines()),
        f"    result = {expression}",
        "    tl.store(out + tl.arange(0, M), tl.broadcast_to(result, [M]))",
    ]
    size = SIZE if size is None else size
    out = np.zeros(size, dtype(result))
    values = {f"{a}_ptr": x for a, x in zip(letters, arrays, strict=True)}
    length = len(arrays[0]) if arrays else SIZE
    kernel = jit("\n".join(lines))
    run(kernel, (1, 1, 1), {**values, "out": out, "N": length, "M": size, **constants})
    return out


def values(name, seed=0, low=-4.0, high=4.0, size=SIZE):
    """Random values of a type; integers over all bits."""
    rng, of = np.random.default_rng(seed), dtype(name)
    if of.kind in "iu":
        limits = np.iinfo(of)
        return rng.integers(limits.min, limits.max, size, of, endpoint=True)
    if of.kind == "b":
        return rng.random(size) < 0.5
    return rng.uniform(low, high, size).astype(of)


def launched(kernel, /, *buffers, variants=({},), **arguments):
    """A launch on arrays, each a buffer, with the constants of each variant."""
    return Launch(
        kernel,
        arguments,
        tuple(Variant(v, {}, (1, 1, 1)) for v in variants),
        tuple(jax.ShapeDtypeStruct(b.shape, b.dtype) for b in buffers),
        "here.py:1",
    )


def pointer(buffer, offset=0, dtype=F32):
    return Pointer(buffer, offset, np.dtype(dtype))
