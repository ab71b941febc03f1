"""A batch rule alone under vmap of jvp: values and tangents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn

P = jnp.float32([1, 2, 3])
Q = jnp.float32([10, 20, 30])
T = jnp.float32([2, 3, 4])
ONE = jnp.float32(1)


def product():
    @jaxfn.custom_function
    def f(x, y):
        return x * y

    @f.def_vmap
    def _(size, batched, x, y):
        return x * y, any(batched)

    return f


def along_x(f, x, y, t):
    return jax.jvp(lambda x: f(x, y), (x,), (t,))


CASES = {
    "y is not differentiated": lambda f: jax.vmap(lambda x, y, t: along_x(f, x, y, t))(
        P, Q, T
    ),
    "x is not batched": lambda f: jax.vmap(lambda y, t: along_x(f, ONE, y, t))(Q, T),
    "y is behind stop_gradient": lambda f: jax.vmap(
        lambda x, y, t: jax.jvp(
            lambda x, y: f(x, jax.lax.stop_gradient(y)), (x, y), (t, t)
        )
    )(P, Q, T),
    "y is an integer": lambda f: jax.vmap(lambda x, y, t: along_x(f, x, y, t))(
        P, Q.astype(int), T
    ),
    "the tangent alone is batched": lambda f: jax.vmap(
        lambda t: jax.jvp(f, (ONE, ONE), (t, t))
    )(T),
    "the values alone are batched": lambda f: jax.vmap(
        lambda x, y: jax.jvp(f, (x, y), (ONE, ONE))
    )(P, Q),
    "one after the other": lambda f: jax.vmap(
        lambda x, y, t: jax.jvp(
            lambda x: jax.jvp(lambda y: f(x, y), (y,), (t,)), (x,), (t,)
        )
    )(P, Q, T),
    "one in the tangent of the other": lambda f: jax.vmap(
        lambda x, y, t: jax.jvp(
            lambda x, y: jax.jvp(f, (x, y), (t, t)), (x, y), (ONE, t + 1)
        )
    )(P, Q, T),
    "with respect to the tangent": lambda f: jax.vmap(
        lambda x, y, t: jax.jvp(lambda t: jax.jvp(f, (x, y), (t, t)), (t,), (t,))
    )(P, Q, T),
    "outside of a vmap": lambda f: jax.jvp(lambda x: jax.vmap(f)(x, Q), (P,), (T,)),
    "between two vmaps": lambda f: jax.vmap(
        lambda t: jax.jvp(lambda x: jax.vmap(f)(x, Q), (P,), (t,))
    )(jnp.eye(3)),
    "inside of two vmaps": lambda f: jax.vmap(
        lambda x: jax.vmap(lambda y, t: along_x(f, x, y, t))(Q, T)
    )(P),
    "jacfwd": lambda f: jax.vmap(jax.jacfwd(f))(P, Q),
    "jacfwd twice": lambda f: jax.vmap(jax.jacfwd(jax.jacfwd(f, (0, 1)), (0, 1)))(P, Q),
}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_plain_function(name, wrap):
    got = wrap(lambda: CASES[name](product()))()
    expected = CASES[name](lambda x, y: x * y)
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    for a, b in pairs:
        np.testing.assert_array_equal(a, b)


def summed(how):
    """A function of two vectors with a batch rule that takes `True` for granted."""

    @jaxfn.custom_function
    def f(x, y):
        return (x * y).sum()

    @f.def_vmap
    def _(size, batched, x, y):
        x, y = (v if b else v[None] for v, b in zip((x, y), batched, strict=True))
        axis = 1 if how == "axis" else -1
        return 7 * (x * y).sum(axis), True

    return f


@pytest.mark.parametrize("how", ["flag", "axis"])
@pytest.mark.parametrize("axes", [(0, 0, None), (None, None, 0), (0, None, None)])
def test_a_rule_that_takes_a_batch_for_granted(how, axes):
    f, xs = summed(how), jnp.arange(6.0).reshape(3, 2)
    args = [
        v if a == 0 else v[0] for v, a in zip((xs, xs + 1, xs + 2), axes, strict=True)
    ]

    def push(x, y, t):
        return jax.jvp(f, (x, y), (t, t))

    values, tangents = jax.vmap(push, axes)(*args)
    full = [
        v if a == 0 else jnp.stack([v] * 3) for v, a in zip(args, axes, strict=True)
    ]
    x, y, t = full
    # The rule's own factor shows in a value that is batched, and in no tangent.
    factor = 7 if 0 in axes[:2] else 1
    np.testing.assert_array_equal(values, factor * (x * y).sum(1))
    np.testing.assert_array_equal(tangents, (t * y + x * t).sum(1))


def doubled():
    """x -> 2 x, which is 7 x where it is batched."""
    f = jaxfn.custom_function(lambda x: 2 * x)
    f.def_vmap(lambda n, batched, x: ((7 if batched[0] else 2) * x, batched[0]))
    return f


def jacobians(f):
    one = jnp.ones(2)
    return {
        "jacfwd": jax.jacfwd(f)(one),
        "jacrev": jax.jacrev(f)(one),
        "jacfwd of jit": jax.jacfwd(jax.jit(f))(one),
        "jacrev of checkpoint": jax.jacrev(jax.checkpoint(f))(one),
        "tangents alone": jax.vmap(lambda t: jax.jvp(f, (one,), (t,))[1])(jnp.eye(2)),
        "cotangents alone": jax.vmap(lambda g: jax.vjp(f, one)[1](g)[0])(jnp.eye(2)),
        "second": jax.jacfwd(jax.jacrev(lambda x: f(x) * x / 2))(one)[0],
    }


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "compiled"])
def test_the_derivative_of_a_value_that_is_not_batched_is_that_of_the_function(wrap):
    found = wrap(lambda: jacobians(doubled()))()
    second = found.pop("second")
    for name, jacobian in found.items():
        assert jacobian.tolist() == [[2, 0], [0, 2]], name
    assert second.tolist() == [[2, 0], [0, 0]]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "compiled"])
def test_nor_is_that_of_a_constant_in_a_branch_that_some_examples_take(wrap):
    f = jaxfn.custom_function(lambda x: 2 * x * jnp.array([1.0, 1.0]))
    f.def_vmap(lambda n, batched, x: (7 * x, batched[0]))

    def pushed(s, t):
        along = lambda: jax.jvp(f, (jnp.ones(2),), (t,))  # noqa: E731
        return jax.lax.cond(s > 0, along, lambda: (t, t))

    signs, ts = jnp.array([1.0, -1.0]), jnp.eye(2)
    values, tangents = wrap(jax.vmap(pushed))(signs, ts)
    assert values[0].tolist() == [2, 2]
    assert tangents.tolist() == [[2, 0], [0, 1]]


def test_values_of_a_jvp_rule_keep_their_type():
    @jaxfn.custom_function
    def f(x):
        return 3 * x

    f.defjvp(lambda p, t: (f(*p), 2 * t[0]))
    half = jnp.bfloat16(1)
    for push in (jax.jvp, jax.jit(jax.jvp, static_argnums=0)):
        got = push(f, (2.0,), (1.0,))
        assert got == (6, 2)
        # A number stays weakly typed, as in JAX.
        assert [(x * half).dtype for x in got] == [jnp.bfloat16] * 2


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "compiled"])
def test_values_alone_are_batched(wrap):
    f = doubled()
    push = wrap(jax.vmap(lambda x: jax.jvp(f, (x,), (ONE,))))
    assert [x.tolist() for x in push(P)] == [[7, 14, 21], [2, 2, 2]]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "compiled"])
def test_tangents_alone_are_batched(wrap):
    f = doubled()
    push = jax.vmap(lambda t: jax.jvp(f, (ONE,), (t,)), out_axes=(None, 0))
    assert [x.tolist() for x in wrap(push)(T)] == [2, [4, 6, 8]]
