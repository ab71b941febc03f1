"""`requires_grad` of what forward saves, as in torch: each answer has its factor."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import Function

from jaxfn.torch import TorchRefusal, from_torch
from tests.build import in_style

from .classes import torch_class

X = np.arange(1.0, 5.0, dtype=np.float32).reshape(2, 2)
W = np.float32([[2, 5], [3, 7]])


def save(ctx, *tensors):
    ctx.save_for_backward(*tensors)


def keep(ctx, *tensors):
    ctx.kept = tensors


def asked(saved):
    """A gradient that shows of which of the saved tensors it was asked."""
    return 1 + sum(10**i for i, x in enumerate(saved) if x.requires_grad)


def function(what, how, style="combined"):
    """A Function that saves `what(x, w, y)`, and asks for it in backward."""

    def backward(ctx, g):
        factor = asked(ctx.saved_tensors if how is save else ctx.kept)
        return g * factor, g * (factor + 0.5)

    def note(ctx, inputs, output):
        how(ctx, *what(*inputs, output))

    rules = in_style(style, lambda x, w: x * w, note)
    return torch_class(backward=backward, **rules)


def with_a_graph(x, w, y):
    with torch.enable_grad():
        return x * 2, w * 2, x.detach() * 2


SAVED = {
    "with a graph": with_a_graph,
    "views": lambda x, w, y: (x.t(), w.unsqueeze(0), x[:1], x.reshape(-1)),
    "views of views": lambda x, w, y: (x.t()[1:].view(-1), w.expand(3, 2, 2)),
    "chunks": lambda x, w, y: (*x.chunk(2), *w.split(1)),
    "themselves": lambda x, w, y: (x, w, y),
    "copies": lambda x, w, y: (x.clone(), x.t().contiguous(), w * 1, x[[1, 0]]),
    "cut off": lambda x, w, y: (x.detach(), x.detach().t(), y.detach()),
    "of the output": lambda x, w, y: (y.view(-1), y.t(), y.detach().t()),
    "asked for": lambda x, w, y: ((x * 2).requires_grad_(w.requires_grad),),
    "set": lambda x, w, y: ((x * 2).requires_grad_(), x.detach().requires_grad_()),
}


def in_torch(cls, argnums):
    xs = [torch.tensor(x) for x in (X, W)]
    for i in argnums:
        xs[i].requires_grad_()
    y = cls.apply(*xs)
    return [g.numpy() for g in torch.autograd.grad(y.sum(), [xs[i] for i in argnums])]


@pytest.mark.parametrize("argnums", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("style", ["combined", "separate"])
@pytest.mark.parametrize("how", [save, keep])
@pytest.mark.parametrize("name", SAVED)
def test_saved(name, how, style, argnums):
    cls = function(SAVED[name], how, style)
    expected = in_torch(cls, argnums)
    apply = from_torch(cls).apply
    loss = lambda *args: apply(*args).sum()  # noqa: E731
    grad = jax.grad(loss, argnums)
    batched = jax.vmap(grad)
    for found in (
        grad(X, W),
        jax.jit(grad)(X, W),
        [g[0] for g in batched(X[None], W[None])],
        jax.grad(lambda *args: jax.checkpoint(loss)(*args), argnums)(X, W),
    ):
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["views", "themselves", "copies", "of the output"])
def test_saved_by_the_host(name):
    """Backward alone runs there: NumPy in it can't be traced."""

    asks = function(SAVED[name], save)

    class OnHost(asks):
        @staticmethod
        def backward(ctx, g):
            torch.from_numpy(np.sin(g.detach().numpy()))
            return asks.backward(ctx, g)

    expected = in_torch(OnHost, (0,))
    apply = from_torch(OnHost, fallback="host").apply
    grad = jax.grad(lambda x: apply(x, W).sum())
    for found in (grad(X), jax.jit(grad)(X)):
        np.testing.assert_array_equal(found, expected[0])


def test_an_argument_that_forward_wrote_to():
    def forward(ctx, x):
        y = x * 1
        x.mul_(2)
        ctx.save_for_backward(x)
        return y

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x if x.requires_grad else None

    apply = from_torch(torch_class(forward, backward)).apply
    found = jax.grad(lambda x: apply(x).sum())(X)
    np.testing.assert_array_equal(found, 2 * X)


