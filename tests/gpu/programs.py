"""Transformations of an elementwise function, each beside the same of a formula."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.gpu.parts import Check, Figure, error, expect

MOST = 5e-6
"""The greatest error: tanh and exp of a GPU are not those of NumPy."""


def _grad(f: Any) -> Any:
    def loss(*xs: Any) -> Any:
        return (f(*xs) ** 2).sum()

    return lambda *xs: jax.grad(loss, tuple(range(len(xs))))(*xs)


def _scan(f: Any) -> Any:
    return lambda x, *others: lax.scan(
        lambda c, _: (f(c, *others), None), x, None, length=3
    )[0]


def _jvp(f: Any) -> Any:
    return lambda *xs: jax.jvp(f, xs, tuple(jnp.cos(x + i) for i, x in enumerate(xs)))


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "value": lambda f: f,
    "jit": jax.jit,
    "grad": _grad,
    "jit grad": lambda f: jax.jit(_grad(f)),
    "jvp": _jvp,
    "jit jvp": lambda f: jax.jit(_jvp(f)),
    "vmap": jax.vmap,
    "vmap grad": lambda f: jax.jit(jax.vmap(_grad(f))),
    "grad vmap": lambda f: jax.jit(_grad(jax.vmap(f))),
    "jvp vmap": lambda f: _jvp(jax.vmap(f)),
    "grad scan": lambda f: jax.jit(_grad(_scan(f))),
    "jvp scan vmap": lambda f: jax.jit(_jvp(_scan(jax.vmap(f)))),
    "grad checkpoint": lambda f: _grad(jax.checkpoint(f)),
    "jit grad checkpoint": lambda f: jax.jit(_grad(jax.checkpoint(f))),
}


def checks(
    f: Any, formula: Any, count: int, shape: tuple[int, ...]
) -> dict[str, Check]:
    """Each of the programs of a function with so many arguments of this shape."""
    xs = [*jax.random.normal(jax.random.key(0), (count, *shape))]
    return {
        name: functools.partial(check, program, f, formula, xs)
        for name, program in PROGRAMS.items()
    }


def check(program: Any, f: Any, formula: Any, xs: list[Any]) -> Figure:
    got, expected = (jax.tree.leaves(program(g)(*xs)) for g in (f, formula))
    found = max(error(x, y) for x, y in zip(got, expected, strict=True))
    expect("beside plain JAX", found, MOST)
    return Figure(f"error {found:.1e}", {"error": found})
