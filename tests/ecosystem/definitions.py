"""One function with rules that are wrong on purpose, defined in each way.

The value is sin(x). A reverse rule says 2 cos(x), a forward rule 3 cos(x), and a batch
rule adds a half to the value: what comes out of a library tells which rule it ran.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

import jaxfn
from tests.build import function, keep, rules_of, saving
from tests.wrong import BACKWARD, BATCH, ENGINES, JVP

Flat = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Rules:
    """The bodies, which every way to define the function shares.

    Attributes:
        value: of x.
        pull: the gradient, of x and the cotangent.
        push: the tangent, of x and the tangent.
    """

    value: Flat = lambda x: jnp.sin(x)
    pull: Flat = lambda x, g: BACKWARD * jnp.cos(x) * g
    push: Flat = lambda x, t: JVP * jnp.cos(x) * t

    def batched(self, x: Any) -> Any:
        return jax.vmap(self.value)(x) + BATCH


# ---- by hand


def _with_batch_rule(rules: Rules) -> Flat:
    f = custom_vmap(lambda x: rules.value(x))
    f.def_vmap(lambda size, in_batched, x: (rules.batched(x), True))
    return f


def by_custom_vjp(rules: Rules, batch: bool) -> Flat:
    value = _with_batch_rule(rules) if batch else rules.value
    f = jax.custom_vjp(lambda x: value(x))
    f.defvjp(lambda x: (value(x), x), lambda x, g: (rules.pull(x, g),))
    return f


def by_custom_jvp(rules: Rules, batch: bool) -> Flat:
    value = _with_batch_rule(rules) if batch else rules.value
    f = jax.custom_jvp(lambda x: value(x))
    f.defjvp(lambda p, t: (f(*p), rules.push(*p, *t)))
    return f


# ---- by jaxfn


def _function(engine: str) -> Callable[[Rules, bool], Flat]:
    """A Function in the combined style; in the separate one with a batch rule."""

    def define(rules: Rules, batch: bool) -> Flat:
        def forward(ctx, x):
            keep(ctx, x)
            return rules.value(x)

        members = {"forward": forward} | rules_of(
            engine,
            lambda ctx, g: rules.pull(*ctx.saved_tensors, g),
            lambda ctx, t: rules.push(*ctx.saved_tensors, t),
        )
        if batch:
            members["forward"] = lambda x: rules.value(x)
            members["setup_context"] = saving()
            members["vmap"] = lambda info, in_dims, x: (rules.batched(x), 0)
        return function("Wrong", **members).apply

    return define


def by_decorator(rules: Rules, batch: bool) -> Flat:
    f = jaxfn.custom_function(lambda x: rules.value(x))
    f.defvjp(lambda x: (f(x), x), lambda x, g: (rules.pull(x, g),))
    f.defjvp(lambda p, t: (f(*p), rules.push(*p, *t)))
    if batch:
        f.def_vmap(lambda size, in_batched, x: (rules.batched(x), True))
    return f


BY_HAND: dict[str, Callable[[Rules, bool], Flat]] = {
    "custom_vjp": by_custom_vjp,
    "custom_jvp": by_custom_jvp,
}
OURS: dict[str, Callable[[Rules, bool], Flat]] = {
    **{engine: _function(engine) for engine in ENGINES},
    "decorator": by_decorator,
}
DEFINITIONS = BY_HAND | OURS

REVERSE = dict.fromkeys(DEFINITIONS, "backward") | {"custom_jvp": "jvp", "jvp": "jvp"}
"""The rule that each definition has for reverse mode."""

FORWARD = dict.fromkeys(DEFINITIONS, "jvp") | {
    "custom_vjp": None,
    "backward": None,
    "derived": "backward",
}
"""The rule for forward mode; None where there is none."""


def define(name: str, rules: Rules | None = None, *, batch: bool = False) -> Flat:
    """A new function of a definition."""
    return DEFINITIONS[name](rules or Rules(), batch)


# ---- what must come out


def expected(rule: str, *, batch: bool = False) -> Flat:
    """A function without custom rules whose derivative is what `rule` says.

    In sin(x0) + k (sin(x) - sin(x0)), where x0 is x without its derivative, the value
    is sin(x) and every derivative, in every mode, k times that of sin.
    """
    factor = {"backward": BACKWARD, "jvp": JVP}[rule]

    def f(x):
        s = jnp.sin(x)
        s0 = jax.lax.stop_gradient(s)
        return s0 + batch * BATCH + factor * (s - s0)

    return f
