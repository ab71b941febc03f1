"""Values with a derivative attached."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfn._engine.attachment import _Rule, attach
from jaxfn._engine.gate import without_derivative
from tests.build import function
from tests.jaxprs import primitives

X = jnp.float32([1, 2, 3])


def allclose(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def cube(x):
    """x^3, whose attached derivative is 10 x^2: it tells that the rule ran."""

    def tangents(inputs, outs, dots):
        return [None if dots[0] is None else 10 * inputs[0] ** 2 * dots[0]]

    (out,) = attach(tangents, [x], [without_derivative([x])[0] ** 3], name="cube")
    return out


def test_concrete_values_are_returned_as_they_are():
    value = X**3
    assert attach(None, [X], [value], name="cube")[0] is value


def test_it_keeps_the_identity_of_what_is_no_tracer():
    assert without_derivative([X])[0] is X
    seen = []
    jax.grad(lambda x: seen.extend(without_derivative([x, x, X])) or x.sum())(X)
    assert len({id(x) for x in seen}) == 3
    assert seen[2] is X


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_derivatives_of_any_order(wrap):
    f = wrap(lambda x: cube(x).sum())
    allclose(wrap(cube)(X), X**3)
    allclose(jax.grad(f)(X), 10 * X**2)
    allclose(jax.jvp(f, (X,), (X,))[1], (10 * X**3).sum())
    allclose(jax.hessian(f)(X), np.diag(20 * X))
    allclose(jax.jacrev(jax.jacfwd(f))(X), np.diag(20 * X))


def test_batches():
    rows = jnp.stack([X, 2 * X])
    allclose(jax.vmap(cube, 1, 1)(rows.T), rows.T**3)
    allclose(jax.vmap(jax.grad(lambda x: cube(x).sum()))(rows), 10 * rows**2)
    allclose(jax.grad(lambda x: jax.vmap(cube)(x).sum())(rows), 10 * rows**2)


def test_a_shared_value_is_repeated_for_each_example_if_that_is_asked_for():
    def f(x, k):
        value, names = jnp.zeros(()), {"name": "f", "spreads": True}
        return attach(lambda i, o, d: [d[1]], [x, k], [value], **names)[0]

    k = jnp.float32([1, 2])
    allclose(jax.vmap(f, (None, 0))(X, k), [0, 0])
    got = jax.grad(lambda k: (jax.vmap(f, (None, 0))(X, k) * k).sum())(k)
    allclose(got, k)


def test_the_rule_sees_attached_values():
    def f(x):
        def tangents(inputs, outs, dots):
            return [outs[0] * dots[0]]

        return attach(tangents, [x], [jnp.exp(without_derivative([x])[0])], name="exp")[
            0
        ]

    g = jax.grad(lambda x: f(x).sum())
    allclose(jax.grad(lambda x: g(x).sum())(X), np.exp(X))
    third = jax.grad(lambda x: jax.grad(lambda x: g(x).sum())(x).sum())
    allclose(third(X), np.exp(X))


def test_a_value_with_a_derivative_of_its_own_is_refused():
    def f(x, w):
        return attach(lambda i, o, d: [d[0]], [x], [x * w], name="mine")[0].sum()

    with pytest.raises(TypeError, match="`mine` used a traced value"):
        jax.grad(f, 1)(X, X)


def test_it_leaves_nothing_in_the_compiled_code():
    assert "attach" in primitives(jax.make_jaxpr(cube)(X))
    assert "attach" not in jax.jit(cube).lower(X).as_text()


def test_an_eager_derivative_commits_no_array_to_its_device():
    f = function(
        forward=lambda ctx, x: (ctx.save_for_backward(x), x * x)[1],
        backward=lambda ctx, g: 2 * ctx.saved_tensors[0] * g,
    )
    x = jnp.ones(3)
    assert not x.committed
    assert not jax.grad(lambda x: f.apply(x).sum())(x).committed


# ---- how often the rule is asked


def counted(runs):
    """x^3 with 10 x^2 for its derivative, and a list of the runs of the rule."""

    def f(x):
        def tangents(inputs, outs, dots):
            runs.append(inputs[0].shape)
            return [None if dots[0] is None else 10 * inputs[0] ** 2 * dots[0]]

        return attach(tangents, [x], [without_derivative([x])[0] ** 3], name="cube")[0]

    return f


BODIES = {
    "cond": lambda f: lambda x: jax.lax.cond(x[0] < 9, f, lambda x: x, x),
    "scan": lambda f: lambda x: jax.lax.scan(lambda x, _: (f(x), None), x, None, 1)[0],
}


@pytest.mark.parametrize("body", BODIES)
def test_the_rule_is_asked_once_where_jax_differentiates_twice(body):
    runs = []
    g = BODIES[body](counted(runs))
    allclose(jax.jit(lambda x: jax.jvp(g, (x,), (x,))[1])(X), 10 * X**3)
    assert len(runs) == 1


def test_the_rule_is_asked_again_for_other_types_and_for_other_tangents():
    seen = []

    def tangents(inputs, outs, dots):
        seen.append([d is not None for d in dots])
        return [sum(d * x for d, x in zip(dots, inputs, strict=True) if d is not None)]

    def f(x, y):
        inside = without_derivative([x, y])
        return attach(tangents, [x, y], [inside[0] * inside[1]], name="f")[0]

    f = jax.jit(f)

    @jax.jit
    def derivatives(x, y):
        both = jax.jvp(f, (x, y), (x, y))[1]
        one = jax.jvp(lambda x: f(x, y), (x,), (x,))[1]
        return both, one, jax.jvp(lambda y: f(x, y), (y,), (y,))[1]

    both, first, second = derivatives(X, 2 * X)
    allclose(both, X * X + 4 * X * X)
    allclose(first, X * X)
    allclose(second, 4 * X * X)
    assert seen == [[True, True], [True, False], [False, True]]


def test_a_tracer_that_a_rule_closes_over_is_not_remembered():
    seen = []

    def f(x, scale):
        rule = _Rule("f", lambda inputs, outs, dots: [scale * dots[0]])
        seen.append(rule)
        return rule.along([x], [x], [x])[0]

    allclose(jax.jit(f)(X, 2.0), 2 * X)
    allclose(jax.grad(lambda s: jax.jit(f)(X, s).sum())(1.0), X.sum())
    assert not any(rule._traced for rule in seen)


def test_the_rule_gets_values_where_they_are_known():
    def tangents(inputs, outs, dots):
        return [np.asarray(inputs[0]) * dots[0]]  # a NumPy body can't be traced

    def f(x):
        return attach(tangents, [x], [without_derivative([x])[0]], name="f")[0]

    allclose(jax.jvp(f, (X,), (X,))[1], X * X)
    allclose(jax.grad(lambda x: f(x).sum())(X), X)
    allclose(jax.jit(lambda t: jax.jvp(f, (X,), (t,))[1])(X), X * X)
