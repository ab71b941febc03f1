"""Pytrees in save_for_backward and save_for_forward, hooks and namedtuples."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from jaxfn.autograd.graph import save_compressed, saved_tensors_hooks
from tests.build import function, in_style, saving

X = jnp.array([1.0, 2.0])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: jax.Array
    b: jax.Array


PARAMS = {"a": Layer(2 * X, 3 * X), "z": [5 * X, None]}


def forward(ctx, params, x):
    ctx.save_for_backward(params, x)
    ctx.save_for_forward((params, x))
    return params["a"].w * x + params["a"].b + params["z"][0]


def backward(ctx, g):
    params, _ = ctx.saved_tensors
    assert type(params["a"]) is Layer
    assert params["z"][1] is None
    grads = jax.tree.map(lambda p: jnp.full_like(p, 7) * g, params)
    return grads, g * params["a"].w * params["z"][0]


def jvp(ctx, params, x):
    ((saved, _),) = ctx.saved_tensors
    return 11 * x * saved["a"].w + 0 * params["a"].b


# Wrong on purpose: by 7 in backward, by 11 in jvp.
Affine = function("Affine", forward=forward, backward=backward, jvp=jvp)


def loss(params, x):
    return Affine.apply(params, x).sum()


def expected():
    return jax.tree.map(lambda p: jnp.full(2, 7.0), PARAMS), 2 * X * 5 * X


ORDERS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "checkpoint": lambda f: jax.grad(jax.checkpoint(loss), argnums=(0, 1)),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_pytree_comes_back_in_its_structure(order):
    f = ORDERS[order](jax.grad(loss, argnums=(0, 1)))
    got = f(PARAMS, X)
    want = expected()
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(np.testing.assert_allclose, got, want)


def test_in_jvp():
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    dots = jax.jvp(Affine.apply, (PARAMS, X), (zeros, X))[1]
    np.testing.assert_allclose(dots, 11 * X * 2 * X)


def test_under_vmap_of_grad():
    xs = jnp.stack([X, 2 * X])
    got = jax.vmap(jax.grad(loss, argnums=1), (None, 0))(PARAMS, xs)
    np.testing.assert_allclose(got, jnp.stack([expected()[1]] * 2))


def test_hooks_see_the_leaves():
    packed, unpacked = [], []

    def pack(x):
        packed.append(x.shape)
        return x

    def unpack(x):
        unpacked.append(x.shape)
        return x

    with saved_tensors_hooks(pack, unpack):
        got = jax.grad(loss, argnums=(0, 1))(PARAMS, X)
    jax.tree.map(np.testing.assert_allclose, got, expected())
    assert packed == [(2,)] * 4
    assert unpacked[:4] == [(2,)] * 4


def test_compressed_leaves_take_half_the_bytes():
    save = function(
        **in_style("combined", lambda p: p["w"].sum() + p["b"].sum(), saving()),
        backward=lambda ctx, g: jax.tree.map(lambda p: g * p, *ctx.saved_tensors),
    )
    params = {"w": jnp.ones((4, 4)), "b": jnp.ones(4)}
    with save_compressed(jnp.bfloat16):
        pull = jax.vjp(save.apply, params)[1]
    kept = sum(x.nbytes for x in jax.tree.leaves(pull) if x.ndim)
    assert kept == (16 + 4) * 2
    np.testing.assert_allclose(pull(jnp.float32(3))[0]["w"], 3 * np.ones((4, 4)))


def test_explain_names_the_leaves_of_a_pytree():
    names = [kept.name for kept in jaxfn.explain(Affine, PARAMS, X).residuals]
    assert any("saved_tensors[0]['a'].w" in name for name in names)
    with saved_tensors_hooks(lambda x: x * 1, lambda x: x):
        names = [kept.name for kept in jaxfn.explain(Affine, PARAMS, X).residuals]
    assert any("saved_tensors[0]['a'].b, packed" in name for name in names), names


def test_second_order_goes_through_the_leaves():
    def forward(ctx, x):
        ctx.save_for_backward({"x": x, "square": x * x})
        return x**3

    cube = function(
        forward=forward,
        backward=lambda ctx, g: 3 * g * ctx.saved_tensors[0]["square"],
    )
    second = jax.grad(jax.grad(cube.apply))
    assert second(2.0) == jax.jit(second)(2.0) == 12


class Point(NamedTuple):
    x: jax.Array
    y: jax.Array


def test_a_namedtuple_is_the_gradient_of_one_of_its_type():
    f = function(
        forward=lambda ctx, p: p.x + p.y,
        backward=lambda ctx, g: Point(7 * g, 11 * g),
    ).apply
    for gradient in (jax.grad(f), jax.jit(jax.grad(f))):
        assert gradient(Point(1.0, 2.0)) == Point(7, 11)


def test_the_outputs_of_a_namedtuple_are_explained():
    two = function(
        forward=lambda ctx, x: Point(x, 2 * x), backward=lambda ctx, g: g
    ).apply
    with pytest.raises(TypeError, match="returned a Point, which is a tuple: each of"):
        jax.grad(lambda x: two(x).y)(1.0)


def test_messages_show_no_contents_of_arrays():
    def odd(forward):
        return function(
            forward=forward, backward=lambda ctx, g: [np.ones(2)] * 1000
        ).apply

    with pytest.raises(TypeError) as error:
        odd(lambda ctx, x: ctx.save_for_backward([1.0] * 1000))(X)
    assert len(str(error.value)) < 800
    with pytest.raises(TypeError) as error:
        jax.grad(lambda x: odd(lambda ctx, x: x)(x).sum())(X)
    assert "f32[2]" in str(error.value)
    assert len(str(error.value)) < 1000
