"""What JAX's documentation does with its decorators, and what those refuse.

https://docs.jax.dev: the page on custom derivative rules, and
the docstrings of custom_vjp, custom_jvp, custom_vmap and custom_gradient, in own words.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxfn


def test_a_numerically_stable_derivative():
    @jaxfn.custom_function
    def softplus(x):
        return jnp.log1p(jnp.exp(x))

    softplus.defjvps(lambda t, out, x: t * (1 - 1 / (1 + jnp.exp(x))))
    assert np.isnan(jax.grad(softplus.fun)(100.0))
    assert jax.grad(softplus)(100.0) == 1
    xs = jnp.linspace(-2, 2, 5)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(jax.grad(softplus)))(xs), jax.nn.sigmoid(xs), rtol=1e-6
    )


def test_a_convention_at_a_boundary():
    @jaxfn.custom_function
    def ratio(x):
        return x / (1 + jnp.sqrt(x))

    @ratio.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        return ratio(x), ((jnp.sqrt(x) + 2) / (2 * (jnp.sqrt(x) + 1) ** 2)) * t

    assert np.isnan(jax.grad(ratio.fun)(0.0))
    assert jax.grad(ratio)(0.0) == 1


def test_clipping_the_gradient_only():
    @functools.partial(jaxfn.custom_function, nondiff_argnums=(0, 1))
    def clip(low, high, x):
        return x

    clip.defvjp(
        lambda low, high, x: (x, None),
        lambda low, high, _, g: (jnp.clip(g, low, high),),
    )
    xs = jnp.linspace(0.0, 3, 7)
    got = jax.vmap(jax.grad(lambda x: jnp.sin(clip(-0.75, 0.75, x))))(xs)
    np.testing.assert_allclose(got, np.clip(np.cos(xs), -0.75, 0.75), rtol=1e-5)


def fixed_point(f, a, guess):
    def going(pair):
        return jnp.abs(pair[0] - pair[1]) > 1e-6

    return lax.while_loop(going, lambda p: (p[1], f(a, p[1])), (guess, f(a, guess)))[1]


def test_an_implicit_function_solved_by_iteration():
    solve = jaxfn.custom_function(fixed_point)  # f is static without being declared

    def fwd(f, a, guess):
        x = solve(f, a, guess)
        return x, (f, a, x)

    def bwd(res, ct):
        f, a, x = res
        _, vjp_a = jax.vjp(lambda a: f(a, x), a)
        _, vjp_x = jax.vjp(lambda x: f(a, x), x)
        (ct_a,) = vjp_a(fixed_point(lambda _, u: ct + vjp_x(u)[0], a, ct))
        return None, ct_a, jnp.zeros_like(x)

    solve.defvjp(fwd, bwd)

    def root(a):
        return solve(lambda a, x: 0.5 * (x + a / x), a, a)

    np.testing.assert_allclose(root(2.0), np.sqrt(2), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(root)(2.0), 0.5 / np.sqrt(2), rtol=1e-5)
    got = jax.vmap(jax.jit(jax.grad(root)))(jnp.array([1.0, 4.0]))
    np.testing.assert_allclose(got, [0.5, 0.25], rtol=1e-4)

    # The same with a tangent rule beside it: forward mode, which JAX would refuse.
    @solve.defjvp
    def jvp(primals, tangents):
        f, a, guess = primals
        x = solve(f, a, guess)
        fa, fx = jax.grad(f, (0, 1))(a, x)
        return x, fa * tangents[1] / (1 - fx)

    got = jax.jvp(root, (2.0,), (1.0,))[1]
    np.testing.assert_allclose(got, 0.5 / np.sqrt(2), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(root)(2.0), 0.5 / np.sqrt(2), rtol=1e-5)


@pytest.mark.parametrize("mode", ["jvp", "vjp"])
def test_python_control_flow_on_values(mode):
    @jaxfn.custom_function
    def f(x):
        return jnp.sin(x) if x > 0 else jnp.cos(x)

    if mode == "jvp":
        f.defjvp(lambda p, t: (f(*p), t[0] * (2 if p[0] > 0 else 3)))
    else:
        f.defvjp(lambda x: (f(x), x), lambda x, g: (g * (2 if x > 0 else 3),))
    assert jax.grad(f)(1.0) == 2
    assert jax.grad(f)(-1.0) == 3


def test_containers_in_and_out():
    @jax.tree_util.register_pytree_node_class
    class Point:
        def __init__(self, x, y):
            self.x, self.y = x, y

        def tree_flatten(self):
            return (self.x, self.y), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    @jaxfn.custom_function
    def f(point):
        return {"a": point.x**2, "b": (jnp.sin(point.x), jnp.cos(point.y))}

    def bwd(point, ct):
        a, (b, c) = ct["a"], ct["b"]
        x = 2 * point.x * a + jnp.cos(point.x) * b
        return (Point(x, -jnp.sin(point.y) * c),)

    f.defvjp(lambda point: (f(point), point), bwd)

    def loss(f, point):
        return sum(jax.tree.leaves(f(point)))

    point = Point(jnp.float32(1), jnp.float32(2))
    got = jax.grad(functools.partial(loss, f))(point)
    expected = jax.grad(functools.partial(loss, f.fun))(point)
    np.testing.assert_allclose(got.x, expected.x, rtol=1e-6)
    np.testing.assert_allclose(got.y, expected.y, rtol=1e-6)
    f.defjvp(lambda p, t: jax.jvp(f.fun, p, t))
    assert jax.jvp(f, (point,), (point,))[1]["a"] == 2


def test_a_rule_of_a_function_argument():
    @functools.partial(jaxfn.custom_function, nondiff_argnums=(0,))
    def app(f, x):
        return f(x)

    app.defjvp(lambda f, p, t: (f(*p), 2.0 * t[0]))
    assert jax.grad(lambda x: app(lambda y: y**3, x))(3.0) == 2


def test_a_contraction_that_is_batched_as_one():
    calls = []

    @jaxfn.custom_function
    def contract(x, y):
        return jnp.tensordot(x, y, 1)

    @contract.def_vmap
    def rule(axis_size, in_batched, x, y):
        calls.append(list(in_batched))
        if in_batched[0] and not in_batched[1]:
            return jnp.tensordot(x, y, 1), True
        spec = [("b" if batched else "") + "i" for batched in in_batched]
        return jnp.einsum(f"{spec[0]},{spec[1]}->b", x, y), True

    x, y = jnp.arange(6.0).reshape(2, 3), jnp.arange(3.0)
    np.testing.assert_allclose(jax.vmap(contract, (0, None))(x, y), x @ y)
    assert calls == [[True, False]]
    # In reverse mode JAX's custom_vmap fails; here it is differentiated, to any order.
    got = jax.grad(lambda y: (jax.vmap(contract, (0, None))(x, y) ** 2).sum())(y)
    np.testing.assert_allclose(got, 2 * x.T @ (x @ y))
    got = jax.hessian(lambda y: (jax.vmap(contract, (0, None))(x, y) ** 2).sum())(y)
    np.testing.assert_allclose(got, 2 * x.T @ x)


def test_what_custom_gradient_does_is_a_fwd_and_a_bwd():
    square = jaxfn.custom_function(lambda x: x**2)
    square.defvjp(lambda x: (x**2, x), lambda x, g: (g * x,))
    assert (square(3.0), jax.grad(square)(3.0)) == (9, 3)

    product = jaxfn.custom_function(lambda x, y: x * y)
    product.defvjp(lambda x, y: (x * y, (x, y)), lambda xy, g: (g * xy[1], g * xy[0]))
    assert jax.grad(product, (0, 1))(3.0, 4.0) == (4, 3)


def test_looking_at_a_cotangent_on_the_host():
    seen = []
    tap = jaxfn.custom_function(lambda x: x)

    def bwd(_, g):
        jax.debug.callback(lambda g: seen.append(float(g)), g)
        return (g,)

    tap.defvjp(lambda x: (x, None), bwd)
    jax.jit(jax.grad(lambda x: tap(x) ** 2))(3.0).block_until_ready()
    jax.effects_barrier()
    assert seen == [6]
