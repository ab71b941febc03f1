"""The generated kernel of a launch, which takes only buffers and calls the user's.

Its text contains numbers and offsets, for example:

    def launch_add(b0, b1, CASE: tl.constexpr):
        if CASE == 0:
            kernel(x=b0 + 4, y=b1, n=tl.full((), 12, tl.int32), BLOCK=8)
        if CASE == 1:
            kernel(x=b0 + 4, y=b1, n=tl.full((), 12, tl.int32), BLOCK=16)

A case is a set of constants; an autotuned kernel has several. The same text runs in the
interpreter and on a GPU. And jax-triton gets only arguments that it supports: it would
compile a float as a constant, and has its own parameters like `num_warps`.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxfn._triton import experimental
from jaxfn._triton.arguments import Loaded, Pointer, Variant
from jaxfn._triton.compile import POINTERS, number_type

_LANGUAGE = {
    "i1": "int1",
    "u1": "int1",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "fp8e4nv": "float8e4nv",
    "fp8e5": "float8e5",
    "fp8e4b8": "float8e4b8",
    "fp8e5b16": "float8e5b16",
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)},
}
"""Names of types in `triton.language`."""


def element_type(dtype: Any) -> str | None:
    """Return Triton's name for a type of elements; None if it has none."""
    pointer = POINTERS.get(str(dtype))  # keys of JAX have types that NumPy lacks
    return pointer and pointer.removeprefix("*")


@dataclass(frozen=True, eq=False)
class Generated:
    """The kernel of a launch.

    Attributes:
        kernel: A `JITFunction` of the buffers, and of `CASE` if there are several.
        cases: Number of the case of each variant.
    """

    kernel: Any
    cases: tuple[int, ...]

    def constants(self, case: int) -> dict[str, int]:
        """Return the constants that select this case."""
        return {"CASE": case} if max(self.cases) else {}


def generate(
    kernel: Any,
    arguments: dict[str, Any],
    variants: Sequence[Variant],
    buffers: Sequence[jax.ShapeDtypeStruct],
    outputs: Sequence[int] = (),
) -> Generated:
    """Make the kernel of a launch.

    Args:
        kernel: The user's `JITFunction`.
        arguments: The arguments that all variants share.
        variants: The configurations.
        buffers: The types of the buffers.
        outputs: Numbers of buffers that are passed again, after the others.
    """
    writer = _Writer(kernel, buffers)
    distinct: dict[Any, int] = {}
    cases = tuple(
        distinct.setdefault(
            (writer.call({**arguments, **v.constants}), v.grid), len(distinct)
        )
        for v in variants
    )
    calls = [call for call, _ in distinct]
    names = [*(f"b{i}" for i in range(len(buffers))), *(f"o{i}" for i in outputs)]
    body = calls
    if len(calls) > 1:
        names.append("CASE: tl.constexpr")
        body = [
            line
            for i, call in enumerate(calls)
            for line in (f"if CASE == {i}:", f"    {call}")
        ]
    head = f"def launch_{experimental.name_of(kernel)}({', '.join(names)}):"
    text = "".join(f"{line}\n" for line in (head, *(f"    {line}" for line in body)))
    return Generated(_jit(text, writer.globals), cases)


