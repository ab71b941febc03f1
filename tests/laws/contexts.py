"""Contexts of the caller that a rule can read, each with a way to see that it did.

A context is entered around the transformed call. A rule of a Function reads it by
`act(v, at)`, which is linear in `v` and the same when transposed, so that every rule
may do it: the value is another in the context, or the lowered program is.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxfn
from jaxfn.autograd.graph import saved_tensors_hooks

Scope = contextlib.AbstractContextManager[Any]
Runs = Counter[str]
X = np.array([0.5, 0.25], np.float32)


@dataclasses.dataclass(frozen=True)
class Context:
    """Something that a rule may read, and a caller may change.

    Attributes:
        scope: the caller's `with`; it may count in the runs.
        act: what a rule does with its result `v` at the point `at`.
        factor: what the context multiplies the result with; 1 outside of it.
        text: reads off the lowered program what the context has left there; without
            it the context shows in the numbers.
    """

    scope: Callable[[Runs], Scope]
    act: Callable[[Any, Any], Any]
    factor: float | None = None
    text: Callable[[str], Any] | None = None

    def see(self, program: Callable[[Any], Any]) -> Any:
        """What the program computes, or what the context has left in its text."""
        if self.text is None:
            return np.asarray(program(jnp.asarray(X)))
        return self.text(jax.jit(program).lower(X).as_text(debug_info=True))


# ---- a user's own

SCALE = 1.0
VARIABLE = contextvars.ContextVar("scale", default=1.0)


@contextlib.contextmanager
def scaled(_: Runs) -> Iterator[None]:
    """A module's global is another."""
    global SCALE
    old, SCALE = SCALE, 3.0
    try:
        yield
    finally:
        SCALE = old


@contextlib.contextmanager
def with_variable(_: Runs) -> Iterator[None]:
    token = VARIABLE.set(3.0)
    try:
        yield
    finally:
        VARIABLE.reset(token)


# ---- JAX's

# The rules multiply by a matrix that is as good as the number 2.
TWICE = np.diag([2.0, 2.0]).astype(np.float32)


def dots(text: str) -> tuple[int, int]:
    """How many products of matrices there are, and how many with high precision."""
    lines = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    return len(lines), sum("HIGHEST" in line for line in lines)


def sines_in_scope(text: str) -> tuple[int, int]:
    """How many sines there are, and how many whose name has the caller's scope."""
    names = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
    found = re.findall(r"stablehlo\.sine.* loc\((#loc\d*|\".*)\)", text)
    return len(found), sum("callers" in names.get(name, name) for name in found)


def _with_a_sine(v: Any, at: Any) -> Any:
    return v * (2.0 + jnp.sin(0 * at))


def _with_a_new_array(v: Any, _: Any) -> Any:
    made = jnp.zeros(())
    return (v * jnp.full((), made.dtype.itemsize / 4)).astype(v.dtype)


# Threefry makes the key [0, 3] of the seed, and rbg makes [0, 3, 0, 3].
def _with_a_new_key(v: Any, _: Any) -> Any:
    return v * (jax.random.key_data(jax.random.key(3)).sum() / 3).astype(v.dtype)


# ---- jaxfn's


def _where_autocast_is_on(v: Any, _: Any) -> Any:
    return v * (3.0 if jaxfn.amp.is_autocast_enabled() else 1.0)


@dataclasses.dataclass(frozen=True)
class Hooks:
    """What packs and unpacks, and counts how often; wrong on purpose."""

    runs: Runs

    def pack(self, x: Any) -> Any:
        self.runs["pack"] += 1
        return 2.0 * x

    def unpack(self, x: Any) -> Any:
        self.runs["unpack"] += 1
        return 1.5 * x


HOOKS: Hooks | None = None
"""The hooks of the caller, for the twins, which know nothing of jaxfn's."""


@contextlib.contextmanager
def with_hooks(runs: Runs) -> Iterator[None]:
    global HOOKS
    old, HOOKS = HOOKS, Hooks(runs)
    try:
        with saved_tensors_hooks(HOOKS.pack, HOOKS.unpack):
            yield
    finally:
        HOOKS = old


@dataclasses.dataclass(frozen=True)
class OfTheCall:
    """jaxfn's own contexts at a call, which forward and setup_context run in.

    They count where `apply` is called, also if forward is traced later.
    """

    autocast: bool
    hooks: Hooks | None

    def __call__(self) -> Scope:
        return jaxfn.amp.autocast("cpu", enabled=self.autocast)


def of_the_call() -> OfTheCall:
    return OfTheCall(jaxfn.amp.is_autocast_enabled(), HOOKS)


CONTEXTS = {
    "global": Context(scaled, lambda v, _: v * SCALE, 3.0),
    "contextvar": Context(with_variable, lambda v, _: v * VARIABLE.get(), 3.0),
    "x64": Context(lambda _: jax.enable_x64(True), _with_a_new_array, 2.0),
    "prng": Context(lambda _: jax.default_prng_impl("rbg"), _with_a_new_key, 2.0),
    "autocast": Context(
        lambda _: jaxfn.amp.autocast("cpu"), _where_autocast_is_on, 3.0
    ),
    "precision": Context(
        lambda _: jax.default_matmul_precision("highest"),
        lambda v, _: v @ TWICE.astype(v.dtype),
        text=dots,
    ),
    "named scope": Context(
        lambda _: jax.named_scope("callers"), _with_a_sine, text=sines_in_scope
    ),
    "hooks": Context(with_hooks, lambda v, _: v),
}
