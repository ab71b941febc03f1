"""JAX's three decorators: errors, debug info, hidden frames, symbolic zeros."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
from jax._src import source_info_util, traceback_util
from jax._src.api_util import fun_sourceinfo
from jax._src.core import DebugInfo, initial_result_paths

SCAN_DROPS_JVP = jax.__version_info__ < (0, 12)
"""Whether the reverse derivative of a scan loses the rule of a custom_jvp.

The known half loses it. The second derivative is then the body's, and silently wrong
(0.10.2: 192.6 instead of 453.5; 0.12.0: right)."""

NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""JAX's errors for code that needs the value of a traced array."""

FORWARD_MODE_REFUSAL = (
    "can't apply forward-mode autodiff (jvp) to a custom_vjp function."
)
"""JAX's error for forward mode through a custom_vjp function."""


def is_refused_solve(error: Exception) -> bool:
    """Return whether JAX raised this error for a linear solve without transpose."""
    return "open an issue" in str(error)


def lacks_transpose(error: Exception) -> str | None:
    """Return the operation without transpose that JAX's error names, or None.

    For an operation that is a class (`lax.custom_root` in JAX 0.12), the error names
    the missing method.
    """
    found = re.search(r"subclass <class '(?:.*\.)?(\w+)'> must implement", str(error))
    return found[1] if found else None


def place_of(fun: Callable[..., Any]) -> str:
    """Return file and line of a function in JAX's form; empty without code."""
    return fun_sourceinfo(fun).partition(" at ")[2]


def hide_frames(folder: str) -> None:
    """Hide the files of a folder in tracebacks and source lines, like JAX's own."""
    # JAX compares prefixes, so add the separator.
    traceback_util.register_exclusion(folder + os.sep)
    source_info_util.register_exclusion(folder + os.sep)


def with_hidden_frames(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fun` with hidden frames removed from its errors, like `jax.jit`."""
    return traceback_util.api_boundary(fun)


def set_debug_info(
    fun: Callable[..., Any], name: str, source: str, arguments: tuple[str, ...]
) -> None:
    """Set the names of a function and its arguments in JAX's errors.

    Args:
        fun: The function that JAX gets.
        name: Name of the Function.
        source: Name, file and line of the user's rule.
        arguments: A name for each argument.
    """
    # JAX looks for this attribute before it inspects the function.
    info = DebugInfo(name, source, arguments, initial_result_paths)
    fun.__dict__["__fun_debug_info__"] = info


class _SymbolicZeros:
    """A value that is True, except for callers in JAX that would refuse it.

    An eager shard_map and Pallas kernels use only the function, not its rules. But they
    refuse symbolic zeros as "not implemented".
    """

    def __bool__(self) -> bool:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return not caller.startswith(_ONLY_THE_FUNCTION)

    def __repr__(self) -> str:
        return "True"


_ONLY_THE_FUNCTION = ("jax._src.shard_map", "jax._src.pallas")

SYMBOLIC_ZEROS: Any = _SymbolicZeros()
"""The argument `symbolic_zeros` of JAX's decorators."""
