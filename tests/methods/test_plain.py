"""Plain calls: no JAX definition, NumPy bodies, and inputs that are consumed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.build import allclose, function, in_style, saving

S = jnp.float32(3)
X = jnp.float32([1, 2, 3])


def test_no_definition_is_built_or_traced(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError

    for name in ("custom_vjp", "custom_jvp"):
        monkeypatch.setattr(jax, name, refuse)
    monkeypatch.setattr(jax.custom_batching, "custom_vmap", refuse)
    runs = []
    f = function(
        forward=lambda ctx, x, k: runs.append(type(x)) or k * x,
        backward=lambda ctx, g: (g, None),
        jvp=lambda ctx, t, _: t,
    ).apply
    allclose(f(X, 2), 2 * X)
    allclose(f([X], 2)[0] if isinstance(f([X], 2), list) else X, X)
    assert runs[0] is type(X)
    with pytest.raises(AssertionError):
        jax.grad(lambda x: f(x, 2))(S)


def test_forward_and_setup_context_run_once():
    log = []
    f = function(
        forward=lambda x: log.append("forward") or 1 * x,
        setup_context=lambda ctx, inputs, output: log.append(
            ("setup", ctx.needs_input_grad)
        ),
    ).apply
    f(S)
    assert log == ["forward", ("setup", (False,))]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_a_numpy_body_gives_jax_arrays(dtype):
    f = function(
        forward=lambda ctx, x: (np.asarray(x) * 2, np.float32(1), {"a": np.zeros(2)})
    ).apply
    out = f(np.ones(3, dtype))
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(out))
    allclose(out[0], 2)


def test_numpy_rules_run_in_eager_derivatives():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return np.sin(np.asarray(x)) if float(x.sum()) > 0 else x

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        mask = np.asarray(x) > 1  # boolean indexing needs concrete values
        result = np.zeros(3, np.float32)
        result[mask] = np.asarray(g)[mask]
        return result

    f = function(forward=forward, backward=backward).apply
    allclose(jax.grad(lambda x: f(x).sum())(X), [0, 1, 1])
    allclose(jax.vjp(f, X)[1](2 * X)[0], [0, 4, 6])
    # forward at second order: its value is computed without derivative
    cube = function(
        forward=lambda x: np.asarray(x) ** 3,
        setup_context=saving(),
        backward=lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2,
    ).apply
    allclose(jax.grad(jax.grad(cube))(S), 18)
    allclose(jax.grad(jax.grad(jax.grad(cube)))(S), 6)
    allclose(jax.jacfwd(jax.grad(cube))(S), 18)


def test_a_numpy_body_with_a_vmap_rule():
    f = function(
        forward=lambda x: np.sin(np.asarray(x)),
        setup_context=saving(),
        backward=lambda ctx, g: 2 * g * jnp.cos(ctx.saved_tensors[0]),
        vmap=lambda info, in_dims, x: (jnp.sin(x), 0),
    ).apply
    allclose(jax.grad(f)(S), 2 * np.cos(3))
    allclose(jax.grad(jax.grad(f))(S), -2 * np.sin(3))


def test_forward_runs_once_in_an_eager_derivative():
    runs = []
    f = function(
        forward=lambda ctx, x: runs.append(1) or 2 * x, backward=lambda ctx, g: 2 * g
    ).apply
    jax.grad(f)(S)
    assert len(runs) == 1
    jax.grad(jax.grad(f))(S)
    assert len(runs) == 2
    jax.jit(jax.grad(f))(S)
    assert len(runs) == 3
    jax.jit(jax.grad(jax.grad(f)))(S)
    assert len(runs) == 4


@pytest.mark.parametrize("style", ["combined", "separate"])
def test_a_callback_in_forward_at_second_order(style):
    def host(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(np.exp, shape, x, vmap_method="expand_dims")

    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    members = in_style(style, host, save)
    f = function(backward=lambda ctx, g: g * ctx.saved_tensors[1], **members).apply
    for second in (
        jax.grad(jax.grad(f)),
        jax.jit(jax.grad(jax.grad(f))),
        jax.grad(jax.jit(jax.grad(f))),
        jax.grad(jax.grad(jax.checkpoint(f))),
        jax.jacfwd(jax.grad(f)),
        lambda x: jax.vmap(jax.grad(jax.grad(f)))(x[None])[0],
        jax.grad(
            jax.grad(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, 1)[0])
        ),
    ):
        allclose(second(S), np.exp(3))


@pytest.mark.parametrize(
    "wrap",
    [
        jax.jit,
        lambda f: f,
        jax.checkpoint,
        lambda f: lambda x: jax.vmap(f)(x[None])[0],
        lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, 1)[0],
    ],
    ids=["jit", "eager", "checkpoint", "vmap", "scan"],
)
def test_a_saved_intermediate_keeps_its_derivative(wrap):
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(square)
        ctx.cube = {"c": square * x}
        return x**4

    def backward(ctx, g):
        (square,) = ctx.saved_tensors
        return g * (square * square + 3 * ctx.cube["c"]) * 1.0

    f = function(forward=forward, backward=backward).apply

    def rule(x):
        return x**4 + 3 * x**3

    g = wrap(f)
    allclose(jax.grad(g)(S), rule(3))
    allclose(jax.grad(jax.grad(g))(S), jax.grad(rule)(3.0))
    allclose(jax.grad(jax.grad(jax.grad(g)))(S), jax.grad(jax.grad(rule))(3.0))
    allclose(jax.jacfwd(jax.grad(g))(S), jax.grad(rule)(3.0))


@pytest.mark.parametrize("same", [True, False])
def test_arguments_that_are_one_array_are_told_apart(same):
    # Under two eager transformations both tracers stand for one concrete array.
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y**3

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y**3, g * 3 * x * y**2

    f = function(forward=forward, backward=backward).apply
    y = S if same else S * 1
    for i in (0, 1):
        for j in (0, 1):
            got = jax.grad(jax.grad(f, i), j)(S, y)
            allclose(got, jax.grad(jax.grad(lambda x, y: x * y**3, i), j)(S, y))
            got = jax.grad(lambda x, y, i=i: jax.grad(f, i)(x, S), j)(S, y)
            allclose(got, 0 if j else [0, 27][i])


def test_a_constant_that_is_the_array_behind_a_tracer():
    def forward(ctx, x):
        ctx.save_for_backward(x, S)  # S is a constant here
        return x * x * S

    def backward(ctx, g):
        x, constant = ctx.saved_tensors
        return g * 2 * x * constant

    f = function(forward=forward, backward=backward).apply
    allclose(jax.grad(jax.grad(f))(S), 6)


# ---- mark_dirty


def consuming(forward=lambda x: x + 1):
    def marking(ctx, x):
        ctx.mark_dirty(x)
        return forward(x)

    return function(forward=marking, backward=lambda ctx, g: 2 * g).apply


def test_a_marked_input_in_the_separate_style_and_in_a_pytree():
    f = function(
        forward=lambda p: p["a"] + 1,
        setup_context=lambda ctx, inputs, output: ctx.mark_dirty(inputs[0]["a"]),
    ).apply
    x, y = jnp.ones(3), jnp.ones(3)
    f({"a": x, "b": y})
    assert x.is_deleted()
    assert not y.is_deleted()


@pytest.mark.parametrize("forward", [lambda x: x, lambda x: (x + 1, [x])])
def test_what_is_returned_is_not_consumed(forward):
    f = consuming(forward)
    x = jnp.ones(3)
    f(x)
    assert not x.is_deleted()


def test_what_shares_its_buffer_with_an_output_is_not_consumed():
    f = consuming(lambda x: jax.device_put(x))
    x = jnp.ones(3)
    out = f(x)
    allclose(out, 1)


def test_what_is_saved_is_not_consumed():
    def forward(ctx, x, y):
        ctx.mark_dirty(x, y)
        ctx.save_for_backward(x)
        ctx.held = [y]
        return x + y

    x, y = jnp.ones(3), jnp.ones(3)
    function(forward=forward).apply(x, y)
    assert not x.is_deleted()
    assert not y.is_deleted()


@pytest.mark.parametrize(
    "transform", [jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())]
)
def test_nothing_is_consumed_under_a_transformation(transform):
    x = jnp.ones(3)
    transform(consuming())(x)
    allclose(x, 1)


def test_a_concrete_argument_beside_a_traced_one_is_not_consumed():
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        return x * y

    f = function(forward=forward, backward=lambda ctx, g: (g, g)).apply
    x = jnp.ones(())
    jax.grad(lambda y: f(x, y))(S)
    allclose(x, 1)


def test_numpy_inputs_cannot_be_consumed():
    f = consuming()
    x = np.ones(3, np.float32)
    allclose(f(x), 2)
    allclose(x, 1)


def test_in_place_work_on_a_numpy_copy():
    def forward(ctx, x):
        x_npy = np.array(x)
        x_npy += 1
        ctx.mark_dirty(x)
        return x_npy

    f = function(forward=forward, backward=lambda ctx, g: g).apply
    a = jnp.float32(1) * 1
    allclose(f(a), 2)
    allclose(jax.grad(f)(S), 1)
