"""Functions made in a line, for tests that need many."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np

import jaxfn


def function(name: str = "F", base: Any = jaxfn.Function, **members: Any) -> Any:
    """A subclass of Function with these rules; plain functions become static."""
    wrapped = {
        key: staticmethod(x) if isinstance(x, FunctionType) else x
        for key, x in members.items()
    }
    return type(name, (base,), wrapped)


def saving() -> Any:
    """A setup_context that saves all array inputs for both modes."""

    def setup_context(ctx, inputs, output):
        keep(ctx, *inputs)

    return setup_context


def keep(ctx: Any, *values: Any) -> None:
    """Save these for both modes."""
    ctx.save_for_backward(*values)
    ctx.save_for_forward(*values)


def allclose(got: Any, expected: Any) -> None:
    """Assert that two arrays are equal, but for how float32 rounds."""
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-6)


def nothing(ctx: Any, inputs: Any, output: Any) -> None:
    """A setup_context that saves nothing."""


def rules_of(engine: str, backward: Any, jvp: Any) -> dict[str, Any]:
    """Those of the two that an engine ("backward", "jvp", "both", "derived") has."""
    found = {} if engine == "jvp" else {"backward": backward}
    if engine in ("jvp", "both"):
        found["jvp"] = jvp
    return found | {"generate_jvp_rule": engine == "derived"}


def in_style(style: str, value: Any, save: Any = nothing) -> dict[str, Any]:
    """A forward with this value, in the "separate" style or the "combined" one.

    Args:
        style: one of the two.
        value: of the arguments.
        save: takes ctx, the arguments and the value, as setup_context does.
    """
    if style == "separate":
        return {"forward": value, "setup_context": save}

    def forward(ctx, *inputs):
        output = value(*inputs)
        save(ctx, inputs, output)
        return output

    return {"forward": forward}


SCALE = [1.0]
"""A context of a user's own: the last of these is what holds."""


@contextlib.contextmanager
def scale(value: float) -> Iterator[None]:
    """A `with` block in which another scale holds."""
    SCALE.append(value)
    try:
        yield
    finally:
        SCALE.pop()
