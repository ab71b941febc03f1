"""What JAX refuses without jaxfn too, with the words that the laws allow.

Each entry of the README's list has its reproduction here. One that JAX no longer
refuses fails, and the entry goes.
"""

import jax
import jax.numpy as jnp
import pytest
from jax import lax


@jax.custom_vjp
def sine(x):
    return jnp.sin(x)


sine.defvjp(lambda x: (sine(x), x), lambda x, g: (g * jnp.cos(x),))


@jax.custom_batching.custom_vmap
def double(x):
    return 2 * x


double.def_vmap(lambda size, batched, x: (2 * x, batched[0]))


def centred(x):
    return x - lax.pmean(x, "i")


@jax.custom_vjp
def talking(x):
    return centred(x**3)


talking.defvjp(lambda x: (talking(x), x), lambda x, g: (centred(g) * 3 * x**2,))


@jax.custom_jvp
def talking_forward(x):
    return centred(x**3)


@talking_forward.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return talking_forward(x), centred(3 * x**2 * t)


X = jnp.float32(0.5)


def pushed(f):
    return lambda x: jax.linearize(f, x)[1](jnp.ones_like(x))


def total(f):
    return lambda x: (jax.vmap(f, axis_name="i")(jnp.stack([x, 2 * x])) ** 2).sum()


def test_forward_mode_of_a_reverse_rule():
    with pytest.raises(TypeError, match="can't apply forward-mode autodiff"):
        jax.jvp(sine, (X,), (X,))


@pytest.mark.parametrize("derivative", [jax.grad, lambda f: jax.vmap(jax.grad(f))])
def test_derivative_of_a_linearized_reverse_rule(derivative):
    x = X if derivative is jax.grad else X[None]
    with pytest.raises(NotImplementedError, match="rule for 'custom_lin' not impl"):
        derivative(pushed(sine))(x)


@pytest.mark.parametrize("f", [sine, double])
def test_transposing_a_call(f):
    with pytest.raises(NotImplementedError, match="Transpose rule .* not implemented"):
        jax.linear_transpose(f, X)(X)


def test_collective_of_a_vmap_in_a_derivative_of_a_reverse_rule():
    with pytest.raises(NameError, match="unbound axis name: i"):
        jax.grad(jax.grad(total(talking)))(X)


def test_collective_of_a_vmap_in_a_branch():
    def branch(x):
        return jax.lax.cond(x > 0, talking, lambda x: 100 * x, x)

    with pytest.raises(NameError, match="unbound axis name: i"):
        jax.grad(total(branch))(X)


def test_collective_of_a_vmap_in_a_forward_rule_that_is_linearized_through_jit():
    with pytest.raises(NameError, match="unbound axis name: i"):
        pushed(jax.jit(total(talking_forward)))(X)
