"""A jvp that is transposed later is reverse mode: a Function with backward allows it.

JAX's own custom_vjp does too. A rule of a `jax.custom_jvp` that calls `jax.jvp` is the
usual case; saved intermediates of a Function are another.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import wrong
from tests.build import function

X = jnp.float32(0.7)
F = wrong.function("backward").apply


@jax.custom_jvp
def by_its_own_jvp(x):
    return F(x)


@by_its_own_jvp.defjvp
def _(primals, tangents):
    return jax.jvp(F, primals, tangents)


def scanned(f):
    return lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]


WRAPPERS = [lambda f: f, jax.jit, jax.checkpoint, scanned]
IDS = ["eager", "jit", "checkpoint", "scan"]


@pytest.mark.parametrize("wrap", WRAPPERS, ids=IDS)
def test_reverse_mode_through_a_custom_jvp_that_calls_jvp(wrap):
    f = wrap(by_its_own_jvp)
    expected = wrong.BACKWARD * jnp.cos(X)
    np.testing.assert_allclose(jax.grad(f)(X), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(f))(X[None])[0], expected, rtol=1e-6)


def test_linear_transpose_of_a_jvp():
    (got,) = jax.linear_transpose(lambda t: jax.jvp(F, (X,), (t,))[1], X)(jnp.ones(()))
    np.testing.assert_allclose(got, wrong.BACKWARD * jnp.cos(X), rtol=1e-6)


def test_forward_mode_through_it_is_refused():
    for mode in (jax.jacfwd, lambda f: jax.jit(jax.jacfwd(f))):
        with pytest.raises(TypeError, match="can't apply forward-mode") as info:
            mode(by_its_own_jvp)(X)
        assert info.value.__notes__[0].count("`WrongBackward` has no jvp")


@pytest.mark.parametrize("wrap", WRAPPERS, ids=IDS)
@pytest.mark.parametrize("engine", wrong.ENGINES)
def test_second_derivative_where_the_result_of_another_function_was_saved(engine, wrap):
    inner = wrong.function(engine).apply

    def forward(ctx, x):
        y = inner(x)
        ctx.save_for_backward(x, y)
        return x * y

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (y + x * jax.grad(inner)(x))

    def plain(x):
        return x * inner(x)

    f = wrap(function(forward=forward, backward=backward).apply)
    np.testing.assert_allclose(
        jax.grad(jax.grad(f))(X), jax.grad(jax.grad(plain))(X), rtol=1e-6
    )


def test_a_rule_that_applies_the_function_to_a_tangent_can_be_transposed():
    def forward(ctx, x, y):
        ctx.save_for_forward(y)
        return x / y

    def jvp(ctx, x_dot, _):
        return divide(x_dot, *ctx.saved_tensors)

    divide = function(forward=forward, jvp=jvp).apply
    y = jnp.float32(2)
    for derivative in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        assert derivative(lambda x: divide(x, y))(jnp.float32(1)) == 0.5
        assert jax.grad(jax.jit(lambda x, y: divide(x, y)))(1.0, 2.0) == 0.5
