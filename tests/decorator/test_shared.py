"""An output that the examples of a vmap share, of a function with JAX's rules."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxfn
from tests import wrong

X = jnp.float32([1, 2, 3])
S = jnp.float32(2)
BACKWARD, JVP = wrong.BACKWARD, wrong.JVP

WRAPS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": lambda f: (
        lambda *xs: lax.scan(lambda c, _: (f(*c), None), xs, None, length=1)[0]
    ),
}
wraps = pytest.mark.parametrize("wrap", WRAPS)


def with_vjp(f, factor=lambda *_: 1):
    """(x, y) -> (2 x, y + 1), whose second derivative is multiplied."""
    f.defvjp(
        lambda x, y: ((2 * x, y + 1), (x, y)),
        lambda saved, g: (BACKWARD * 2 * g[0], BACKWARD * g[1] * factor(*saved)),
    )


def with_jvp(f, factor=lambda *_: 1):
    """The same by a rule of defjvp."""
    f.defjvp(
        lambda p, t: (
            (2 * p[0], p[1] + 1),
            (JVP * 2 * t[0], JVP * t[1] * factor(*p)),
        )
    )


def with_jvps(f, factor=lambda *_: 1):
    """The same by rules of defjvps."""
    f.defjvps(
        lambda t, out, *_: (JVP * 2 * t, jnp.zeros_like(out[1])),
        lambda t, out, *p: (jnp.zeros_like(out[0]), JVP * t * factor(*p)),
    )


KINDS = {
    "defvjp": (with_vjp, BACKWARD),
    "defjvp": (with_jvp, JVP),
    "defjvps": (with_jvps, JVP),
}


def made(kind, *factor):
    f = jaxfn.custom_function(lambda x, y: (2 * x, y + 1))
    KINDS[kind][0](f, *factor)
    return f


@wraps
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_not_taken_out_of_a_vmap(kind, wrap):
    """Each example has an output of its own, because its derivative may differ."""
    f = WRAPS[wrap](made(kind))
    with pytest.raises(ValueError, match="axis spec None"):
        jax.vmap(f, (0, None), (0, None))(X, S)
    mapped = jax.vmap(f, (0, None))
    assert mapped(X, S)[1].tolist() == [3] * 3
    loss = lambda *xs: mapped(*xs)[0].sum() + mapped(*xs)[1][0]  # noqa: E731
    of_x, of_y = jax.grad(loss, (0, 1))(X, S)
    factor = KINDS[kind][1]
    assert of_x.tolist() == [2 * factor] * 3
    assert of_y == factor


@pytest.mark.parametrize("kind", KINDS)
@wraps
def test_a_regulariser_that_all_share_counts_once_for_each_example(kind, wrap):
    """JAX's own custom_vjp, below 0.12, gives a gradient times the batch size."""
    mapped = jax.vmap(WRAPS[wrap](made(kind)), (0, None))
    of_y = jax.grad(lambda y: sum(z.sum() for z in mapped(X, y)))(S)
    assert of_y == 3 * KINDS[kind][1]


@wraps
@pytest.mark.parametrize("kind", ["defjvp", "defjvps"])
def test_examples_whose_tangents_differ_are_kept_apart(kind, wrap):
    mapped = jax.vmap(WRAPS[wrap](made(kind, lambda x, y: x)), (0, None))

    def second(y):
        return mapped(X, y)[1] * X

    assert jax.grad(lambda y: second(y).sum())(S) == 14 * JVP  # 1 + 4 + 9
    assert jax.jvp(second, (S,), (S,))[1].tolist() == [2 * JVP * x * x for x in X]


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_second_derivative_of_a_shared_output(wrap):
    f = jaxfn.custom_function(lambda x, y: (2 * x, y**2))

    @f.defjvp
    def _(p, t):
        return (2 * p[0], p[1] ** 2), (JVP * 2 * t[0], JVP * p[1] * t[1])

    mapped = jax.vmap(WRAPS[wrap](f), (0, None))
    assert jax.grad(jax.grad(lambda y: mapped(X, y)[1][0]))(S) == JVP
    assert jax.hessian(lambda y: mapped(X, y)[1][0])(S) == JVP


def test_an_argument_that_takes_no_part_stays_in_its_place():
    f = jaxfn.custom_function(lambda x, n, y: (n * x, y + 1), nondiff_argnums=(1,))

    @f.defjvp
    def _(n, p, t):
        assert n == 2
        return (n * p[0], p[1] + 1), (JVP * n * t[0], JVP * t[1])

    for wrap in ("eager", "jit"):
        g = WRAPS[wrap](lambda x, y: f(x, 2, y))
        mapped = jax.vmap(g, (0, None))
        assert mapped(X, S)[0].tolist() == [2, 4, 6]
        assert jax.grad(lambda y, mapped=mapped: mapped(X, y)[1][0])(S) == JVP


@wraps
def test_a_rule_that_calls_the_function_keeps_its_examples_right(wrap):
    f = jaxfn.custom_function(lambda x, y: (2 * x, y + 1))

    @f.defjvp
    def _(p, t):
        return f(*p), (JVP * 2 * t[0], JVP * p[0] * t[1])

    mapped = jax.vmap(WRAPS[wrap](f), (0, None))
    assert jax.grad(lambda y: (mapped(X, y)[1] * X).sum())(S) == 14 * JVP


@wraps
def test_its_values_are_batched_where_those_of_the_function_are(wrap):
    f = jaxfn.custom_function(lambda x, y: (2 * x, y + 1))

    @f.defjvp
    def _(p, t):
        # What the function gives here is not used, but its own derivative can't be
        # looked at while that of the rule is.
        f(*p)
        return (2 * p[0], p[1] + 1), (JVP * 2 * t[0], JVP * t[1])

    mapped = jax.vmap(WRAPS[wrap](f), (0, None))

    def second(y):
        return (mapped(X, y)[1] * X).sum()

    assert jax.grad(second)(S) == 6 * JVP
    assert jax.jvp(second, (S,), (S,))[1] == 2 * 6 * JVP
    assert jax.grad(jax.grad(second))(S) == 0


@pytest.mark.parametrize("wrap", ["eager", "jit", "checkpoint"])
def test_an_argument_may_be_a_number(wrap):
    f = jaxfn.custom_function(lambda x, y: (2 * x, y + 1))

    @f.defjvp
    def _(p, t):
        f(*p)
        return (2 * p[0], p[1] + 1), (JVP * 2 * t[0], JVP * t[1])

    inner = WRAPS[wrap](lambda x: f(x, f(x, 1.0)[1])[1] * x)
    assert jax.jvp(jax.vmap(inner), (X,), (X,))[1].tolist() == [3, 6, 9]
    inner = WRAPS[wrap](lambda x: f(1.0, x)[0] * x)
    assert jax.jvp(jax.vmap(inner), (X,), (X,))[1].tolist() == [2, 4, 6]
