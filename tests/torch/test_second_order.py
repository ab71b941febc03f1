"""Second derivatives of what real Functions do in their rules."""

from __future__ import annotations

import importlib.util
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import Function

import jaxfn.torch
from jaxfn.torch import TorchRefusal, from_torch

from . import packages
from .compare import Case

X = torch.tensor([[0.5, -1.5, 2.0], [-0.25, 1.0, 3.0]])


def factor(a):
    """A factor of a matrix, with something on the diagonal if it has none."""
    found, info = torch.linalg.cholesky_ex(a)
    if not torch.any(info):
        return found
    if torch.isnan(a).any():
        raise ValueError("nan in the matrix")
    found, info = torch.linalg.cholesky_ex(a + 0.1 * torch.eye(len(a)))
    if not torch.any(info):
        return found
    raise ValueError("no factor")


class Solves(Function):
    """Applied again in its own backward, with conditions on values each time."""

    @staticmethod
    def forward(ctx, a, b):
        found = torch.cholesky_solve(b, factor(a))
        ctx.save_for_backward(a, found)
        return found

    @staticmethod
    def backward(ctx, g):
        a, found = ctx.saved_tensors
        by_b = Solves.apply(a, g)
        return -by_b @ found.mT, by_b


def test_conditions_in_a_rule_that_torch_runs():
    a = X.mT @ X + 2 * torch.eye(3)
    case = Case(Solves, [a, X.mT.contiguous()])
    assert case.worst(("eager", "jit")) <= 1e-5
    assert max(case.second_gaps()) <= 1e-5


class Rebinds(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        y = g.clone()
        y.data = g * 3
        return y


class Asks(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if (x * g).sum() > 0:
            return 2 * g * x
        return -g * x


def through(other, way):
    """A Function that lets torch differentiate another one."""

    class Through(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            again = torch.is_grad_enabled()
            with torch.enable_grad():
                taken = x.requires_grad and way == "grad"
                z = x.view_as(x) if taken else x.detach().requires_grad_()
                y = other.apply(z)
            if way == "grad":
                return torch.autograd.grad(y, z, g, create_graph=again)[0]
            y.backward(g)
            return z.grad

    return Through


def test_a_rule_that_torch_runs_is_watched():
    made = from_torch(through(Rebinds, "grad"))
    with pytest.raises(TorchRefusal, match=r"y\.data = …") as caught:
        jax.grad(lambda x: made.apply(x).sum())(jnp.ones(3))
    assert "test_second_order.py" in caught.value.where


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("way", ["grad", "backward"])
def test_both_ways_of_a_condition_there(sign, way):
    case = Case(through(Asks, way), [sign * X])
    assert case.worst() <= 1e-6
    if way == "grad":
        assert max(case.second_gaps()) <= 1e-6


def test_a_condition_that_was_settled_makes_no_paths():
    class Often(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            y = x
            for i in range(1, 6):
                held = x.detach().clone()
                y = y * i if (held > 0).all() else y - i
            return y

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            for i in range(1, 6):
                g = g * i if (x > 0).all() else g
            return g

    report = jaxfn.torch.explain(Often, jnp.ones(3))
    assert (report.forward.paths, report.backward.paths) == (2, 2)
    for x in (X, X.abs()):
        assert Case(Often, [x]).worst(("eager", "jit")) <= 1e-6


def test_forward_writes_over_what_its_derivative_needs():
    class Writes(Function):
        @staticmethod
        def forward(ctx, x):
            size = (x * x + 1).sqrt()
            half = size.exp()
            size.mul_(3)  # what the derivative of sqrt and exp need, is gone
            half.add_(size)
            ctx.save_for_backward(half)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    case = Case(Writes, [X])
    assert case.worst() <= 1e-6
    x = jnp.asarray(X.numpy())
    first = jax.grad(lambda x: case.made.apply(x).sum())
    found = jax.grad(lambda x: first(x).sum())(x)
    # torch takes what forward saved for a constant; its own gradient has this slope.
    size = np.sqrt(X.numpy() ** 2 + 1)
    expected = X.numpy() / size * (np.exp(size) + 3)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


NAMES = ["Triangular", "MaternCovariance", "Solve"]
LONG = pytest.mark.full  # many conditions, to second order
ROWS = {row.name: row for row in packages.ROWS if row.name in NAMES}


@pytest.mark.skipif(
    importlib.util.find_spec("linear_operator") is None,
    reason="the packages are not installed here",
)
@pytest.mark.parametrize("name", [*NAMES[:2], pytest.param("Solve", marks=LONG)])
def test_of_packages(name):
    row = ROWS[name]
    packages.fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = Case(row.load(), row.args(), row.diff)
        gaps = case.second_gaps()
    if row.name == "MaternCovariance":  # by an intermediate, to torch a constant
        gaps = gaps[len(case.diff) :]
    assert max(gaps) <= 1e-5
