"""A backward that JAX can't transpose is refused by name, and the way out works."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.lax.windowed_reductions import _select_and_scatter_add
from jax.custom_batching import custom_vmap
from jax.scipy.sparse.linalg import bicgstab, cg, gmres

from jaxfn._core.messages import ClosedOverError, RuleValueError
from tests.build import function

# The others of its many cells run with --full.

X = jnp.float32([0.3, -1, 2])


@custom_vmap
def double(x):
    return 2 * x


double.def_vmap(lambda n, batched, x: (2 * x, True))


def divide(x):
    return lambda v: v / jnp.cos(x)


# Each multiplies the gradient by cos(x), if that is finite.
BACKWARDS = {
    "stop_gradient": lambda x, g: jnp.cos(x) * lax.stop_gradient(g),
    "stop_gradient of a product": lambda x, g: lax.stop_gradient(jnp.cos(x) * g),
    "stop_gradient in scan": lambda x, g: (
        lax.scan(lambda c, v: (c, lax.stop_gradient(v)), 0.0, g)[1] * jnp.cos(x)
    ),
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
    "gmres from the gradient": lambda x, g: gmres(divide(x), g, x0=jnp.flip(g))[0],
    "bicgstab from the gradient": lambda x, g: bicgstab(divide(x), g, x0=g)[0],
    "cg from the gradient": lambda x, g: cg(divide(x), g, x0=g)[0],
    "cg with a tolerance of the gradient": lambda x, g: cg(
        divide(x), g, tol=0, atol=1e-6 * jnp.linalg.norm(g)
    )[0],
}
# A custom_vmap has no reverse mode in JAX, so `jvp` is the only way out.
FORWARD_ONLY = {
    "custom_vmap": lambda x, g: double(g) * jnp.cos(x) / 2,
    "custom_vmap in jit": lambda x, g: jax.jit(double)(g) * jnp.cos(x) / 2,
}


def ours(pull, **names):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return jnp.sin(x)

    backward = lambda ctx, g: pull(ctx.saved_tensors[0], g)  # noqa: E731
    return function("Sine", forward=forward, backward=backward, **names).apply


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


@pytest.mark.parametrize("name", BACKWARDS | FORWARD_ONLY)
def test_a_hessian_is_refused_with_both_ways_out(name):
    with pytest.raises(ValueError, match=rf"(?s){INSTEAD}"):
        jax.hessian(squares(ours((BACKWARDS | FORWARD_ONLY)[name])))(X)


@pytest.mark.full(unless=lambda wrap, **_: wrap is jax.jit)
@wraps
@pytest.mark.parametrize("name", BACKWARDS)
def test_reverse_over_reverse_needs_no_transpose(name, wrap):
    pull = BACKWARDS[name]
    expected = jax.jacrev(jax.grad(squares(plain(pull))))(X)
    found = wrap(jax.jacrev(jax.grad(squares(ours(pull)))))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@wraps
@pytest.mark.parametrize("name", BACKWARDS)
def test_a_derived_jvp_is_refused(name, wrap):
    f = ours(BACKWARDS[name], generate_jvp_rule=True)
    said = r"`Sine\.backward` can't be transposed to get a jvp .*Define jvp"
    with pytest.raises(ValueError, match=rf"(?s){said}") as caught:
        wrap(lambda x: jax.jvp(f, (x,), (x,))[1])(X)
    assert "hessian" not in str(caught.value)


@pytest.mark.full(unless=lambda name: name == "nan_to_num")
@pytest.mark.parametrize("name", ["stop_gradient", "nan_to_num", "gmres"])
def test_the_jvp_that_the_message_asks_for(name):
    def jvp(ctx, t):
        return t * jnp.cos(ctx.saved_tensors[0])

    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return jnp.sin(x)

    backward = lambda ctx, g: BACKWARDS[name](ctx.saved_tensors[0], g)  # noqa: E731
    f = function("Sine", forward=forward, backward=backward, jvp=jvp).apply
    found = jax.jit(jax.hessian(squares(f)))(X)
    expected = jax.hessian(squares(plain(BACKWARDS[name])))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_tangents_that_nobody_uses_are_not_computed_under_jit():
    clipped = lambda x, g: jnp.clip(g * jnp.cos(x), -1, 1)  # noqa: E731
    hessian = lambda f: jax.hessian(lambda x: 0.5 * f(x).sum())  # noqa: E731
    expected = jax.jit(hessian(plain(clipped)))(X)
    found = jax.jit(hessian(ours(clipped)))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# ---- what is not linear, and values


@pytest.mark.parametrize(
    "pull",
    [
        lambda x, g: jnp.where(jnp.isnan(g), g, 1.0),
        lambda x, g: jnp.where(jnp.isnan(g), g, jnp.sin(g)),
        lambda x, g: g + jnp.isfinite(g),
        lambda x, g: jnp.where(g > 0, jnp.nan, x),
        lambda x, g: jnp.where(x > 9, jnp.nan, g + 1),
        lambda x, g: jnp.where(g == 1, 0, g),
        # What does not depend on the gradient may decide.
        lambda x, g: jnp.where(jnp.isfinite(x), 1.0, g),
        lambda x, g: lax.stop_gradient(jnp.sin(g)),
    ],
    ids=["constant", "sin", "a term", "NaN by g", "NaN or a term"]
    + ["equal", "of x", "stopped"],
)
def test_a_guarded_backward_that_is_not_linear_is_refused(pull):
    f = ours(pull, generate_jvp_rule=True)
    with pytest.raises(ValueError, match=r"`Sine.backward` can't be transposed"):
        jax.jvp(f, (X,), (X,))


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


@pytest.mark.parametrize(
    "backward",
    [
        lambda g, ref: ref(g, lambda r: jnp.ones(())),
        lambda g, ref: g + ref(jnp.zeros_like(g), lambda r: jnp.ones(())),
        lambda g, ref: ref(jnp.zeros_like(g), lambda r: 3 * g),
    ],
    ids=["a term", "a term of its own", "linear, which is not proved"],
)
def test_a_value_of_a_reference_is_not_taken_for_linear(backward):
    def added(x, what):
        ref = jax.new_ref(x)
        ref[...] += what(ref)
        return ref[...]

    f = function(
        forward=lambda ctx, x: 2 * x,
        backward=lambda ctx, g: backward(g, added),
        generate_jvp_rule=True,
    ).apply
    with pytest.raises(RuleValueError, match=r"a value of a reference .* Define jvp"):
        jax.jvp(f, (jnp.float32(3),), (jnp.float32(1),))


def test_a_differentiated_value_in_a_derived_jvp_must_be_an_argument():
    def f(k):
        return function(
            forward=lambda ctx, x: 2 * x,
            backward=lambda ctx, g: 3 * g * k,
            generate_jvp_rule=True,
        ).apply(k)

    with pytest.raises(ClosedOverError, match=r"`\w+\.backward` .* passed to apply"):
        jax.jvp(f, (2.0,), (1.0,))


def test_a_choice_by_the_gradient_is_not_taken_for_linear():
    """Its operand has a zero derivative, and the operation a transpose by another."""

    def backward(ctx, g):
        windows = (2,), (2,), ((0, 0),)
        return _select_and_scatter_add(jnp.ones(2), g, lax.ge_p, *windows)

    f = function(
        forward=lambda ctx, x: 2 * x, backward=backward, generate_jvp_rule=True
    ).apply
    with pytest.raises(RuleValueError, match="Define jvp"):
        jax.jvp(f, (jnp.arange(4.0),), (jnp.ones(4),))
