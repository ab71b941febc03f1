"""Which rule runs under which transformation, told by rules that are wrong on purpose.

The value is sin(x), and each rule has a factor of its own (`tests.wrong`), so that the
number that comes out of a transformation tells which rule it used. Each law is tried
with every engine and style on an array, one number of it at a time.
"""

from __future__ import annotations

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


WORDS: dict[str, Callable[[Fun], Fun]] = {
    "value": lambda f: f,
    "jit": jax.jit,
    "grad": _grad,
    "jvp": _jvp,
    "vmap": jax.vmap,
    "scan": _scan,
    "cond": _cond,
    "while": _while,
    "checkpoint": jax.checkpoint,
    "linearize": _linearize,
    "jacrev": lambda f: jax.vmap(jax.jacrev(f)),
    "jacfwd": lambda f: jax.vmap(jax.jacfwd(f)),
    "hessian": lambda f: jax.vmap(jax.hessian(f)),
    "squared": lambda f: lambda x: f(x) ** 2 / 2,
    "composed": lambda f: lambda x: f(f(x)),
}
"""What the words of a law do to an elementwise function; the last one comes first."""


# ---- what a law gives, from the engine, sin(x) and cos(x); None if JAX refuses it


def _value(engine: str, sin: Any, cos: Any) -> Any:
    return sin


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


def _of_square(engine: str, sin: Any, cos: Any, *, forward: bool = False) -> Any:
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


LAWS: dict[Callable[..., Any], tuple[str, ...]] = {
    _value: ("value", "jit"),
    _reverse: (
        *("grad", "jit grad", "grad jit", "vmap grad", "grad vmap", "grad scan"),
        *("jit vmap grad scan", "grad cond", "grad checkpoint"),
        *("grad scan checkpoint vmap", "jacrev"),
    ),
    _forward: (
        *("jvp", "jit jvp", "vmap jvp", "jvp scan vmap", "jvp while"),
        *("linearize", "jacfwd"),
    ),
    _second: ("grad grad", "hessian", "jit hessian scan"),
    _second_forward: ("grad jvp", "jvp jvp"),
    _third: ("grad grad grad",),
    _of_square: ("grad grad squared",),
    functools.partial(_of_square, forward=True): ("jvp grad squared",),
    _of_composition: ("grad composed",),
}
WITH_VMAP_RULE: dict[Callable[..., Any], tuple[str, ...]] = {
    _batched: ("vmap", "scan vmap", "vmap scan"),
    _reverse: ("vmap grad", "grad vmap"),
    _forward: ("jvp vmap",),
}


def checks(small: bool) -> dict[str, Check]:
    """Each law."""
    size = 16 if small else 4096
    return {
        law + ", with a vmap rule" * batch: functools.partial(
            _check, law, expected, size, batch=batch
        )
        for batch, laws in ((False, LAWS), (True, WITH_VMAP_RULE))
        for expected, names in laws.items()
        for law in names
    }


def _check(law: str, expected: Callable[..., Any], size: int, *, batch: bool) -> Figure:
    x = jnp.linspace(0.2, 1.3, size, dtype=jnp.float32)
    exact = np.asarray(x, np.float64)
    worst, tried, refused = 0.0, 0, 0
    for engine in wrong.ENGINES:
        for style in ("separate",) if batch else wrong.STYLES:
            program = wrong.function(engine, style, batch=batch).apply
            for word in reversed(law.split()):
                program = WORDS[word](program)
            wanted = expected(engine, np.sin(exact), np.cos(exact))
            if wanted is None:
                refused += 1
                _expect_refusal(program, x, f"{engine}, {style}")
                continue
            tried += 1
            found = error(program(x), wanted)
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
