"""The vmap staticmethod of a torch class is what `jax.vmap` runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import Function

from jaxfn.torch import TorchRefusal, from_torch
from tests.build import function, nothing

from .classes import torch_class

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
W = np.array([2.0, 3.0], np.float32)


class Own(Function):
    """x * w; batched it is ten times that, on purpose. Gradients are three times."""

    @staticmethod
    def forward(x, w, k=1.0):
        return x * w * k, x.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, ctx.k = inputs
        ctx.save_for_backward(x, w, output[0], x.exp())

    @staticmethod
    def backward(ctx, g, h):
        x, w, y, e = ctx.saved_tensors
        return 3 * g * w * ctx.k + h + 0 * y, 3 * g * x * ctx.k + 0 * e, None

    @staticmethod
    def vmap(info, in_dims, x, w, k=1.0):
        assert in_dims[2] is None
        batch = info.batch_size
        assert info.randomness == "error"
        x = x.expand(batch, 2) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        w = w if in_dims[1] is None else w.movedim(in_dims[1], 0)
        return (10 * (x * w * k).t(), x.sum(1)), (1, 0)


MADE = from_torch(Own)
AXES = [(0, None), (None, 0), (0, 0)]


def inputs(axes):
    return [v if a == 0 else v[0] for v, a in zip((X, X * W + 1), axes, strict=True)]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_values_are_those_of_the_rule(axes, wrap):
    xs = inputs(axes)
    ours = wrap(jax.vmap(lambda x, w: MADE.apply(x, w, 2.0), axes))(*map(jnp.array, xs))
    theirs = torch.vmap(lambda x, w: Own.apply(x, w, 2.0), axes)(
        *map(torch.from_numpy, xs)
    )
    for a, b in zip(ours, theirs, strict=True):
        assert np.allclose(a, b)
    assert np.allclose(ours[0], 20 * np.asarray(X if axes[0] == 0 else X[0]) * xs[1])


def loss(x, w):
    y, s = MADE.apply(x, w)
    return (y**2).sum() + s


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_gradients_are_the_classes_own(wrap):
    """The value is the rule's; the derivative the class's backward, batched."""
    x = jnp.array(X)
    of_each = wrap(jax.vmap(jax.grad(loss), (0, None)))(x, W)
    # d(y²) = 2 y dy, where y is ten times x w, and dy three times w
    assert np.allclose(of_each, 60 * X * W**2 + 1, rtol=1e-5)
    of_all = wrap(jax.grad(lambda x: jax.vmap(loss, (0, None))(x, W).sum()))(x)
    assert np.allclose(of_all, of_each)
    plain = jax.grad(loss)(x[0], W)
    assert np.allclose(plain, 6 * X[0] * W**2 + 1, rtol=1e-5)


def test_nested():
    def pair(x, w):
        return MADE.apply(x, w)[0]

    xs = jnp.stack([X, X + 1])
    over_rows = jax.vmap(pair, (0, None))
    ours = jax.vmap(over_rows, (0, None))(xs, W)
    assert np.allclose(ours, 10 * xs * W)
    scanned = jax.lax.scan(lambda c, x: (c, over_rows(x, W)), 0, xs)[1]
    assert np.allclose(scanned, 10 * xs * W)


def changed(**rules):
    return function("Changed", Own, **rules)


def test_a_rule_that_applies_the_class():
    def twice(info, in_dims, x, w, k):
        y, _ = Own.apply(x, w)
        return (y, x.sum(1)), (0, 0)

    made = from_torch(changed(vmap=twice))
    found = jax.vmap(made.apply, (0, None))(jnp.array(X), W)
    assert np.allclose(found[0], X * W)


def test_on_the_host():
    def on_host(x, w, k=1.0):
        return torch.from_numpy(x.numpy() * w.numpy()), x.sum()

    made = from_torch(changed(forward=on_host), fallback="host")

    def loss(x, w):
        return made.apply(x, w)[0].sum()

    x = jnp.array(X)
    found = jax.jit(jax.vmap(made.apply, (0, None)))(x, W)
    assert np.allclose(found[0], 10 * X * W)
    grads = jax.jit(jax.vmap(jax.grad(loss), (0, None)))(x, W)
    assert np.allclose(grads, np.broadcast_to(3 * W, X.shape))


def asks_for_a_value(info, in_dims, x, w, k):
    return (torch.zeros(int(x.sum())), x), (0, 0)


WRONG = {
    "size": (
        lambda i, d, x, w, k: ((x[:2] * w, x.sum(1)), 0),
        ValueError,
        "wrong size",
    ),
    "shape": (
        lambda i, d, x, w, k: ((x * w, x + 1), 0),
        ValueError,
        "other values than forward for output 1",
    ),
    "dtype": (
        lambda i, d, x, w, k: ((x * w, x.sum(1).int()), 0),
        ValueError,
        "other values than forward for output 1",
    ),
    "dims": (lambda i, d, x, w, k: ((x, x.sum(1)), (0, 0, 0)), ValueError, "out_dims"),
    "one": (lambda i, d, x, w, k: x * w, RuntimeError, "two returns"),
    "structure": (lambda i, d, x, w, k: (x * w, 0), ValueError, "other things"),
    "value": (asks_for_a_value, TorchRefusal, r"`Changed\.vmap` .*int\(tensor\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_that_is_wrong(name):
    rule, error, words = WRONG[name]
    made = from_torch(changed(vmap=rule))
    with pytest.raises(error, match=words):
        jax.vmap(made.apply, (0, None))(jnp.array(X), W)
    assert np.allclose(made.apply(X[0], W)[0], X[0] * W)


def test_both_a_rule_and_generate_vmap_rule():
    made = from_torch(changed(generate_vmap_rule=True))
    with pytest.raises(RuntimeError, match="ambiguity"):
        jax.vmap(made.apply, (0, None))(jnp.array(X), W)


def test_a_rule_needs_setup_context():
    combined = torch_class(
        lambda ctx, x: 2 * x, vmap=lambda info, in_dims, x: (2 * x, 0)
    )
    made = from_torch(combined)
    assert made.apply(X).shape == X.shape
    with pytest.raises(RuntimeError, match="must override the setup_context"):
        jax.vmap(made.apply)(jnp.array(X))


def test_draws_of_a_rule_need_one_key():
    noisy = torch_class(
        lambda x: x + torch.rand_like(x),
        lambda ctx, g: g,
        setup_context=nothing,
        vmap=lambda info, in_dims, x: (x + 5 + torch.rand_like(x), 0),
    )
    made, key = from_torch(noisy, random=True), jax.random.key(0)
    found = jax.vmap(made.apply, (None, 0))(key, jnp.zeros((3, 2)))
    assert (found >= 5).all()
    assert len(set(found.ravel().tolist())) == 6
    with pytest.raises(TorchRefusal, match="one key for each"):
        jax.vmap(made.apply)(jax.random.split(key, 3), jnp.zeros((3, 2)))
