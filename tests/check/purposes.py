"""The Functions of the parity catalogue whose rules `check` must be told about.

A reference has the value of forward and the derivative of the rules. `moves(value,
like)` makes one: the value of the first, which is constant, and the derivative of the
second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

from tests.parity.catalogue import FAMILIES
from tests.parity.catalogue.function_db_bodies import CubeGenVmap

BY_NAME = {case.name: case for cases in FAMILIES.values() for case in cases}
still = lax.stop_gradient


@dataclasses.dataclass(frozen=True)
class Purpose:
    """What `check` is told about a Function, and why.

    Attributes:
        why: in words.
        reference: the value of forward with the derivative of the rules.
        surrogate: is the derivative compared with nothing, or with the reference's
            alone?
        skip: checks that the Function fails on purpose.
        call: what is checked in place of the Function.
        low_precision: the dtype to try; None for none.
    """

    why: str
    reference: Callable[..., Any] | None = None
    surrogate: bool = False
    skip: tuple[str, ...] = ()
    call: Callable[..., Any] | None = None
    low_precision: str | None = "bfloat16"


def moves(value: Any, like: Any) -> Any:
    return like + still(value - like)


# ---- quantisers


def learned_step(x, step):
    q = x / step
    low, high = q < -4, q > 3
    error = jnp.where(low, -4, jnp.where(high, 3, jnp.round(q) - q))
    value = jnp.clip(jnp.round(q), -4, 3) * step
    slopes = still(1.0 * ~(low | high)), still(error / (3 * x.size) ** 0.5)
    return moves(value, slopes[0] * x + slopes[1] * step)


def clipped_activation(x, height):
    value = jnp.round(jnp.clip(x, 0, height) * 7 / height) * height / 7
    inside = jnp.where(x >= 0, x, 0)
    return moves(value, jnp.where(x >= height, height, inside))


def dorefa(w):
    squashed = jnp.tanh(w)
    level = squashed / (2 * jnp.abs(squashed).max()) + 0.5
    return 2 * moves(jnp.round(level * 3) / 3, level) - 1


def per_channel(x):
    low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
    scale = (high - low) / 15
    zero = jnp.round(-low / scale)
    value = (jnp.clip(jnp.round(x / scale) + zero, 0, 15) - zero) * scale
    return moves(value, jnp.where((x > low) & (x < high), x, 0))


# ---- steps with a bump for a slope


def spike(x, like):
    """`like` has the bump for a derivative, so that the second one is right too."""
    return moves((x > 0).astype(x.dtype), like)


def fast_sigmoid(x, slope=25.0):
    return spike(x, x / (1 + slope * jnp.abs(x)))


def arctan(x):
    return spike(x, jnp.arctan(jnp.pi * x) / jnp.pi)


def triangle(x):
    inside = jnp.clip(x, -1, 1)
    return spike(x, 0.3 * (inside - inside * jnp.abs(inside) / 2))


def leaky_neuron(current, decay):
    def step(v, i):
        v = decay * v + i
        out = fast_sigmoid(v - 1, 5.0)
        return v * (1 - out), (v, out)

    return lax.scan(step, jnp.zeros_like(current[0]), current)[1]


def gumbel(logits, noise):
    score = (logits - jnp.log(-jnp.log(still(noise)))) / 0.8
    soft = jnp.exp(score - logsumexp(score, -1, keepdims=True))
    return moves(jnp.where(soft == soft.max(-1, keepdims=True), 1.0, 0.0), soft)


def inherited(x):
    kept = jnp.where(x > 0.5, x, 0)
    return jnp.where(x > 0, x, 0) * moves(3 * kept, kept)


# ---- outputs without a derivative


def batch_norm(x, running):
    mean, var = x.mean(0), x.var(0)
    return (x - mean) / jnp.sqrt(var + 1e-5), still(running + 0.1 * (mean - running))


def cube_and_values(x):
    return CubeGenVmap.apply(x), [still(x**3), still(3 * x**2)]


# ---- the table

THROUGH = "straight-through: forward rounds, and backward is that of a smooth function"
BUMP = "a surrogate: forward is a step, and its slope a bump"
GRADIENT = "forward does nothing, and backward changes the gradient"
CUT = "backward limits the gradient: it is no derivative, and not linear"
MARKED = "an output that moves has no derivative"
VALUES = "forward looks at values, so nothing can trace it"
NOT_LINEAR = ("backward is linear",)
TRACED = (
    *("value under jit", "backward under jit", "vmap", "vmap under jit"),
    *("vmap of backward", "backward of vmap", "scan", "checkpoint", "leaks"),
)

PURPOSES = {
    "round": Purpose(THROUGH, lambda x: moves(jnp.round(x), x)),
    "learned_step": Purpose(THROUGH, learned_step),
    "clipped_activation": Purpose(THROUGH, clipped_activation),
    "dorefa": Purpose(THROUGH, dorefa),
    "per_channel": Purpose(THROUGH, per_channel),
    "gumbel_straight_through": Purpose(THROUGH, gumbel),
    "ternary": Purpose(CUT, surrogate=True, skip=NOT_LINEAR),
    "fast_sigmoid": Purpose(BUMP, fast_sigmoid),
    "arctan": Purpose(BUMP, arctan),
    "triangle": Purpose(BUMP, triangle),
    "leaky_neuron": Purpose(BUMP, leaky_neuron),
    "reverse": Purpose(GRADIENT, lambda x: jnp.sin(x) * moves(x, -0.5 * x)),
    "scale": Purpose(GRADIENT, lambda x, k: moves(x * k, still(k) * (x * k))),
    "DB-13": Purpose(GRADIENT, lambda x: moves(x, 3.14 * x)),
    "DB-14": Purpose(GRADIENT, lambda x, y: (still(x), still(y))),
    "inherited": Purpose(
        "backward is that of the base class, for a forward that is scaled",
        inherited,
    ),
    "add_penalty": Purpose(
        "backward adds a term, whatever the gradient is: it is affine, not linear",
        surrogate=True,
        skip=("backward of zero", *NOT_LINEAR),
    ),
    "clip_norm": Purpose(CUT, surrogate=True, skip=NOT_LINEAR),
    "clip_value": Purpose(CUT, surrogate=True, skip=NOT_LINEAR),
    "clamp_through": Purpose(CUT, surrogate=True, skip=NOT_LINEAR),
    "batch_norm": Purpose(MARKED, batch_norm),
    "smooth_l1": Purpose(MARKED, BY_NAME["smooth_l1"].exact),
    "DB-04": Purpose(MARKED, lambda x: (x**3, still(x**3), still(x))),
    "DB-08": Purpose(MARKED, cube_and_values),
    "keep_positive": Purpose(VALUES, skip=TRACED),
    "full_scale": Purpose(VALUES, skip=TRACED),
    "matrix_root": Purpose(
        "backward is right for symmetric matrices, the only ones that have the root",
        call=lambda a: BY_NAME["matrix_root"].jax((a + a.T) / 2),
    ),
    "scipy_solve": Purpose("SciPy warns of bfloat16", low_precision=None),
    "ode_adjoint": Purpose(
        "backward solves another equation: not the gradient of forward's steps",
        surrogate=True,
    ),
}
"""By name of the case; for the others the rules are the derivatives of forward."""
