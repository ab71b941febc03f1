"""Compiled, a Function of torch is the program of its port by hand."""

from __future__ import annotations

import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfn.torch import from_torch
from tests.jaxprs import instructions

from .ports import PAIRS


def loss(cls):
    return lambda *xs: (cls.apply(*xs) ** 2).sum()


WHAT = {
    "forward": lambda cls, n: cls.apply,
    "gradient": lambda cls, n: jax.grad(loss(cls), tuple(range(n))),
    "vmap(grad)": lambda cls, n: jax.vmap(jax.grad(loss(cls), tuple(range(n)))),
}


def compiled(cls, what, args):
    f = WHAT[what](cls, len(args))
    if "vmap" in what:
        args = [jnp.stack([x, x]) for x in args]
    return jax.jit(f).lower(*args).compile(), args


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_as_many_instructions_as_by_hand(pair, what):
    ours, args = compiled(from_torch(pair.torch), what, pair.args())
    hand, _ = compiled(pair.port, what, pair.args())
    for x, y in zip(
        jax.tree.leaves(ours(*args)), jax.tree.leaves(hand(*args)), strict=True
    ):
        assert np.allclose(x, y, rtol=1e-4, atol=1e-4)
    assert abs(instructions(ours) - instructions(hand)) <= 0.02 * instructions(hand)


def test_a_small_function_is_traced_in_half_a_second():
    """When torch's tracer has run once; the best of three."""
    pair, best = PAIRS[0], 1e9
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (3, 4, 5, 6):
            start = time.perf_counter()
            made = from_torch(type(pair.name, (pair.torch,), {}))
            jax.make_jaxpr(jax.grad(loss(made)))(jnp.ones((n, 2)))
            best = min(best, time.perf_counter() - start)
    assert best < 0.5
