"""Functions whose rules are wrong on purpose, each by a factor of its own.

The value is sin(x). `backward` gives 2 cos(x), `jvp` gives 3 cos(x), and the vmap rule
adds 0.5 to the value: whatever number comes out of a transformation tells which rule it
used. A plain derivative of the body would give 1.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import jaxfn

BACKWARD, JVP, BATCH = 2.0, 3.0, 0.5


class Separate(jaxfn.Function):
    @staticmethod
    def forward(x):
        return jnp.sin(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)


class Combined(jaxfn.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return jnp.sin(x)


def _backward(ctx, g):
    (x,) = ctx.saved_tensors
    return BACKWARD * jnp.cos(x) * g


def _jvp(ctx, t):
    (x,) = ctx.saved_tensors
    return JVP * jnp.cos(x) * t


def _vmap(info, in_dims, x):
    return jnp.sin(x) + BATCH, in_dims[0]


_RULES: dict[str, dict[str, Any]] = {
    "backward": {"backward": staticmethod(_backward)},
    "jvp": {"jvp": staticmethod(_jvp)},
    "both": {"backward": staticmethod(_backward), "jvp": staticmethod(_jvp)},
    "derived": {"backward": staticmethod(_backward), "generate_jvp_rule": True},
}
ENGINES = tuple(_RULES)
STYLES = ("separate", "combined")

REVERSE = {"backward": BACKWARD, "jvp": JVP, "both": BACKWARD, "derived": BACKWARD}
"""The factor in reverse mode, for each engine."""

FORWARD = {"backward": None, "jvp": JVP, "both": JVP, "derived": BACKWARD}
"""The factor in forward mode; None where JAX refuses it."""


def function(engine: str, style: str = "separate", *, batch: bool = False) -> Any:
    """A Function with the rules of an engine; with a vmap rule if `batch`."""
    base = Separate if style == "separate" else Combined
    rules = dict(_RULES[engine])
    if batch:
        rules["vmap"] = staticmethod(_vmap)
    return type(f"Wrong{engine.title()}", (base,), rules)
