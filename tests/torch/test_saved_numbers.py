"""Numbers that forward saves as tensors, and that backward compares."""

import pytest
import torch

from .classes import torch_class
from .compare import Case

X = torch.arange(6.0).reshape(2, 3)


def reduced(save, read):
    def forward(ctx, x, dim):
        save(ctx, x, torch.tensor(dim))
        return x.sum(dim)

    def backward(ctx, g):
        x, dim = read(ctx)
        if dim == -1:
            return g.unsqueeze(-1).expand(x.shape) * 3, None
        if dim.item() > 0 or dim in (5, 6):
            raise ValueError("no such axis here")
        return g.unsqueeze(int(dim)).expand(x.shape) * 5, None

    return torch_class(forward, backward)


def keep(ctx, x, dim):
    ctx.x, ctx.dim = x, dim


HOW = {
    "saved": (lambda ctx, *xs: ctx.save_for_backward(*xs), lambda c: c.saved_tensors),
    "an attribute": (keep, lambda ctx: (ctx.x, ctx.dim)),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dim", [-1, 0])
def test_the_condition_is_known(how, dim):
    case = Case(reduced(*HOW[how]), [X, dim], (0,))
    assert case.worst() == 0
    rules = case.made.jaxfn_torch_bridge._by_signature.values()
    assert [len(rule.whole_backward().paths) for rule in rules] == [1]


def test_a_number_of_the_program_stays_its_own():
    scale = torch.nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def forward(ctx, x):
        ctx.scale = scale
        ctx.name = "Scaled"
        return x * scale

    def backward(ctx, g):
        assert ctx.scale is scale
        return g * (ctx.scale if ctx.name == "Scaled" else 1)

    case = Case(torch_class(forward, backward), [X])
    assert case.worst() == 0
    scale.fill_(5)
    assert case.worst() == 0


@pytest.mark.parametrize("k", [3.5, 1.5])
def test_a_list_of_numbers_and_a_float(k):
    def forward(ctx, x, k):
        ctx.save_for_backward(torch.tensor([k]), torch.tensor(k))
        return x * k

    def backward(ctx, g):
        one, k = ctx.saved_tensors
        return (g * k if one > 2 else g * 7), None

    assert Case(torch_class(forward, backward), [X, k], (0,)).worst() <= 1e-6
