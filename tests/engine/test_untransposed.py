"""A backward that JAX can't transpose is refused by name, and the way out works."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap
from jax.scipy.sparse.linalg import bicgstab, cg, gmres

from jaxfn._core.messages import ClosedOverError
from tests.build import function, in_style, saving

# The others of its many cells run with --full.

X = jnp.float32([0.3, -1, 2])


@custom_vmap
def double(x):
    return 2 * x


double.def_vmap(lambda n, batched, x: (2 * x, True))


def divide(x):
    return lambda v: v / jnp.cos(x)


def loop(g):
    """Multiply by one, in a loop of which JAX has no transpose."""
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, 1 * s[1]), (0, g))[1]


# Each multiplies the gradient by cos(x), if that is finite.
BACKWARDS = {
    "isnan": lambda x, g: jnp.where(jnp.isnan(g), 7.0, g) * jnp.cos(x),
    "isfinite": lambda x, g: jnp.where(jnp.isfinite(g), g, 7.0) * jnp.cos(x),
    "nan_to_num": lambda x, g: jnp.nan_to_num(2 * g - g) * jnp.cos(x),
    "product with a test": lambda x, g: g * jnp.isfinite(g) * jnp.cos(x),
    "any is NaN": lambda x, g: lax.cond(
        jnp.isnan(g).any(), lambda g: jnp.sin(g), lambda g: g * jnp.cos(x), g
    ),
    "nan_to_num in a branch": lambda x, g: (
        lax.cond(x[0] > 0, lambda g: jnp.nan_to_num(g), lambda g: g, g) * jnp.cos(x)
    ),
    "NaN outside of a domain": lambda x, g: jnp.where(x > -9, g * jnp.cos(x), jnp.nan),
    "NaN of three": lambda x, g: jnp.select(
        [x < -9, x < 0], [jnp.nan, g * jnp.cos(x)], jnp.cos(x) * g
    ),
    "gmres": lambda x, g: gmres(divide(x), g)[0],
    "gmres in jit": lambda x, g: jax.jit(lambda g: gmres(divide(x), g)[0])(g),
    "bicgstab": lambda x, g: bicgstab(divide(x), g)[0],
    "cg": lambda x, g: cg(divide(x), g)[0],
}
# Of these JAX has no transpose. The last two have no reverse mode in JAX either.
REFUSED = {
    "stop_gradient": lambda x, g: jnp.cos(x) * lax.stop_gradient(g),
    "stop_gradient of a product": lambda x, g: lax.stop_gradient(jnp.cos(x) * g),
    "stop_gradient in scan": lambda x, g: (
        lax.scan(lambda c, v: (c, lax.stop_gradient(v)), 0.0, g)[1] * jnp.cos(x)
    ),
    "while_loop": lambda x, g: loop(g) * jnp.cos(x),
    "custom_vmap": lambda x, g: double(g) * jnp.cos(x) / 2,
    "custom_vmap in jit": lambda x, g: jax.jit(double)(g) * jnp.cos(x) / 2,
}


def ours(pull, **names):
    rules = in_style("combined", jnp.sin, saving())
    backward = lambda ctx, g: pull(ctx.saved_tensors[0], g)  # noqa: E731
    return function("Sine", backward=backward, **rules, **names).apply


def plain(pull):
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (pull(x, g),))
    return f


def squares(f):
    return lambda x: (f(x) ** 2).sum()


wraps = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])

INSTEAD = (
    r"`Sine\.backward` can't be transposed to get the tangents .*"
    r"Define jvp: `jvp\(ctx, \*tangents\)` of `Sine`.*"
    r"replace jax\.hessian\(f\) by jax\.jacrev\(jax\.grad\(f\)\)"
)


@pytest.mark.parametrize("name", REFUSED)
def test_a_hessian_is_refused_with_both_ways_out(name):
    # Reverse over reverse mode does not go through a while loop either.
    loop = "(?s)In place of the loop: jax.lax.scan of a fixed length"
    said = loop if name == "while_loop" else rf"(?s){INSTEAD}"
    with pytest.raises(ValueError, match=said):
        jax.hessian(squares(ours(REFUSED[name])))(X)


@wraps
@pytest.mark.parametrize("name", REFUSED)
def test_a_derived_jvp_is_refused(name, wrap):
    f = ours(REFUSED[name], generate_jvp_rule=True)
    said = r"`Sine\.backward` can't be transposed to get a jvp .*Define jvp"
    with pytest.raises(ValueError, match=rf"(?s){said}") as caught:
        wrap(lambda x: jax.jvp(f, (x,), (x,))[1])(X)
    assert "hessian" not in str(caught.value)


@wraps
@pytest.mark.parametrize("name", BACKWARDS)
def test_what_guards_or_solves_is_transposed(name, wrap):
    pull = BACKWARDS[name]
    f = ours(pull, generate_jvp_rule=True)
    dot = wrap(lambda x: jax.jvp(f, (x,), (x,))[1])(X)
    np.testing.assert_allclose(dot, jnp.cos(X) * X, rtol=1e-4)
    expected = jax.jacrev(jax.grad(squares(plain(pull))))(X)
    found = wrap(jax.hessian(squares(ours(pull))))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full(unless=lambda wrap, **_: wrap is jax.jit)
@wraps
@pytest.mark.parametrize("name", BACKWARDS)
def test_reverse_over_reverse_needs_no_transpose(name, wrap):
    pull = BACKWARDS[name]
    expected = jax.jacrev(jax.grad(squares(plain(pull))))(X)
    found = wrap(jax.jacrev(jax.grad(squares(ours(pull)))))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["stop_gradient", "while_loop"])
def test_the_jvp_that_the_message_asks_for(name):
    def jvp(ctx, t):
        return t * jnp.cos(ctx.saved_tensors[0])

    found = jax.jit(jax.hessian(squares(ours(REFUSED[name], jvp=jvp))))(X)
    expected = jax.hessian(squares(plain(REFUSED[name])))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


# ---- values


def test_a_backward_may_choose_by_what_was_saved():
    f = ours(lambda x, g: jnp.where(x < 0, 3 * g, 2 * g), generate_jvp_rule=True)
    t = jnp.float32([1, 2, -3])
    assert jax.jvp(f, (X,), (t,))[1].tolist() == [2, 6, -6]


def test_a_backward_may_ask_for_values_where_they_are_known():
    pull = lambda x, g: g * jnp.cos(x) if (x > -5).all() else g  # noqa: E731
    for derivative in (jax.hessian, along_of_grad):
        expected = derivative(squares(plain(pull)))(X)
        np.testing.assert_allclose(
            derivative(squares(ours(pull)))(X), expected, rtol=1e-5
        )


def along_of_grad(f):
    return lambda x: jax.jvp(jax.grad(f), (x,), (jnp.ones_like(x),))[1]


@pytest.mark.parametrize(
    "pull",
    [
        lambda x, g: g * jnp.cos(x) if (g != 0).any() else g,
        lambda x, g: g * float(g[0]),
        lambda x, g: jnp.asarray(np.asarray(g)),
        lambda x, g: g * range(3)[g[0].astype(int)],
    ],
    ids=["if", "float", "numpy", "index"],
)
def test_a_backward_that_asks_for_values_of_the_gradient_is_refused(pull):
    words = (
        r"`Sine.backward` can't be transposed .* expected operations that don't need "
        r"the values of cotangents, as under jit, got .*Define jvp"
    )
    with pytest.raises(ValueError, match=words):
        along_of_grad(squares(ours(pull)))(X)


# ---- effects


def there_and_back(x, values):
    """Sort the values by x, which JAX does not transpose, and undo it."""
    order, values = lax.sort((x, jnp.arange(3), values), num_keys=1)[1:]
    return lax.sort((order, values), num_keys=1)[1]


@wraps
def test_an_effect_happens_once_where_jax_has_no_transpose(wrap):
    seen = []

    def pull(x, g):
        jax.debug.callback(lambda _: seen.append(1), x[0])
        return there_and_back(x, g) * jnp.cos(x)

    f = ours(pull, generate_jvp_rule=True)
    dot = jax.block_until_ready(wrap(lambda x: jax.jvp(f, (x,), (x,))[1])(X))
    jax.effects_barrier()
    np.testing.assert_allclose(dot, jnp.cos(X) * X, rtol=1e-6)
    assert seen == [1]


@pytest.mark.parametrize("solver", [cg, bicgstab])
def test_an_effect_may_stand_before_a_solve(solver):
    def pull(x, g):
        jax.debug.callback(lambda _: None, x[0])
        return solver(divide(x), g)[0]

    found = along_of_grad(squares(ours(pull)))(X)
    expected = along_of_grad(squares(jnp.sin))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_a_reference_of_its_own_is_transposed():
    def backward(ctx, g):
        ref = jax.new_ref(jnp.zeros_like(g))
        ref[...] += 3 * g
        return ref[...]

    f = function(
        forward=lambda ctx, x: 2 * x, backward=backward, generate_jvp_rule=True
    ).apply
    assert jax.jvp(f, (jnp.float32(3),), (jnp.float32(1),))[1] == 3


def test_a_differentiated_value_in_a_derived_jvp_must_be_an_argument():
    def f(k):
        return function(
            forward=lambda ctx, x: 2 * x,
            backward=lambda ctx, g: 3 * g * k,
            generate_jvp_rule=True,
        ).apply(k)

    with pytest.raises(
        ClosedOverError, match=r"`\w+` used a traced value .* passed to apply"
    ):
        jax.jvp(f, (2.0,), (1.0,))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("second", [jax.jacfwd, jax.grad])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
@pytest.mark.parametrize(
    ("jvp", "error"),
    [
        ({}, "can't apply forward-mode"),
        ({"jvp": lambda ctx, t: jnp.asarray(np.asarray(t))}, "__array__"),
    ],
)
def test_where_forward_mode_is_refused_its_derivative_is_too(jvp, error, wrap, second):
    # The tangent itself isn't used, so XLA would drop it, and the refusal with it.
    f = ours(lambda x, g: g * jnp.cos(x), **jvp)
    along = wrap(second(lambda x: jax.jvp(f, (x,), (jnp.float32(1),))[1]))
    with pytest.raises(TypeError, match=error):
        along(jnp.float32(1))
