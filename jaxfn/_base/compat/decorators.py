"""JAX's three decorators: what they do, say and need to be told."""

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
"""Whether a scan that is differentiated in reverse loses the rule of a custom_jvp.

It loses it in the half whose values JAX knows. The next derivative there is then that
of the body: a silently wrong second derivative (0.10.2: 192.6 for 453.5; 0.12.0:
right)."""


FORWARD_MODE_REFUSAL = (
    "can't apply forward-mode autodiff (jvp) to a custom_vjp function."
)
"""What JAX says when forward mode meets a custom_vjp function."""


def is_refused_solve(error: Exception) -> bool:
    """Is it what JAX says of a linear solve that it can't transpose?

    All that it says of one is to open an issue.
    """
    return "open an issue" in str(error)


def lacks_transpose(error: Exception) -> str | None:
    """Return the operation of which JAX says that it has no transpose, if it does.

    Of one that is written as a class, as `lax.custom_root` is in JAX 0.12, it says what
    that class must implement.
    """
    found = re.search(r"subclass <class '(?:.*\.)?(\w+)'> must implement", str(error))
    return found[1] if found else None


def place_of(fun: Callable[..., Any]) -> str:
    """File and line of a function, as JAX shows them; empty for one without code."""
    return fun_sourceinfo(fun).partition(" at ")[2]


def hide_frames(folder: str) -> None:
    """Leave the files of a folder out of tracebacks and source lines, as JAX's own.

    JAX shows the frames of its users alone, unless JAX_TRACEBACK_FILTERING is "off";
    and a profile names the line of the user's program that made an operation.
    """
    # JAX compares beginnings: without the separator it would hide folder_of_others too.
    traceback_util.register_exclusion(folder + os.sep)
    source_info_util.register_exclusion(folder + os.sep)


def with_hidden_frames(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun`, from whose errors hidden frames are removed, as from `jax.jit`'s."""
    return traceback_util.api_boundary(fun)


def set_debug_info(
    fun: Callable[..., Any], name: str, source: str, arguments: tuple[str, ...]
) -> None:
    """Tell JAX what `fun` stands for, as its errors name a function and its arguments.

    Args:
        fun: the function that JAX will be given.
        name: the name of what `fun` is a part of.
        source: the function's own name, file and line.
        arguments: a name for each argument.
    """
    # JAX looks for this attribute before it inspects the function, whose own name,
    # arguments and line are of jaxfn and would mean nothing to the user.
    info = DebugInfo(name, source, arguments, initial_result_paths)
    fun.__dict__["__fun_debug_info__"] = info


class _SymbolicZeros:
    """A value that is True, but not for readers in JAX that would refuse it.

    An eager shard_map and the kernels of Pallas run or lower the function alone, and
    never look at its rules. All the same they refuse a function whose rules want
    symbolic zeros ("not implemented").
    """

    def __bool__(self) -> bool:
        # The frame above is that of the code in JAX that asks. A plain True is refused
        # by these readers, and False would hide from the rules what is perturbed.
        reader = sys._getframe(1).f_globals.get("__name__", "")
        return not reader.startswith(_ONLY_THE_FUNCTION)

    def __repr__(self) -> str:
        return "True"


_ONLY_THE_FUNCTION = ("jax._src.shard_map", "jax._src.pallas")


SYMBOLIC_ZEROS: Any = _SymbolicZeros()
"""What to pass as `symbolic_zeros` to JAX's decorators."""
