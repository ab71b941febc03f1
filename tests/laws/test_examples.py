"""Under vmap a Function does to each example what it does alone.

Random Functions of three numbers with two outputs, whose rules are *not* the derivative
of what forward computes: an output may depend on none of the arguments, and still have
a derivative that differs between examples. Each is called under one vmap or two, some
arguments mapped and some not, and compared with a loop over the examples. `--full`
tries more.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.build import function
from tests.sizes import parametrize

# Of a normal run: 12, 17 and 36 see where a derivative is summed over examples which
# take it for shared, or the other way round; few others do.
NORMAL, FULL = (0, 1, 5, 7, 8, 12, 17, 36), 48
SIZES = (3, 2)  # of the outer axis and the inner one
OUTPUTS: dict[str, Callable[..., Any]] = {
    "first": lambda a, b, c: a,
    "second": lambda a, b, c: b,
    "last": lambda a, b, c: c,
    "constant": lambda a, b, c: jnp.ones(()),
    "sum": lambda a, b, c: a + 2 * b + 3 * c,
    "product": lambda a, b, c: a * b,
}
# What a (co)tangent g is made into.
TERMS: dict[str, Callable[..., Any]] = {
    "nothing": lambda g, a, b, c: None,
    "kept": lambda g, a, b, c: g,
    "scaled": lambda g, a, b, c: a * g,
    "scaled by both": lambda g, a, b, c: b * c * g,
    "chosen": lambda g, a, b, c: lax.select(a > 1.5, g, jnp.zeros_like(g)),
    "where": lambda g, a, b, c: jnp.where(b > 2, g, 0),
}
ENGINES = {
    "backward": ("backward",),
    "jvp": ("jvp",),
    "both": ("backward", "jvp"),
    "derived": ("backward", "generate_jvp_rule"),
}


@dataclasses.dataclass
class Plan:
    """A Function, and how its arguments are mapped.

    Attributes:
        outputs: the name of each.
        terms: for each output and each argument.
        engine: one of ENGINES.
        separate: the style.
        axes: for each vmap, the outer one first, where the arguments are mapped.
        jit: before which vmap the function is compiled, if before one.
    """

    outputs: list[str]
    terms: list[list[str]]
    engine: str
    separate: bool
    axes: list[tuple[int | None, ...]]
    jit: int | None

    @classmethod
    def draw(cls, seed: int) -> Plan:
        r = random.Random(f"examples {seed}")
        axes = [tuple(r.choice([0, None]) for _ in range(3)) for _ in SIZES]
        axes = [places if 0 in places else (0, None, None) for places in axes]
        depth = r.choice([1, 2])
        return cls(
            [r.choice(list(OUTPUTS)) for _ in range(2)],
            [[r.choice(list(TERMS)) for _ in range(3)] for _ in range(2)],
            # Half of them: only there may examples share an output.
            r.choice([*ENGINES, "backward", "backward"]),
            r.random() < 0.5,
            axes[:depth],
            r.choice([None, *range(depth)]),
        )

    def function(self) -> Callable[..., Any]:
        def forward(*args: Any) -> Any:
            return tuple(OUTPUTS[name](*args) for name in self.outputs)

        def save(ctx: Any, inputs: Any, _: Any = None) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        def backward(ctx: Any, *gs: Any) -> Any:
            columns = zip(*self.terms, strict=True)
            return tuple(_total(column, gs, ctx.saved_tensors) for column in columns)

        def jvp(ctx: Any, *ts: Any) -> Any:
            return tuple(_total(row, ts, ctx.saved_tensors) for row in self.terms)

        known = {"backward": backward, "jvp": jvp, "generate_jvp_rule": True}
        rules = {name: known[name] for name in ENGINES[self.engine]}
        if self.separate:
            return function(forward=forward, setup_context=save, **rules).apply

        def combined(ctx: Any, *args: Any) -> Any:
            save(ctx, args)
            return forward(*args)

        return function(forward=combined, **rules).apply

    def mapped(self) -> Callable[..., Any]:
        f = self.function()
        for i, places in reversed(list(enumerate(self.axes))):
            f = jax.vmap(jax.jit(f) if self.jit == i else f, places)
        return f

    def looped(self) -> Callable[..., Any]:
        f = self.function()

        def run(*args: Any) -> Any:
            found = [
                f(*[x[self._index(i, at)] for i, x in enumerate(args)])
                for at in itertools.product(*map(range, self.sizes))
            ]
            outs = zip(*found, strict=True)
            return tuple(jnp.stack(xs).reshape(self.sizes) for xs in outs)

        return run

    def _index(self, argument: int, at: tuple[int, ...]) -> tuple[int, ...]:
        pairs = zip(at, self.axes, strict=True)
        return tuple(i for i, places in pairs if places[argument] == 0)

    @property
    def sizes(self) -> tuple[int, ...]:
        return SIZES[: len(self.axes)]

    def arguments(self) -> list[jax.Array]:
        shapes = [
            [n for n, p in zip(self.sizes, self.axes, strict=True) if p[i] == 0]
            for i in range(3)
        ]
        return [_wave(shape, i) for i, shape in enumerate(shapes)]


def _total(names: Any, gs: Any, saved: Any) -> Any:
    found = [TERMS[name](g, *saved) for name, g in zip(names, gs, strict=True)]
    kept = [x for x in found if x is not None]
    return sum(kept[1:], kept[0]) if kept else None


def _wave(shape: Any, shift: int) -> jax.Array:
    """Different numbers on both sides of 1.5 and 2, where rules change."""
    n = int(np.prod(shape))
    return jnp.float32(2 + np.cos(1.7 * np.arange(n) + shift)).reshape(shape)


def pytest_generate_tests(metafunc):
    parametrize(metafunc, "seed", NORMAL, lambda times: range(FULL * times))


def test_an_example_has_the_derivatives_that_it_has_alone(seed):
    plan = Plan.draw(seed)
    args, places = plan.arguments(), (0, 1, 2)
    weights = [_wave(plan.sizes, 5), _wave(plan.sizes, 6)]

    def loss(f):
        return lambda *xs: sum(
            (w * out).sum() for w, out in zip(weights, f(*xs), strict=True)
        )

    expected = jax.grad(loss(plan.looped()), places)(*args)
    mapped = loss(plan.mapped())
    for gradient in (
        jax.grad(mapped, places),
        jax.jit(jax.grad(mapped, places)),
        jax.grad(jax.jit(mapped), places),
    ):
        assert_close(gradient(*args), expected)
    if plan.engine == "backward":
        return
    dots = tuple(_wave(x.shape, 7) for x in args)
    expected = jax.jvp(loss(plan.looped()), tuple(args), dots)
    assert_close(jax.jvp(mapped, tuple(args), dots), expected)
    assert_close(jax.jit(lambda *xs: jax.jvp(mapped, xs, dots))(*args), expected)


def assert_close(got: Any, expected: Any) -> None:
    """Equal, but for a rounding of each of a dozen sums in float32."""
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", ["engine", "jit", "separate"])
def test_the_plans_differ(part):
    found = {getattr(Plan.draw(seed), part) for seed in NORMAL}
    assert len(found) == {"engine": 4, "jit": 3, "separate": 2}[part]
