"""Second derivatives through a backward with operations that JAX does not transpose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap

import jaxfn
from tests.build import function

X = jnp.float32([0.3, -1, 2])


def batchable(make, factor=1.0):
    """The product with 2, whose rule for a batch has another factor."""
    double = make(lambda x: 2 * x)
    double.def_vmap(lambda n, batched, x: (2 * factor * x, True))
    return double


DOUBLE = batchable(custom_vmap)
OURS = batchable(jaxfn.custom_function)


def per_row(g):
    """Call a custom_vmap in each step of a scan."""
    return lax.scan(lambda c, v: (c, DOUBLE(v)), 0.0, g)[1]


def without_nan(g):
    return jnp.where(jnp.isnan(g), 0.0, g)


def there_and_back(x, values):
    """Sort the values by x, which JAX does not transpose, and undo it."""
    order, values = lax.sort((x, jnp.arange(3), values), num_keys=1)[1:]
    return lax.sort((order, values), num_keys=1)[1]


# Each is the product of the gradient with cos(x), where that is finite.
BACKWARDS = {
    "stop_gradient": lambda x, g: jnp.cos(x) * lax.stop_gradient(g),
    "stop_gradient of a product": lambda x, g: lax.stop_gradient(jnp.cos(x) * g),
    "stop_gradient of a part": lambda x, g: (
        0.25 * jnp.cos(x) * g + 0.75 * lax.stop_gradient(jnp.cos(x) * g)
    ),
    "stop_gradient in jit": lambda x, g: jax.jit(lax.stop_gradient)(g) * jnp.cos(x),
    "stop_gradient in scan": lambda x, g: (
        lax.scan(lambda c, v: (c, lax.stop_gradient(v)), 0.0, g)[1] * jnp.cos(x)
    ),
    "stop_gradient, scattered": lambda x, g: (
        jnp.zeros(3)
        .at[jnp.array([2, 0, 1])]
        .set(lax.stop_gradient(g))[jnp.array([2, 0, 1])]
        * jnp.cos(x)
    ),
    "isnan": lambda x, g: jnp.where(jnp.isnan(g), 7.0, g) * jnp.cos(x),
    "isfinite": lambda x, g: jnp.where(jnp.isfinite(g), g, 7.0) * jnp.cos(x),
    "not finite": lambda x, g: jnp.where(~jnp.isfinite(g), 7.0, g) * jnp.cos(x),
    "isnan or isinf": lambda x, g: (
        jnp.where(jnp.isnan(g) | jnp.isinf(g), 7.0, g) * jnp.cos(x)
    ),
    "nan_to_num": lambda x, g: jnp.nan_to_num(2 * g - g) * jnp.cos(x),
    "isnan in a place": lambda x, g: (
        jnp.zeros(3)
        .at[(x > -5).astype(int) * jnp.arange(3)]
        .set(without_nan(g), unique_indices=True)
        * jnp.cos(x)
    ),
    "isnan of a part": lambda x, g: (
        without_nan(jnp.where(x > 9, 0.0, g).at[0].add(0.0)) * jnp.cos(x)
    ),
    "product with a test": lambda x, g: without_nan(g * jnp.isfinite(g)) * jnp.cos(x),
    "any is NaN": lambda x, g: lax.cond(
        jnp.isnan(g).any(), lambda g: jnp.sin(g), lambda g: g * jnp.cos(x), g
    ),
    "all are finite": lambda x, g: (
        lax.cond(jnp.isfinite(g).all(), lambda g: g, jnp.zeros_like, g) * jnp.cos(x)
    ),
    "nan_to_num in a branch": lambda x, g: (
        lax.cond(x[0] > 0, lambda g: jnp.nan_to_num(g), lambda g: g, g) * jnp.cos(x)
    ),
    "NaN outside of a domain": lambda x, g: jnp.where(x > -9, g * jnp.cos(x), jnp.nan),
    "NaN in places": lambda x, g: (
        jnp.where(x < -9, jnp.full_like(x, jnp.nan), g) * jnp.cos(x)
    ),
    "NaN for all": lambda x, g: jnp.cos(x) * jnp.where((x < -9).any(), np.nan, g),
    "NaN of three": lambda x, g: jnp.select(
        [x < -9, x < 0], [jnp.nan, g * jnp.cos(x)], jnp.cos(x) * g
    ),
    "NaN on two sides": lambda x, g: jnp.where(
        x < -9, jnp.nan, jnp.where(x > 9, jnp.nan, g * jnp.cos(x))
    ),
    "custom_vmap": lambda x, g: DOUBLE(g) * jnp.cos(x) / 2,
    "custom_vmap in jit": lambda x, g: jax.jit(DOUBLE)(g) * jnp.cos(x) / 2,
    "custom_vmap in scan": lambda x, g: per_row(g) * jnp.cos(x) / 2,
    "custom_vmap in checkpoint": lambda x, g: (
        jax.checkpoint(DOUBLE)(g) * jnp.cos(x) / 2
    ),
    "custom_vmap of an example": lambda x, g: jax.vmap(DOUBLE)(g) * jnp.cos(x) / 2,
    "custom_vmap, sorted": lambda x, g: there_and_back(x, DOUBLE(g)) * (jnp.cos(x) / 2),
    "def_vmap": lambda x, g: OURS(g) * jnp.cos(x) / 2,
}


def saving(ctx, x):
    ctx.save_for_backward(x)
    return jnp.sin(x)


def ours(pull, **names):
    backward = lambda ctx, g: pull(ctx.saved_tensors[0], g)  # noqa: E731
    return function("Sine", forward=saving, backward=backward, **names).apply


def plain(pull):
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (pull(x, g),))
    return f


def squares(f):
    return lambda x: (f(x) ** 2).sum()


wraps = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])


@wraps
@pytest.mark.parametrize("name", BACKWARDS)
def test_a_hessian_is_that_of_a_plain_custom_vjp(name, wrap):
    pull = BACKWARDS[name]
    expected = jax.hessian(squares(plain(pull)))(X)
    found = wrap(jax.hessian(squares(ours(pull))))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@wraps
@pytest.mark.parametrize("name", BACKWARDS)
def test_a_derived_jvp_is_the_transpose_of_the_value(name, wrap):
    f = ours(BACKWARDS[name], generate_jvp_rule=True)
    t = jnp.float32([1, 2, -3])
    dot = wrap(lambda x: jax.jvp(f, (x,), (t,))[1])(X)
    np.testing.assert_allclose(dot, jnp.cos(X) * t, rtol=1e-6)


NANS = {
    "where": lambda x, g: jnp.where(x < 0, jnp.nan, 2 * g),
    "select of three": lambda x, g: jnp.select([x < 0, x > 1], [jnp.nan, 2 * g], 2 * g),
    "in jit": lambda x, g: jax.jit(jnp.where)(x < 0, jnp.full_like(g, jnp.nan), 2 * g),
    "of gradients": lambda x, g: jnp.where(x < 0, jnp.nan, g) + g,
}


@wraps
@pytest.mark.parametrize("name", NANS)
def test_where_a_gradient_is_nan_so_is_the_derived_tangent(name, wrap):
    f = ours(NANS[name], generate_jvp_rule=True)
    t = jnp.float32([1, 2, -3])
    along = wrap(lambda x: jax.jvp(f, (x,), (t,))[1])
    np.testing.assert_array_equal(along(X), [2, jnp.nan, -6])
    back = wrap(lambda x: jax.vjp(f, x)[1](t)[0])
    np.testing.assert_array_equal(back(X), [2, jnp.nan, -6])


@wraps
def test_nan_outside_of_a_domain_may_vary_over_a_mesh(wrap):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    f = ours(NANS["where"], generate_jvp_rule=True)
    along = lambda x: jax.jvp(f, (x,), (x,))[1]  # noqa: E731
    mapped = jax.shard_map(along, mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_array_equal(wrap(mapped)(X), np.float32([0.6, np.nan, 4]))


def test_what_a_gradient_is_multiplied_by_stays_without_derivative():
    f = ours(
        BACKWARDS["stop_gradient of a product"],
        generate_jvp_rule=True,
    )
    along = lambda x: jax.jvp(f, (x,), (jnp.ones(3),))[1]  # noqa: E731
    assert along(X).tolist() == jnp.cos(X).tolist()
    assert jax.jvp(along, (X,), (jnp.ones(3),))[1].tolist() == [0, 0, 0]
    # By backward, too.
    reverse = jax.grad(lambda x: f(x).sum())
    assert jax.jvp(reverse, (X,), (jnp.ones(3),))[1].tolist() == [0, 0, 0]


@wraps
@pytest.mark.parametrize("make", [custom_vmap, jaxfn.custom_function])
def test_the_batch_rule_of_what_is_called_is_transposed(make, wrap):
    # Wrong on purpose, to see which rule ran: for a batch the product with 6.
    double = batchable(make, factor=3.0)
    f = ours(lambda x, g: double(g) * x, generate_jvp_rule=True)
    t = jnp.float32([1, 2, -3])
    along = lambda x, t: jax.jvp(f, (x,), (t,))[1]  # noqa: E731
    np.testing.assert_allclose(wrap(along)(X, t), 2 * X * t, rtol=1e-6)
    np.testing.assert_allclose(wrap(jax.vmap(along))(X, t), 6 * X * t, rtol=1e-6)
    # The example that all share is not batched, and its tangents are.
    shared = jax.vmap(along, (None, 0))(X[0], t)
    np.testing.assert_allclose(shared, 6 * X[0] * t, rtol=1e-6)


def test_a_function_with_a_batch_rule_is_transposed_as_it_stands():
    @jaxfn.custom_function
    def both(x, w, y):
        return x * w, (x + y).sum()

    both.def_vmap(
        lambda n, batched, x, w, y: ((3 * x * w, x.sum(1) + y.sum(1)), (1, 1))
    )
    w = jnp.float32([2, 3])

    def back(u, v):
        like = jnp.ones(2)
        return jax.linear_transpose(lambda x, y: both(x, w, y), like, like)((u, v))

    u, v = jnp.float32([1, 10]), jnp.float32(100)
    x, y = back(u, v)
    assert x.tolist() == [102, 130]
    assert y.tolist() == [100, 100]
    x, y = jax.vmap(back)(jnp.stack([u, 2 * u]), jnp.stack([v, v]))
    assert x.tolist() == [[106, 190], [112, 280]]  # by the rule, with 3 * w
    assert y.tolist() == [[100, 100], [100, 100]]
    (x,) = jax.linear_transpose(lambda x: both(x, w, x)[0], jnp.ones(2))(u)
    assert x.tolist() == [2, 30]


@pytest.mark.parametrize("make", [custom_vmap, jaxfn.custom_function])
@pytest.mark.parametrize(
    "body",
    [jnp.sin, lambda x: x + 1, jnp.abs, lambda x: jnp.ones_like(x)],
    ids=["sin", "affine", "abs", "constant"],
)
def test_a_call_that_is_not_linear_is_refused(body, make):
    inner = make(body)
    inner.def_vmap(lambda n, batched, x: (body(x), True))
    f = ours(lambda x, g: inner(g), generate_jvp_rule=True)
    with pytest.raises(ValueError, match=r"`Sine.backward` can't be transposed"):
        jax.jvp(f, (X,), (X,))


@pytest.mark.parametrize(
    "pull",
    [
        lambda x, g: jnp.where(jnp.isnan(g), g, 1.0),
        lambda x, g: jnp.where(jnp.isnan(g), g, jnp.sin(g)),
        lambda x, g: g + jnp.isfinite(g),
        # The factor may be NaN, of which the transpose would make NaN.
        lambda x, g: jnp.nan_to_num(g * x),
        lambda x, g: lax.scan(
            lambda c, v: (c * v, jnp.where(jnp.isnan(c), 7.0, v)), x[0], g
        )[1],
        lambda x, g: without_nan(g * x),
        lambda x, g: without_nan(g / x.astype(int)),
        lambda x, g: without_nan(g[x.astype(int)]),
        lambda x, g: without_nan(g * jnp.inf),
        lambda x, g: jnp.where(g > 0, jnp.nan, x),
        lambda x, g: jnp.where(x > 9, jnp.nan, g + 1),
        # The tangent would be NaN, where the gradient is not.
        lambda x, g: jnp.where(x < 0, 0.0, jnp.where(x < 0, jnp.nan, g)),
        lambda x, g: jnp.concatenate([g[:2], jnp.where(x < 0, jnp.nan, g)[2:]]),
        lambda x, g: lax.cond(
            x[0] > 9, lambda: g, lambda: jnp.where(x < 0, jnp.nan, g)
        ),
        lambda x, g: without_nan(
            lax.scan(lambda c, v: (c, v / c), x[0].astype(int), g)[1]
        ),
        lambda x, g: lax.cond(x[0] > 0, without_nan, lambda v: v, g * x),
        lambda x, g: lax.cond(jnp.isnan(g).any(), lambda v: v, without_nan, g * x),
        lambda x, g: jnp.where(g == 1, 0, g),
        # Of what does not depend on the gradient nothing is assumed.
        lambda x, g: jnp.where(jnp.isfinite(x), 1.0, g),
        lambda x, g: lax.stop_gradient(jnp.sin(g)),
    ],
    ids=["constant", "sin", "a term", "factor", "scan", "factor alone"]
    + ["integer", "out of bounds", "infinity", "NaN by g", "NaN or a term"]
    + ["NaN left out", "NaN cut off", "NaN in a branch"]
    + ["integer in scan"]
    + ["cond", "known cond"]
    + ["equal", "of x", "stopped"],
)
def test_a_guarded_backward_that_is_not_linear_is_refused(pull):
    f = ours(pull, generate_jvp_rule=True)
    with pytest.raises(ValueError, match=r"`Sine.backward` can't be transposed"):
        jax.jvp(f, (X,), (X,))


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


def test_a_test_of_what_was_saved_is_one():
    f = ours(
        lambda x, g: jnp.where(jnp.isfinite(x), jnp.nan_to_num(g), 5 * g),
        generate_jvp_rule=True,
    )
    x = jnp.float32([1, jnp.inf, jnp.nan])
    assert jax.jvp(f, (x,), (jnp.ones(3),))[1].tolist() == [1, 5, 5]


def test_an_effect_of_a_test_happens_in_every_run():
    seen = []

    def pull(x, g):
        jax.debug.callback(lambda any_nan: seen.append(any_nan), jnp.isnan(g).any())
        return jnp.nan_to_num(g) * jnp.cos(x)

    f = ours(pull, generate_jvp_rule=True)
    along = jax.jit(lambda x: jax.jvp(f, (x,), (x,)))
    for _ in range(3):
        jax.block_until_ready(along(X))
    jax.effects_barrier()
    assert [bool(x) for x in seen] == [False] * 3


@wraps
def test_a_function_that_closes_over_an_array_is_transposed(wrap):
    @wrap
    def back(w, ct):
        f = jaxfn.custom_function(lambda x: (w @ x)[:, None] * jnp.ones(4))
        f.def_vmap(
            lambda n, batched, x: (3 * (x @ w.T)[:, :, None] * jnp.ones(4), True)
        )
        one = lambda ct: jax.linear_transpose(f, jnp.ones(3))(ct)[0]  # noqa: E731
        return one(ct), jax.vmap(one)(ct[None])

    w = jnp.arange(6.0).reshape(2, 3)
    found = back(w, jnp.ones((2, 4)))
    assert found[0].tolist() == [12, 20, 28]
    assert found[1].tolist() == [[36, 60, 84]]


def test_tangents_that_nobody_uses_are_not_computed_under_jit():
    clipped = lambda x, g: jnp.clip(g * jnp.cos(x), -1, 1)  # noqa: E731
    hessian = lambda f: jax.hessian(lambda x: 0.5 * f(x).sum())  # noqa: E731
    with pytest.raises(ValueError, match=r"If nothing uses these .* under jax\.jit"):
        hessian(ours(clipped))(X)
    expected = jax.jit(hessian(plain(clipped)))(X)
    found = jax.jit(hessian(ours(clipped)))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(ValueError, match="can't be transposed") as caught:
        jax.jvp(ours(clipped, generate_jvp_rule=True), (X,), (X,))
    assert "jit" not in str(caught.value)


def by_step(x, g):
    """Carry powers of x, of which the derivative is stopped, beside the gradient."""
    step = lambda s, v: (s * x[0], lax.stop_gradient(s) * v)  # noqa: E731
    return lax.scan(step, x[0], g)[1]


def test_what_a_scan_carries_of_what_was_saved_stays_without_derivative():
    f = ours(by_step, generate_jvp_rule=True)
    along = lambda x: jax.jvp(f, (x,), (jnp.ones(3),))[1]  # noqa: E731
    np.testing.assert_allclose(along(X), [0.3, 0.09, 0.027], rtol=1e-6)
    assert jax.jvp(along, (X,), (jnp.ones(3),))[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "pull",
    [
        # Not of all finite gradients these are the same.
        lambda x, g: jnp.where(jnp.isnan(jnp.sqrt(g)), 0.0, g),
        lambda x, g: jnp.where(jnp.isinf(1 / g), 7.0, g),
        lambda x, g: lax.scan(
            lambda c, v: (jnp.sqrt(c), jnp.where(jnp.isnan(c), 0.0, v)), g.sum(), g
        )[1],
        # What was saved, beside the gradient in one operation.
        lambda x, g: jnp.where(*sorted_by(x, g), 0.0),
    ],
    ids=["sqrt", "reciprocal", "carry", "sort"],
)
def test_a_test_of_more_than_finite_numbers_is_one(pull):
    f = ours(pull, generate_jvp_rule=True)
    with pytest.raises(ValueError, match=r"`Sine.backward` can't be transposed"):
        jax.jvp(f, (X,), (X,))


def sorted_by(x, g):
    keys, values = lax.sort((x, g), num_keys=1)
    return jnp.isfinite(keys), values


def test_a_test_of_what_was_saved_may_stand_in_a_call_with_the_gradient():
    @jax.checkpoint
    def both(x, g):
        return jnp.sin(x), jnp.nan_to_num(2 * g)

    def pull(x, g):
        sine, twice = both(x, g)
        return jnp.where(jnp.isfinite(sine), twice, 0.0)

    f = ours(pull, generate_jvp_rule=True)
    x = jnp.float32([1, jnp.inf, 2])
    assert jax.jvp(f, (x,), (jnp.ones(3),))[1].tolist() == [2, 0, 2]


@pytest.mark.parametrize("solver", ["cg", "gmres", "bicgstab"])
def test_an_effect_may_stand_before_a_solve(solver):
    solve = getattr(jax.scipy.sparse.linalg, solver)

    def pull(x, g):
        jax.debug.callback(lambda _: None, x[0])
        return solve(lambda v: v / jnp.cos(x), g)[0]

    found = along_of_grad(squares(ours(pull)))(X)
    expected = along_of_grad(squares(jnp.sin))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_an_effect_does_not_happen_again_for_what_is_stopped():
    seen = []

    def noted(x):
        seen.append(1)
        return np.asarray(x)

    def pull(x, g):
        same = jax.experimental.io_callback(noted, jax.typeof(x), x, ordered=True)
        return lax.stop_gradient(jnp.cos(same) * g)

    f = ours(pull, generate_jvp_rule=True)
    for wrap in (lambda f: f, jax.jit):
        seen.clear()
        jax.block_until_ready(wrap(lambda x: jax.jvp(f, (x,), (x,)))(X))
        jax.effects_barrier()
        assert seen == [1]


@pytest.mark.parametrize(
    "pull",
    [
        lambda x, g: 2 * jnp.nan_to_num(g),
        lambda x, g: jnp.where(jnp.isfinite(g) & (x == x), 2 * g, 0.0),
        lambda x, g: 2 * g * jnp.isfinite(g),
    ],
    ids=["nan_to_num", "mask", "product"],
)
def test_a_guard_on_a_mesh_whose_types_say_what_varies_is_refused(pull):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    f = ours(pull, generate_jvp_rule=True)
    along = lambda x: jax.jvp(f, (x,), (x,))[1]  # noqa: E731
    mapped = jax.shard_map(along, mesh=mesh, in_specs=spec, out_specs=spec)
    with pytest.raises(ValueError, match=r"`Sine.backward` can't be transposed"):
        mapped(X)


def calling(body, rule):
    """A custom_vmap function with this body and, for a batch, this rule."""
    f = custom_vmap(body)
    f.def_vmap(lambda n, batched, x: (rule(x), True))
    return f


ALONE = {
    "nan_to_num": lambda x: 2 * jnp.nan_to_num(x),
    "stop_gradient": lambda x: 2 * lax.stop_gradient(x),
    "cg": lambda x: jax.scipy.sparse.linalg.cg(lambda v: v / 2, x)[0],
    "custom_vmap": lambda x: DOUBLE(x),
}


@wraps
@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("where", ["body", "rule"])
def test_what_a_batch_rule_does_is_rewritten_too(where, name, wrap):
    of_batch = jax.vmap(ALONE[name])
    double = (
        calling(ALONE[name], lambda x: 2 * x)
        if where == "body"
        else calling(lambda x: 2 * x, of_batch)
    )
    pull = lambda x, g: double(g) * jnp.cos(x) / 2  # noqa: E731
    expected = jax.hessian(squares(plain(pull)))(X)
    found = wrap(jax.hessian(squares(ours(pull))))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "rule",
    [lambda x: 2 * x + 1, jnp.abs],
    ids=["affine", "abs"],
)
@pytest.mark.parametrize("make", [custom_vmap, jaxfn.custom_function])
def test_a_batch_rule_that_is_not_linear_is_refused(make, rule):
    double = make(lambda x: 2 * x)
    double.def_vmap(lambda n, batched, x: (rule(x), True))
    f = ours(lambda x, g: double(g), generate_jvp_rule=True)
    along = lambda x: jax.jvp(f, (x,), (x,))[1]  # noqa: E731
    assert along(X).tolist() == (2 * X).tolist()
    with pytest.raises(ValueError, match=r"expected a function and a batch rule that"):
        jax.vmap(along)(X[None])


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


STOPPED_INSIDE = {
    "scan": lambda h: lax.scan(lambda c, v: (c, lax.stop_gradient(v)), 0.0, h)[1],
    "carry": lambda h: lax.scan(
        lambda c, v: (c + v, lax.stop_gradient(c + v)), h[0], h
    )[1],
    "cond": lambda h: lax.cond(X[0] > 0, lax.stop_gradient, lambda h: h, h),
    "known cond": lambda h: lax.cond(
        jnp.isfinite(h).all(), lax.stop_gradient, lambda h: h, h
    ),
    "custom_vmap": calling(lax.stop_gradient, lambda h: h),
}


@pytest.mark.parametrize("name", STOPPED_INSIDE)
@pytest.mark.parametrize(
    "product",
    [lambda x, g: x * g, lambda x, g: lax.cumsum(x * g)],
    ids=["product", "sums"],
)
def test_no_factor_from_outside_gets_a_derivative_inside(name, product):
    inside = STOPPED_INSIDE[name]
    f = ours(lambda x, g: inside(product(x, g)), generate_jvp_rule=True)
    with pytest.raises(ValueError, match="can't be transposed"):
        jax.jvp(f, (X,), (X,))


@pytest.mark.parametrize("carried", [0.0, "g"])
def test_a_factor_inside_of_a_loop_gets_no_derivative(carried):
    def pull(x, g):
        start = g[0] if carried == "g" else carried
        step = lambda c, v: (c * x[1] + v, lax.stop_gradient(c))  # noqa: E731
        return lax.scan(step, start, g)[1]

    f = ours(pull, generate_jvp_rule=True)
    with pytest.raises(ValueError, match="can't be transposed"):
        jax.jvp(f, (X,), (X,))
