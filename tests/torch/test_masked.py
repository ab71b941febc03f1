"""What a mask picks, how many that is, and numbers read from tensors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
import torch

from jaxfn.torch import TorchRefusal, from_torch

from .classes import saves, torch_class
from .compare import Case

X = torch.tensor([[0.5, -1.5, 2.0], [-0.25, 1.0, 3.0]])


def function(forward):
    """A class with this forward, whose backward asks torch for its gradient."""

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = forward(x)
        return torch.autograd.grad(y, x, g)[0]

    return torch_class(saves(forward), backward)


def mean_by_count(x):
    return x[x > 0].sum() / x[x > 0].numel() + x[x > 0].shape[0]


def series(x):
    picked = x[x > 0]
    total = torch.tensor(1.0).expand_as(picked)
    for k in (0.5, 0.25):
        total = picked * total + k
    return torch.zeros_like(x).masked_scatter(x > 0, total)


def scattered(x):
    """More to write than there is room for; and broadcast."""
    y = x.masked_scatter(x > 0, x * 3 + x.sum())
    return y + x.masked_scatter(torch.tensor([[True], [False]]), x.exp())


def made_alike(x):
    picked = x[x > 0]
    fresh = picked.new_full(picked.shape, 2.0) + torch.ones(picked.shape[0])
    return x + (picked * (fresh + torch.zeros_like(picked))).sum()


def rows_of_a_mask(x):
    picked = x[x.sum(1) > 1]
    y = torch.zeros_like(x)
    y[x.sum(1) > 1] = picked.exp() * torch.ones(picked.shape[0], 3)
    return y


def checked_distribution(x):
    normal = torch.distributions.Normal(0.0, 1.0)
    y = torch.zeros_like(x)
    return y.masked_scatter(x > 0, normal.cdf(x[x > 0]))


def number(x):
    return x * x.flatten().argmax().item() + x.sum().item()


@pytest.mark.parametrize(
    "forward",
    [
        mean_by_count,
        series,
        scattered,
        made_alike,
        rows_of_a_mask,
        checked_distribution,
    ],
)
def test_a_masks_picks_and_their_count(forward):
    assert Case(function(forward), [X]).worst() <= 1e-6


def repeats(x):
    return x.repeat(1, x.argmax().item()).sum()


def counts(x):
    return torch.arange(x.argmax().item()).sum() + x


def two_masks(x):
    return x + (x[x > 0].expand_as(x[x > 1])).sum()


@pytest.mark.parametrize("forward", [repeats, counts, two_masks])
def test_a_shape_that_depends_on_values_is_refused(forward):
    with pytest.raises(TorchRefusal, match=r"depends? on (the )?value|two masks"):
        from_torch(function(forward)).apply(jnp.ones((2, 3)))


def test_a_number_is_an_array():
    made = from_torch(function(number))
    ours = jax.jit(made.apply)(jnp.asarray(X.numpy()))
    assert np.allclose(ours, number(X))


# ---- what only the host can do


def times_matrix(ctx, matrix, x):
    ctx.matrix = matrix
    return torch.from_numpy(matrix @ x.numpy())


def test_arrays_inside_of_objects_are_theirs():
    """An object that holds arrays of NumPy, which stay what they are."""
    cls = torch_class(
        times_matrix,
        lambda ctx, g: (None, torch.from_numpy(ctx.matrix.T @ g.numpy())),
    )
    dense = np.array([[1.0, 0, 2], [0, 3, 0]], np.float32)
    case = Case(cls, [scipy.sparse.csr_array(dense), X[0]], fallback="host")
    assert case.worst() <= 1e-6


def resizes(ctx, g):
    (x,) = ctx.saved_tensors
    return g.resize_as_(x).copy_(x).mul_(2 / x.numel())


def test_a_cotangent_may_be_resized_on_the_host():
    cls = torch_class(saves(lambda x: x.pow(2).mean()), resizes)
    assert Case(cls, [X], fallback="host").worst() <= 1e-6
    with pytest.raises(TorchRefusal, match="another memory"):
        jax.grad(from_torch(cls).apply)(jnp.asarray(X.numpy()))
