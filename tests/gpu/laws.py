"""Which rule runs under which transformation, told by rules that are wrong on purpose.

The value is sin(x), and each rule has a factor of its own (`tests.wrong`), so that the
number that comes out of a transformation tells which rule it used. Each law is tried
with every engine and style on an array, one number of it at a time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests import wrong
from tests.gpu.parts import Check, Figure, error, expect

Fun = Callable[[Any], Any]

MOST = 3e-6
"""The greatest error: sin and cos of float32 differ a little among devices."""


@dataclasses.dataclass(frozen=True)
class Law:
    """What a transformation of a Function must give.

    Attributes:
        of: Makes a function of arrays from `apply`, which is elementwise.
        expected: Its value, from the engine, sin(x) and cos(x) in float64; None if JAX
            refuses it, as it does forward mode of a lone backward.
        batch: Whether the Functions have a vmap rule.
    """

    of: Callable[[Fun], Fun]
    expected: Callable[[str, Any, Any], Any]
    batch: bool = False


def _scan(f: Fun) -> Fun:
    return lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]


def _cond(f: Fun) -> Fun:
    return lambda x: lax.cond(x.sum() < 1e9, f, lambda x: 100 * x, x)


def _while(f: Fun) -> Fun:
    return lambda x: lax.while_loop(
        lambda c: c[0] < 1, lambda c: (c[0] + 1, f(c[1])), (0, x)
    )[1]


def _grad(f: Fun) -> Fun:
    return jax.grad(lambda x: f(x).sum())


def _jvp(f: Fun) -> Fun:
    return lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1]


def _linearize(f: Fun) -> Fun:
    return lambda x: jax.linearize(f, x)[1](jnp.ones_like(x))


def _each(f: Fun) -> Fun:
    """A transformation of a function of one number, for each number of an array."""
    return lambda x: jax.vmap(f)(x)


def _squared(f: Fun) -> Fun:
    return lambda x: f(x) ** 2 / 2


def _composed(f: Fun) -> Fun:
    return lambda x: f(f(x))


def _reverse(engine: str, sin: Any, cos: Any) -> Any:
    return wrong.REVERSE[engine] * cos


def _forward(engine: str, sin: Any, cos: Any) -> Any:
    factor = wrong.FORWARD[engine]
    return None if factor is None else factor * cos


def _second(engine: str, sin: Any, cos: Any) -> Any:
    return -wrong.REVERSE[engine] * sin


def _second_forward(engine: str, sin: Any, cos: Any) -> Any:
    factor = wrong.FORWARD[engine]
    return None if factor is None else -factor * sin


def _third(engine: str, sin: Any, cos: Any) -> Any:
    return -wrong.REVERSE[engine] * cos


def _of_square(engine: str, sin: Any, cos: Any, *, forward: bool) -> Any:
    """The value inside of the derivative has a derivative too, by the outer mode."""
    inner = value = wrong.REVERSE[engine]
    if forward and engine == "both":
        value = wrong.JVP
    return inner * value * cos * cos - inner * sin * sin


def _of_composition(engine: str, sin: Any, cos: Any) -> Any:
    factor = wrong.REVERSE[engine]
    return factor * np.cos(sin) * factor * cos


def _batched(engine: str, sin: Any, cos: Any) -> Any:
    return sin + wrong.BATCH


LAWS = {
    "value": Law(lambda f: f, lambda engine, sin, cos: sin),
    "jit": Law(jax.jit, lambda engine, sin, cos: sin),
    "grad": Law(_grad, _reverse),
    "jit grad": Law(lambda f: jax.jit(_grad(f)), _reverse),
    "grad jit": Law(lambda f: _grad(jax.jit(f)), _reverse),
    "vmap grad": Law(lambda f: _each(jax.grad(f)), _reverse),
    "grad vmap": Law(lambda f: _grad(jax.vmap(f)), _reverse),
    "grad scan": Law(lambda f: _grad(_scan(f)), _reverse),
    "jit vmap grad scan": Law(lambda f: jax.jit(_each(jax.grad(_scan(f)))), _reverse),
    "grad cond": Law(lambda f: _grad(_cond(f)), _reverse),
    "grad checkpoint": Law(lambda f: _grad(jax.checkpoint(f)), _reverse),
    "grad scan checkpoint vmap": Law(
        lambda f: _grad(_scan(jax.checkpoint(jax.vmap(f)))), _reverse
    ),
    "jacrev": Law(lambda f: _each(jax.jacrev(f)), _reverse),
    "grad of a composition": Law(lambda f: _grad(_composed(f)), _of_composition),
    "jvp": Law(_jvp, _forward),
    "jit jvp": Law(lambda f: jax.jit(_jvp(f)), _forward),
    "vmap jvp": Law(lambda f: _each(_jvp(f)), _forward),
    "jvp scan vmap": Law(lambda f: _jvp(_scan(jax.vmap(f))), _forward),
    "jvp while": Law(lambda f: _jvp(_while(f)), _forward),
    "linearize": Law(_linearize, _forward),
    "jacfwd": Law(lambda f: _each(jax.jacfwd(f)), _forward),
    "grad grad": Law(lambda f: _grad(_grad(f)), _second),
    "hessian": Law(lambda f: _each(jax.hessian(f)), _second),
    "jit hessian scan": Law(lambda f: jax.jit(_each(jax.hessian(_scan(f)))), _second),
    "grad jvp": Law(lambda f: _grad(_jvp(f)), _second_forward),
    "jvp jvp": Law(lambda f: _jvp(_jvp(f)), _second_forward),
    "grad grad grad": Law(lambda f: _grad(_grad(_grad(f))), _third),
    "grad grad of the square": Law(
        lambda f: _grad(_grad(_squared(f))),
        functools.partial(_of_square, forward=False),
    ),
    "jvp grad of the square": Law(
        lambda f: _jvp(_grad(_squared(f))), functools.partial(_of_square, forward=True)
    ),
    "vmap": Law(jax.vmap, _batched, batch=True),
    "scan vmap": Law(lambda f: _scan(jax.vmap(f)), _batched, batch=True),
    "vmap scan": Law(lambda f: jax.vmap(_scan(f)), _batched, batch=True),
    "vmap grad, with a vmap rule": Law(
        lambda f: _each(jax.grad(f)), _reverse, batch=True
    ),
    "grad vmap, with a vmap rule": Law(
        lambda f: _grad(jax.vmap(f)), _reverse, batch=True
    ),
    "jvp vmap, with a vmap rule": Law(
        lambda f: _jvp(jax.vmap(f)), _forward, batch=True
    ),
}


def checks(small: bool) -> dict[str, Check]:
    """Each law."""
    size = 16 if small else 4096
    return {name: functools.partial(_check, law, size) for name, law in LAWS.items()}


def _check(law: Law, size: int) -> Figure:
    x = jnp.linspace(0.2, 1.3, size, dtype=jnp.float32)
    exact = np.asarray(x, np.float64)
    worst, tried, refused = 0.0, 0, 0
    for engine in wrong.ENGINES:
        for style in ("separate",) if law.batch else wrong.STYLES:
            program = law.of(wrong.function(engine, style, batch=law.batch).apply)
            expected = law.expected(engine, np.sin(exact), np.cos(exact))
            if expected is None:
                refused += 1
                _expect_refusal(program, x, f"{engine}, {style}")
                continue
            tried += 1
            found = error(program(x), expected)
            worst = max(worst, expect(f"{engine}, {style}", found, MOST))
    text = f"error {worst:.1e}, {tried} Functions"
    if refused:
        text += f"; {refused} refused"
    return Figure(text, {"error": worst, "functions": tried})


def _expect_refusal(program: Fun, x: Any, what: str) -> None:
    try:
        program(x)
    except TypeError as refusal:
        if "can't apply forward-mode" in str(refusal):
            return
        raise
    raise AssertionError(f"{what}: JAX refuses forward mode of a lone backward")