def test_a_view_of_a_marked_output_requires_none():
    def forward(ctx, x):
        y, z = x * 2, x * 3
        ctx.mark_non_differentiable(z)
        ctx.save_for_backward(z.view(-1), z, y.view(-1))
        return y, z

    cls = torch_class(forward, lambda ctx, g, _: g * asked(ctx.saved_tensors))
    found = jax.grad(lambda x: from_torch(cls).apply(x)[0].sum())(X)
    np.testing.assert_array_equal(found, np.full((2, 2), 101))


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.requires_grad,
        lambda x: x.view(-1).requires_grad,
        lambda x: x.t()[1:].requires_grad,
        lambda x: not x.detach().requires_grad,
        lambda x: not x.clone().requires_grad,
    ],
)
def test_asked_in_forward(ask):
    def forward(ctx, x, w):
        ctx.answers = ask(x), ask(w)
        return x * w

    def backward(ctx, g):
        a, b = ctx.answers
        return g * (1 + a + 10 * b), g * (2 + a + 10 * b)

    cls = torch_class(forward, backward)
    apply = from_torch(cls).apply
    for argnums in ((0,), (1,), (0, 1)):
        grad = jax.grad(lambda *args: apply(*args).sum(), argnums)
        for run in (grad, jax.jit(grad)):
            found, expected = run(X, W), in_torch(cls, argnums)
            for got, want in zip(found, expected, strict=True):
                np.testing.assert_array_equal(got, want)
    assert apply(X, W).shape == (2, 2)  # without a gradient


def test_asked_in_setup_context_beside_a_vmap_rule():
    def setup_context(ctx, inputs, output):
        x, w = inputs
        ctx.save_for_backward(x if x.requires_grad else x * 10, w.t())

    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * asked((x, w)), g * x

    cls = torch_class(
        lambda x, w: x * w,
        backward,
        setup_context=setup_context,
        vmap=lambda info, in_dims, x, w: (x * w, 0),
    )
    apply = from_torch(cls).apply
    for argnums, factors in (((0,), [2]), ((1,), [10 * X]), ((0, 1), [12, X])):
        grad = jax.grad(lambda *args: apply(*args).sum(), argnums)
        for found in (grad(X, W), [g[0] for g in jax.vmap(grad)(X[None], W[None])]):
            for got, want in zip(found, factors, strict=True):
                np.testing.assert_allclose(got, want * np.ones((2, 2)))


def by_needs(ctx, x, w):
    a, b = ctx.needs_input_grad
    return x * (1 + a + 10 * b)


Inner = torch_class(by_needs, lambda ctx, g: (g, None))


def by_grad_fn(x, w):
    with torch.enable_grad():
        return x * (2 if (w * 2).grad_fn is None else 3)


def by_is_leaf(x, w):
    with torch.enable_grad():
        return x * (2 if (w * 2).is_leaf else 3)


def by_writing(x, w):
    with torch.enable_grad():
        return w.clone().add_(x)


@pytest.mark.parametrize("value", [by_grad_fn, by_is_leaf, by_writing, Inner.apply])
@pytest.mark.parametrize("argnums", [(), (0,), (1,), (0, 1)])
def test_what_depends_on_it_in_forward(value, argnums):
    cls = torch_class(lambda ctx, x, w: value(x, w).detach() * 1, lambda ctx, g: (g, g))
    xs = [torch.tensor(x, requires_grad=i in argnums) for i, x in enumerate((X, W))]
    expected = cls.apply(*xs).detach().numpy()
    apply = from_torch(cls).apply
    if not argnums:
        np.testing.assert_array_equal(apply(X, W), expected)
        return
    value_and_grad = jax.value_and_grad(lambda x, w: apply(x, w).sum(), argnums)
    for run in (value_and_grad, jax.jit(value_and_grad)):
        np.testing.assert_allclose(run(X, W)[0], expected.sum(), rtol=1e-6)


def test_names_of_torchs_graph_on_ctx_are_refused():
    hooks = torch_class(lambda ctx, x: x * len(ctx.next_functions), lambda ctx, g: g)
    with pytest.raises(TorchRefusal, match=r"ctx.next_functions.*graph of nodes"):
        from_torch(hooks).apply(jnp.ones(2))


def test_saved_for_forward_in_jvp_and_saved_tensors_in_forward():
    class Keeps(Function):
        @staticmethod
        def forward(ctx, x):
            assert ctx.to_save is None
            ctx.save_for_forward(x, 2 * x)
            ctx.save_for_backward(x)
            (again,) = ctx.saved_tensors
            return again * x

        @staticmethod
        def jvp(ctx, t):
            x, twice = ctx.saved_for_forward
            assert ctx.saved_variables == ()
            return 3 * t * (x + twice)

        @staticmethod
        def backward(ctx, g):
            assert ctx.saved_for_forward is None
            return 5 * g

    apply = from_torch(Keeps).apply
    value, tangent = jax.jvp(apply, (X,), (X,))
    np.testing.assert_allclose(value, X * X)
    np.testing.assert_allclose(tangent, 9 * X * X)
    np.testing.assert_allclose(
        jax.grad(lambda x: apply(x).sum())(X), np.full((2, 2), 5)
    )


def test_a_jvp_that_returns_nothing():
    forgets = torch_class(
        lambda ctx, x: (2 * x, 3 * x, x > 0),
        name="Forgets",
        jvp=lambda ctx, t: (2 * t, None, None),
    )
    with pytest.raises(RuntimeError, match=r"`Forgets.jvp` returned None as the tan"):
        jax.jvp(from_torch(forgets).apply, (X,), (X,))
