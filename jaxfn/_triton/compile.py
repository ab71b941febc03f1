"""Compile a kernel for its arguments to TTIR that the interpreter can run."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxfn._triton import experimental
from jaxfn._triton.errors import LaunchError, UnreadableError
from jaxfn._triton.program import Function, read

POINTERS = {
    **{f"{u}int{n}": f"*{u or 'i'}{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
    **{f"float{n}": f"*fp{n}" for n in (16, 32, 64)},
    "bool": "*i1",
    "bfloat16": "*bf16",
    "float8_e4m3fn": "*fp8e4nv",
    "float8_e5m2": "*fp8e5",
    "float8_e4m3fnuz": "*fp8e4b8",
    "float8_e5m2fnuz": "*fp8e5b16",
}
"""Triton's name for pointers to the types that Triton and NumPy both have."""

# `tl.device_assert` is kept, and integers wrap as they do on a GPU.
_OPTIONS = {"debug": True, "sanitize_overflow": False, "enable_fp_fusion": True}

_compiled: weakref.WeakKeyDictionary[Any, dict[Any, dict[str, Function]]]
_compiled = weakref.WeakKeyDictionary()


def _memory(value: np.ndarray) -> str:
    if value.dtype.name not in POINTERS:
        raise TypeError(f"no kernel points to {value.dtype}")
    flags = value.flags
    if value.ndim != 1 or not (flags.c_contiguous and flags.writeable):
        raise TypeError("memory must be a contiguous, writeable array of one axis")
    if not flags.aligned:
        raise TypeError("memory must be aligned")
    return POINTERS[value.dtype.name]


def number_type(value: float) -> str:
    """Return the type that Triton gives to a Python number."""
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, float):
        return "fp32"
    if -(2**31) <= value < 2**31:
        return "i32"
    return "i64" if value < 2**63 else "u64"


def _type(value: Any, parameter: Any) -> str:
    """Return Triton's type of an argument, "constexpr" for a compile-time constant."""
    annotated = experimental.annotated_type(parameter)
    if experimental.is_constexpr(parameter):
        return "constexpr"
    if isinstance(value, np.ndarray):
        return _memory(value)
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is int and not -(2**63) <= value < 2**64:
        raise TypeError(f"{value} is too large")
    if type(value) is int and value == 1 and experimental.is_specialized(parameter):
        return "constexpr"
    if isinstance(value, (bool, int, float)):
        return annotated or number_type(value)
    if isinstance(value, tuple | list):
        raise TypeError("tuples are constants only")
    return "constexpr"


def complete(kernel: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in the order of the parameters, with defaults.

    Raises:
        LaunchError: A parameter has no argument, or an argument no parameter; or the
            kernel is no function of `triton.jit`.
    """
    if not experimental.is_jit_function(kernel):
        title = getattr(kernel, "__name__", repr(kernel))
        message = (
            f"`{title}` is a {type(kernel).__name__}, not a kernel of `triton.jit`"
        )
        raise LaunchError(title, message)
    title, parameters = experimental.name_of(kernel), experimental.parameters(kernel)
    values = {p.name: p.default for p in parameters if p.has_default}
    values.update(arguments)
    names = [p.name for p in parameters]
    if unknown := sorted(set(values) - set(names)):
        raise LaunchError(title, f"`{title}` has no parameters {unknown}")
    if missing := [name for name in names if name not in values]:
        raise LaunchError(title, f"`{title}` got no arguments {missing}")
    constexpr = experimental.language().constexpr
    values = {k: v.value if isinstance(v, constexpr) else v for k, v in values.items()}
    return {name: values[name] for name in names}


def _key(value: Any) -> Any:
    """Return a key that tells constants apart; 1, 1.0 and True are equal in Python."""
    try:
        hash(value)
    except TypeError:
        return type(value), repr(value)
    return type(value), repr(value), value


def _text(
    title: str, kernel: Any, signature: Any, constants: Any, num_warps: int
) -> str:
    options = {**_OPTIONS, "num_warps": num_warps}
    try:
        return str(experimental.ttir(kernel, signature, constants, options))
    except Exception as error:
        message = f"Triton can't compile `{title}`: {error}"
        raise LaunchError(title, message) from error


def _read(title: str, text: str) -> dict[str, Function]:
    try:
        return read(text)
    except Exception as error:
        message = f"`{title}` has code that can't run on a CPU: {error}"
        raise UnreadableError(title, message) from error


def compiled(
    kernel: Any, arguments: Mapping[str, Any], num_warps: int = 4
) -> tuple[dict[str, Function], list[str]]:
    """Return the functions of a kernel, and the names of its run-time arguments.

    Args:
        kernel: A `triton.jit` function.
        arguments: Its complete arguments; only the types of arrays matter.
        num_warps: Number of warps of a program, which a kernel can read.

    Raises:
        LaunchError: An argument has a wrong type, or Triton can't compile the kernel.
        UnreadableError: Triton compiles it to code that `program` can't read.
    """
    title, signature, constants = experimental.name_of(kernel), {}, {}
    for i, p in enumerate(experimental.parameters(kernel)):
        try:
            signature[p.name] = _type(arguments[p.name], p)
        except TypeError as error:
            message = f"argument `{p.name}` of `{title}`: {error}"
            raise LaunchError(title, message) from error
        if signature[p.name] == "constexpr":
            constants[i,] = arguments[p.name]
    try:
        known = _compiled.setdefault(kernel, {})
    except Exception as error:  # the hash reads all helpers
        message = f"Triton can't compile `{title}`: {error}"
        raise LaunchError(title, message) from error
    key = (num_warps, *signature.values(), *map(_key, constants.values()))
    if key not in known:
        text = _text(title, kernel, signature, constants, num_warps)
        known[key] = _read(title, text)
    return known[key], [name for name, k in signature.items() if k != "constexpr"]
