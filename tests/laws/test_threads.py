"""Calls from many threads at once, and buffers that are donated to a Function."""

import re
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from tests import wrong
from tests.build import function

THREADS = 8
TOGETHER = ("backward", "both")
"""Engines of which a normal run has one Function for all threads."""


def at_once(work):
    """`work(i)` in each of eight threads, which start together."""
    barrier = Barrier(THREADS)

    def run(i):
        barrier.wait()
        return work(i)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


@pytest.mark.parametrize("same", [True, False], ids=["same", "different"])
@pytest.mark.parametrize("engine", wrong.ENGINES)
@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
@pytest.mark.full(unless=lambda engine, same, **_: same == (engine in TOGETHER))
def test_apply_and_grad_from_eight_threads(engine, same, jit):
    wrap = jax.jit if jit else lambda f: f
    one = wrong.function(engine)
    functions = [one if same else wrong.function(engine) for _ in range(THREADS)]

    def work(i):
        f, x = functions[i].apply, jnp.float32(i)
        return [
            (float(wrap(f)(x)), float(wrap(jax.grad(jax.jit(f)))(x))) for _ in range(5)
        ]

    for i, found in enumerate(at_once(work)):
        expected = (np.sin(i), wrong.REVERSE[engine] * np.cos(i))
        for pair in found:
            np.testing.assert_allclose(pair, expected, rtol=1e-5, atol=1e-6)


def test_each_thread_has_its_own_hooks():
    f = wrong.function("backward").apply

    def work(i):
        hooks = jaxfn.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x + i)
        with hooks:
            return [float(jax.grad(f)(jnp.float32(0.3))) for _ in range(5)]

    for i, found in enumerate(at_once(work)):
        np.testing.assert_allclose(found, 2 * np.cos(0.3 + i), rtol=1e-5)


def test_a_donated_buffer_is_used_again():
    """In the compiled program, and in fact: the argument is gone."""

    def setup(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])

    f = function(
        forward=lambda x: x + 1, setup_context=setup, backward=lambda ctx, g: g
    ).apply
    x = jnp.zeros((16, 4))
    kept = jax.jit(f).lower(x).compile().as_text()
    step = jax.jit(f, donate_argnums=0)
    given = step.lower(x).compile().as_text()
    alias = r"input_output_alias=\{ \{\}: \(0, \{\}, (may|must)-alias\) \}"
    assert re.search(alias, given)
    assert not re.search(alias, kept)
    np.testing.assert_array_equal(step(x), np.ones((16, 4)))
    assert x.is_deleted()