class _Writer:
    """A writer of calls of a kernel, which collects the globals that they use.

    Args:
        kernel: The user's `JITFunction`.
        buffers: The types of the buffers.
    """

    def __init__(self, kernel: Any, buffers: Sequence[jax.ShapeDtypeStruct]) -> None:
        self.globals: dict[str, Any] = {"kernel": kernel}
        self._parameters = {p.name: p for p in experimental.parameters(kernel)}
        self._buffers = buffers

    def call(self, arguments: dict[str, Any]) -> str:
        """Write a call of the kernel with these arguments."""
        given = (
            f"{name}={self._argument(parameter, arguments[name])}"
            for name, parameter in self._parameters.items()
            if name in arguments
        )
        return f"kernel({', '.join(given)})"

    def _argument(self, parameter: Any, value: Any) -> str:
        if isinstance(value, Pointer):
            return self._pointer(value)
        if isinstance(value, Loaded):
            return self._loaded(parameter, value)
        if isinstance(value, np.generic):
            value = value.item()
        if experimental.is_constexpr(parameter):
            return self._constant(value)
        if isinstance(value, tuple):
            return f"({''.join(f'{self._argument(parameter, x)}, ' for x in value)})"
        if not isinstance(value, (bool, int, float)):
            return self._constant(value)
        if type(value) is int and value == 1 and experimental.is_specialized(parameter):
            return "1"
        kind = experimental.annotated_type(parameter) or number_type(value)
        text = f"tl.full((), {_literal(value)}, tl.{_LANGUAGE[kind]})"
        # Triton makes its null value from any zero, and loses the sign.
        is_negative_zero = value == 0 and math.copysign(1, value) < 0
        return f"{text.replace('-0.0', '0.0')} * -1.0" if is_negative_zero else text

    def _pointer(self, value: Pointer) -> str:
        buffer = self._buffers[value.buffer]
        text = f"b{value.buffer}"
        if value.offset:
            text = f"{text} + {value.offset}"
        if np.dtype(value.dtype) == buffer.dtype:
            return text
        kind = _LANGUAGE[element_type(np.dtype(value.dtype)) or ""]
        return f"({text}).to(tl.pointer_type(tl.{kind}))"

    def _loaded(self, parameter: Any, value: Loaded) -> str:
        # Triton gets a Python float as float32, whatever tensor it was read from.
        is_float = np.dtype(self._buffers[value.buffer].dtype).kind not in "iub"
        kind = experimental.annotated_type(parameter) or ("fp32" if is_float else "")
        text = f"tl.load(b{value.buffer})"
        return f"{text}.to(tl.{_LANGUAGE[kind]})" if kind else text

    def _constant(self, value: Any) -> str:
        """Write a value that Triton compiles into the kernel."""
        if value is None or type(value) in (bool, int, float, str):
            return _literal(value)
        if type(value) is tuple:
            return f"({''.join(f'{self._constant(x)}, ' for x in value)})"
        for name, known in self.globals.items():
            if known is value or getattr(known, "value", None) is value:
                return name
        name = f"C{len(self.globals)}"
        is_callable = experimental.is_jit_function(value)
        constexpr = experimental.language().constexpr
        self.globals[name] = value if is_callable else constexpr(value)
        return name


def _literal(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, (bool, int, float)):  # a subclass may print otherwise
        base = next(kind for kind in (bool, int, float) if isinstance(value, kind))
        return repr(base(value))
    return repr(value)


_MADE: dict[Any, Any] = {}


def _identity(value: Any) -> Any:
    """Return a key that tells constants apart; equal numbers may differ in type."""
    if experimental.is_jit_function(value):  # its hash reads all its helpers
        return id(value)
    try:
        hash(value)
    except TypeError:  # a mutable object
        return type(value), repr(value)
    return type(value), value


def _jit(text: str, names: dict[str, Any]) -> Any:
    """Make a kernel from its text; the same for the same text and globals.

    jax-triton and Triton cache by kernel. So they don't compile a launch again when it
    is traced again.
    """
    key = (text, *(_identity(getattr(x, "value", x)) for x in names.values()))
    with experimental.LOCK:
        if key not in _MADE:
            _MADE[key] = _exec(text, names, len(_MADE))
        return _MADE[key]


def _exec(text: str, names: dict[str, Any], number: int) -> Any:
    file = f"<jaxfn launch {number}>"
    # Triton reads a kernel's text by inspect, which looks in this cache.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = {"__name__": __name__, "tl": experimental.language(), **names}
    exec(compile(text, file, "exec"), scope)
    head = text[len("def ") : text.index("(")]
    return experimental.module().jit(scope[head])
