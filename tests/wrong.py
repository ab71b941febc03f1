"""Functions whose rules are wrong on purpose, each by a factor of its own.

The value is sin(x). `backward` gives 2 cos(x), `jvp` gives 3 cos(x), and the vmap rule
adds 0.5 to the value: whatever number comes out of a transformation tells which rule it
used. A plain derivative of the body would give 1.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from tests import build
from tests.build import keep, rules_of, saving

BACKWARD, JVP, BATCH = 2.0, 3.0, 0.5


def _forward(ctx, x):
    keep(ctx, x)
    return jnp.sin(x)


def _backward(ctx, g):
    (x,) = ctx.saved_tensors
    return BACKWARD * jnp.cos(x) * g


def _jvp(ctx, t):
    (x,) = ctx.saved_tensors
    return JVP * jnp.cos(x) * t


def _vmap(info, in_dims, x):
    return jnp.sin(x) + BATCH, in_dims[0]


_STYLES: dict[str, dict[str, Any]] = {
    "separate": {"forward": lambda x: jnp.sin(x), "setup_context": saving()},
    "combined": {"forward": _forward},
}
ENGINES = ("backward", "jvp", "both", "derived")
STYLES = tuple(_STYLES)

REVERSE = {"backward": BACKWARD, "jvp": JVP, "both": BACKWARD, "derived": BACKWARD}
"""The factor in reverse mode, for each engine."""

FORWARD = {"backward": None, "jvp": JVP, "both": JVP, "derived": BACKWARD}
"""The factor in forward mode; None where JAX refuses it."""


def function(engine: str, style: str = "separate", *, batch: bool = False) -> Any:
    """A Function with the rules of an engine; with a vmap rule if `batch`."""
    rules = _STYLES[style] | rules_of(engine, _backward, _jvp)
    if batch:
        rules["vmap"] = _vmap
    return build.function(f"Wrong{engine.title()}", **rules)
