"""Batching: the vmap staticmethod, and Functions that JAX batches itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.build import allclose, function, nothing, rules_of, saving

S = jnp.float32(3)
X = jnp.float32([1, 2, 3])
M = jnp.arange(6.0).reshape(2, 3)


def test_the_rule_gets_whole_batches_with_their_axis_first():
    seen = []

    def vmap(info, in_dims, x, y, k, p):
        seen.append((tuple(info), in_dims, x.shape, y.shape))
        return x * y[:, None] * k * p["a"], 0

    f = function(
        forward=lambda x, y, k, p: x * y * k * p["a"], setup_context=nothing, vmap=vmap
    ).apply
    got = jax.vmap(f, in_axes=(1, 0, None, {"a": None}))(M.T, jnp.ones(2), 10, {"a": S})
    allclose(got, 30 * M)
    assert seen == [((2, "error"), (0, 0, None, {"a": None}), (2, 3), (2,))]


def test_a_batch_whose_size_is_a_symbol_is_exported():
    f = function(
        forward=lambda x, y: x * y,
        setup_context=saving(),
        backward=lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]),
        vmap=lambda info, in_dims, x, y: (x * y * 2, 0),
    ).apply
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), jnp.float32)
    mapped = jax.jit(lambda x: jax.vmap(f)(x, x))
    exported = jax.export.export(mapped)(rows)
    allclose(exported.call(M), 2 * M * M)


def test_a_collective_in_a_batch_whose_size_is_a_symbol_is_exported():
    f = function(
        forward=lambda ctx, x: x * 1.0,
        backward=lambda ctx, g: g,
        jvp=lambda ctx, t: jax.lax.pmax(t, "i"),
    ).apply

    def tangents(x):
        def one(x):
            return x + jax.jvp(f, (S,), (S,))[1]

        return jax.vmap(one, axis_name="i")(x)

    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), jnp.float32)
    exported = jax.export.export(jax.jit(tangents))(rows)
    allclose(exported.call(X), X + S)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_out_dims_are_moved_to_the_front(dim):
    def vmap(info, in_dims, x):
        return jnp.moveaxis(2 * x, 0, dim), dim

    f = function(forward=lambda x: 2 * x, setup_context=nothing, vmap=vmap).apply
    allclose(jax.vmap(f)(M), 2 * M)
    allclose(jax.vmap(f, out_axes=1)(M), 2 * M.T)
    allclose(jax.vmap(jax.vmap(f))(M[None]), 2 * M[None])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32])
def test_the_dtype_of_a_batch_is_that_of_forward(dtype):
    f = function(
        forward=lambda x: x.astype(dtype),
        setup_context=nothing,
        vmap=lambda info, in_dims, x: (x, 0),
    ).apply
    for fun in (jax.vmap(f), jax.jit(jax.vmap(f)), jax.vmap(jax.jit(f))):
        assert fun(X).dtype == dtype
        allclose(fun(X), X)


def test_one_dim_for_all_outputs_and_none_outputs():
    f = function(
        forward=lambda x: (x, None, 2 * x),
        setup_context=nothing,
        vmap=lambda info, in_dims, x: ((x, None, 2 * x), 0),
    ).apply
    a, none, b = jax.vmap(f)(X)
    assert none is None
    allclose(a + b, 3 * X)
    g = function(
        forward=lambda x: (x, None),
        setup_context=nothing,
        vmap=lambda info, in_dims, x: ((x, None), (0, None)),
    ).apply
    allclose(jax.vmap(g)(X)[0], X)


def test_a_rule_may_call_the_function_itself():
    def vmap(info, in_dims, x):
        return f(x) + 0.5, 0

    f = function(forward=lambda x: 2 * x, setup_context=nothing, vmap=vmap).apply
    allclose(jax.vmap(f)(X), 2 * X + 0.5)
    allclose(jax.vmap(jax.vmap(f))(M), 2 * M + 1)


def test_integer_and_key_outputs_of_a_rule():
    f = function(
        forward=lambda x, k: (jnp.argmax(x), k),
        setup_context=nothing,
        vmap=lambda info, in_dims, x, k: ((jnp.argmax(x, 1), k), (0, in_dims[1])),
    ).apply
    keys = jax.random.split(jax.random.key(0), 2)
    for in_axes, k in [((0, 0), keys), ((0, None), keys[0])]:
        index, out = jax.vmap(f, in_axes=in_axes)(M, k)
        allclose(index, [2, 2])
        assert out.shape == (2,)


# ---- gradients under batching


def _pull(ctx, g):
    a, b = ctx.saved_tensors
    return g * b, g * a


def _push(ctx, s, t):
    a, b = ctx.saved_tensors
    return s * b + t * a


RULES = {
    engine: rules_of(engine, _pull, _push)
    for engine in ("backward", "both", "derived", "jvp")
}


@pytest.mark.full(
    unless=lambda with_rule, in_axes, **_: with_rule or in_axes != (1, None)
)
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("with_rule", [False, True])
@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0), (1, None), (-1, 1)])
def test_gradients_of_batched_and_shared_arguments(rules, with_rule, in_axes):
    def vmap(info, in_dims, a, b):
        return a * b, 0

    members = {"vmap": vmap} if with_rule else {}
    f = function(
        forward=lambda a, b: a * b, setup_context=saving(), **members, **RULES[rules]
    ).apply
    shape = {0: (2, 3), 1: (3, 2), -1: (3, 2), None: (3,)}
    a, b = (jnp.arange(1.0, 1 + np.prod(shape[d])).reshape(shape[d]) for d in in_axes)
    weights = jnp.cos(jnp.arange(6.0)).reshape(2, 3)

    def loss(g):
        return lambda a, b: (jax.vmap(g, in_axes=in_axes)(a, b) * weights).sum()

    for wrap in (lambda f: f, jax.jit):
        got = wrap(jax.grad(loss(f), (0, 1)))(a, b)
        expected = jax.grad(loss(jnp.multiply), (0, 1))(a, b)
        jax.tree.map(allclose, got, expected)
        got = jax.grad(wrap(loss(f)), (0, 1))(a, b)
        jax.tree.map(allclose, got, expected)


@pytest.mark.parametrize("rules", RULES)
def test_second_derivatives_under_vmap(rules):
    f = function(
        forward=lambda a, b: a * b,
        setup_context=saving(),
        vmap=lambda info, in_dims, a, b: (a * b, 0),
        **RULES[rules],
    ).apply

    def cross(g):
        return jax.vmap(jax.grad(jax.grad(lambda a, b: g(a, b) ** 2), 1))

    allclose(cross(f)(X, 2 * X), cross(jnp.multiply)(X, 2 * X))


def test_forward_under_vmap_sees_single_examples():
    shapes = []
    f = function(
        forward=lambda ctx, x: shapes.append(x.shape) or 2 * x,
        backward=lambda ctx, g: shapes.append(g.shape) or 2 * g,
    ).apply
    jax.vmap(f)(M)
    jax.vmap(jax.grad(lambda x: f(x).sum()))(M)
    assert set(shapes) == {(3,)}


def test_spmd_axis_name_and_axis_size():
    f = function(forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: 3 * g).apply
    got = jax.vmap(lambda: jax.grad(f)(S), axis_size=4)()
    allclose(got, [3, 3, 3, 3])
