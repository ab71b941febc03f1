"""Hooks that keep integers: first derivatives right, those they would lose refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfn.autograd import graph
from tests import wrong

X = jnp.float32(0.7)


def second(f):
    return jax.grad(jax.grad(f))


def scanned(f):
    return lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]


def along_one(f):
    return lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1]


@pytest.mark.parametrize("engine", ["backward", "both", "derived"])
@pytest.mark.parametrize(
    "derivative",
    [
        second,
        lambda f: jax.jit(second(f)),
        lambda f: second(scanned(f)),
        lambda f: jax.jacfwd(jax.grad(f)),
    ],
    ids=["eager", "jit", "scan", "forward over reverse"],
)
def test_a_derivative_of_backward_is_refused(derivative, engine):
    f = wrong.function(engine).apply
    with (
        graph.save_compressed(jnp.int8),
        pytest.raises(
            NotImplementedError, match="hooks stored a saved array as integers"
        ),
    ):
        derivative(f)(X)


@pytest.mark.parametrize("outer", [jax.grad, along_one], ids=["reverse", "forward"])
def test_derivatives_of_the_jvp_rule_do_not_meet_the_hooks(outer):
    f = wrong.function("both").apply
    with graph.save_compressed(jnp.int8):
        value = outer(along_one(f))(X)
    np.testing.assert_allclose(value, -wrong.JVP * jnp.sin(X), rtol=1e-6)
