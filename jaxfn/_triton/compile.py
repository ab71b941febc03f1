"""From a kernel and its arguments to TTIR that the interpreter can run."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxfn._triton import experimental
from jaxfn._triton.errors import LaunchError
from jaxfn._triton.program import Function, read

POINTERS = {
    "bool": "*i1",
    "int8": "*i8",
    "int16": "*i16",
    "int32": "*i32",
    "int64": "*i64",
    "uint8": "*u8",
    "uint16": "*u16",
    "uint32": "*u32",
    "uint64": "*u64",
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "float64": "*fp64",
    "float8_e4m3fn": "*fp8e4nv",
    "float8_e5m2": "*fp8e5",
    "float8_e4m3fnuz": "*fp8e4b8",
    "float8_e5m2fnuz": "*fp8e5b16",
}
"""Triton's name for pointers to the types that Triton and JAX both have."""

# `tl.device_assert` is kept, and integers wrap as they do on a GPU.
_OPTIONS = {"debug": True, "sanitize_overflow": False, "enable_fp_fusion": True}

_compiled: weakref.WeakKeyDictionary[Any, dict[Any, dict[str, Function]]]
_compiled = weakref.WeakKeyDictionary()


def type_of(value: Any, annotated: str) -> str:
    """Triton's type of an argument, "constexpr" for what the compiler must know.

    Raises:
        TypeError: A kernel can't take it.
    """
    if isinstance(value, np.ndarray):
        _check_memory(value)
        return POINTERS[value.dtype.name]
    if isinstance(value, bool | np.bool_):
        return annotated or "u1"
    if isinstance(value, int | np.integer):
        if annotated or value == 1:
            return annotated or "constexpr"
        if not -(2**63) <= value < 2**64:
            raise TypeError(f"{value} is too large")
        small = -(2**31) <= value < 2**31
        return "i32" if small else "i64" if value < 2**63 else "u64"
    if isinstance(value, float | np.floating):
        return annotated or "fp32"
    if isinstance(value, tuple | list):
        raise TypeError("tuples are constants only")
    return "constexpr"


def _check_memory(value: np.ndarray) -> None:
    if value.dtype.name not in POINTERS:
        raise TypeError(f"no kernel points to {value.dtype}")
    flags = value.flags
    if value.ndim != 1 or not (flags.c_contiguous and flags.writeable):
        raise TypeError("memory must be a contiguous, writeable array of one axis")
    if not flags.aligned:
        raise TypeError("memory must be aligned")


def complete(kernel: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in the order of the parameters, with defaults.

    Raises:
        LaunchError: A parameter has no argument, or an argument no parameter.
    """
    parameters = experimental.parameters(kernel)
    if unknown := set(arguments) - {p.name for p in parameters}:
        message = f"`{kernel.__name__}` has no parameters {sorted(unknown)}"
        raise LaunchError(kernel.__name__, message)
    values = {}
    for p in parameters:
        if p.name not in arguments and not p.has_default:
            message = f"`{kernel.__name__}` got no argument `{p.name}`"
            raise LaunchError(kernel.__name__, message)
        values[p.name] = arguments.get(p.name, p.default if p.has_default else None)
    return values


def compiled(
    kernel: Any, arguments: Mapping[str, Any]
) -> tuple[dict[str, Function], list[str]]:
    """The functions of a kernel for such arguments, and which it takes when it runs.

    Raises:
        LaunchError: An argument is of a wrong type, or Triton can't compile it.
    """
    signature, constants = {}, {}
    for i, p in enumerate(experimental.parameters(kernel)):
        value = arguments[p.name]
        try:
            annotated = p.annotation_type or ""
            kind = "constexpr" if p.is_constexpr else type_of(value, annotated)
            if kind == "constexpr" and p.do_not_specialize and type(value) is int:
                kind = "constexpr" if p.is_constexpr else "i32"
        except TypeError as error:
            message = f"argument `{p.name}` of `{kernel.__name__}`: {error}"
            raise LaunchError(kernel.__name__, message) from error
        signature[p.name] = kind
        if kind == "constexpr":
            constants[i,] = getattr(value, "value", value)
    key = (*signature.values(), *((type(v), repr(v)) for v in constants.values()))
    known = _compiled.setdefault(kernel, {})
    if key not in known:
        try:
            module = experimental.ttir(kernel, signature, constants, _OPTIONS)
        except Exception as error:
            message = f"Triton can't compile `{kernel.__name__}`: {error}"
            raise LaunchError(kernel.__name__, message) from error
        known[key] = read(str(module))
    return known[key], [name for name, k in signature.items() if k != "constexpr"]
