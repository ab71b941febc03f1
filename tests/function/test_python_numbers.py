"""Python numbers that a transformation differentiates: `jax.grad(F.apply)(0.7)`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from tests import wrong

X = 0.7


@pytest.mark.parametrize("style", wrong.STYLES)
@pytest.mark.parametrize("engine", wrong.ENGINES)
def test_gradients_of_a_python_number(engine, style):
    f = wrong.function(engine, style).apply
    d = jax.grad
    got = [d(f)(X), d(d(f))(X), d(d(d(f)))(X), jax.vjp(f, X)[1](1.0)[0]]
    expected = [d(jnp.sin)(X), d(d(jnp.sin))(X), d(d(d(jnp.sin)))(X), d(jnp.sin)(X)]
    np.testing.assert_allclose(
        got, wrong.REVERSE[engine] * jnp.stack(expected), rtol=1e-6
    )


@pytest.mark.parametrize("style", wrong.STYLES)
@pytest.mark.parametrize("engine", ["jvp", "both", "derived"])
def test_tangents_of_a_python_number(engine, style):
    f = wrong.function(engine, style).apply
    got = jax.jvp(f, (X,), (1.0,))[1]
    expected = wrong.FORWARD[engine] * jax.jvp(jnp.sin, (X,), (1.0,))[1]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("number", [0.7, 0.7 + 0.1j])
def test_rules_see_an_array_of_the_number_and_the_gradient_has_its_type(number):
    seen = []

    class Square(jaxfn.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            seen.append(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            seen.extend(ctx.saved_tensors)
            return 2 * ctx.saved_tensors[0].conj() * g

    holomorphic = isinstance(number, complex)
    got = jax.grad(Square.apply, holomorphic=holomorphic)(number)
    expected = jax.grad(lambda x: x * x, holomorphic=holomorphic)(number)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert jax.typeof(got) == jax.typeof(expected)
    assert len(seen) == 2
    assert all(isinstance(x, jax.Array) for x in seen)
