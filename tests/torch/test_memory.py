"""Strides, windows, addresses, writes that hide: as in torch, or refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxfn.torch import TorchRefusal, from_torch

from .classes import saves, torch_class
from .compare import Case

X = torch.linspace(-1.3, 2.0, 20).reshape(4, 5)
BUFFER = torch.zeros(4, 5)


def made(forward):
    """A class that saves its argument, which its gradient is a multiple of."""
    return torch_class(
        saves(forward), lambda ctx, g, *_: 3 * g.sum() * ctx.saved_tensors[0]
    )


def at_strides(x):
    """Of views, and of results whose memory is not in the order of their elements."""
    turned = x.t().clone()
    return (
        x[:, 1:].as_strided((2, 2), (5, 1)),
        (x * 2).data[1:].as_strided((2, 2), (1, 2)),
        x.t().as_strided((3, 3), (1, 2)),
        turned.as_strided((3,), (2,)),
        (x.t() * 2).as_strided((2, 2), (1, 4), 1),
        torch.zeros_like(x.t()).copy_(x.t()).as_strided((20,), (1,)),
        x.t().contiguous().as_strided((2, 2), (1, 4)),
        torch.empty_strided((2, 3), (1, 2)).copy_(x[:2, :3]).as_strided((6,), (1,)),
    )


def chain(x):
    """Views of views, written to one after the other."""
    y = x.clone()
    y[1].mul_(2).add_(1)
    y[:, ::2].sub_(y[:, 1:2])
    y.t()[0:2].abs_()
    y.view(-1)[::3].zero_()
    y.select(0, 2).copy_(y[0])
    y.split(2)[1].neg_()
    y.view(2, 2, 5)[0].transpose(0, 1).mul_(2)
    y.flatten()[3] = 9.0
    y.as_strided((4,), (6,)).add_(1)
    return y


def by_out(x):
    """Results that are written to a tensor, which takes their shape."""
    y, z = torch.empty_like(x), torch.empty(0)
    torch.mul(x, 2, out=y)
    torch.sum(x, 0, out=z)
    return y, z


def windows(x):
    return x.unfold(1, 2, 2).sum(-1), x.unfold(0, 3, 1).amax(-1)


@pytest.mark.parametrize("f", [at_strides, chain, by_out, windows])
def test_it_is_torchs(f):
    assert Case(made(f), [X]).worst(("eager", "jit", "scan")) <= 1e-6


def into_windows(x):
    y = x.clone()
    y.unfold(1, 2, 2).mul_(1.5)
    return y


def into_a_view_of_windows(x):
    y = x.clone()
    y.unfold(1, 2, 1)[..., 0].mul_(1.5)
    return y


def into_shared_places(x):
    y = x.clone()
    y.as_strided((3, 2), (1, 1)).mul_(2)
    return y


def part_by_strides(x):
    return (x * 2)[1:].data.as_strided((2, 2), (1, 2))


def address(x):
    return x * 2 if x.data_ptr() == x.clone().data_ptr() else x * 3


def address_as_key(x):
    return {x.data_ptr(): x * 2}[x.data_ptr()]


def address_as_text(x):
    return x * len(f"{x.data_ptr()}")


def alignment_to_a_page(x):
    return x * (x.data_ptr() % 4096 == 0)


def storage(x):
    return x * x.untyped_storage().nbytes()


def out_closed_over(x):
    torch.mul(x, 3, out=BUFFER)
    return x * 2


def list_closed_over(x):
    torch._foreach_add_([BUFFER], 1)
    return x * 2


def restrided(x):
    return x.clone().as_strided_((2,), (1,))


def aligned(ctx, x):
    """Asks for the alignment, as launchers of kernels do, of a whole and a part."""
    whole = x.data_ptr() % 16 == 0 and x.data_ptr() & 7 == 0
    return x * (2 if whole else 3) + x.reshape(-1)[1:].data_ptr() % 16


def test_the_alignment_of_a_tensor_is_known():
    apply = from_torch(torch_class(aligned)).apply
    assert apply(jnp.ones((2, 3))).tolist() == [[6.0] * 3] * 2


@pytest.mark.parametrize(
    ("rule", "operation", "reason", "way_out"),
    [
        (into_windows, r"aten\.mul_", "writes to windows", "Write to the tensor itse"),
        (into_a_view_of_windows, r"aten\.mul_", "writes to windows", "by index"),
        (into_shared_places, r"aten\.mul_", "share a place", "by index"),
        (part_by_strides, "as_strided", "no whole tensor", "contiguous"),
        (address, r"x\.data_ptr\(\)", "asks for the memory", "Compare tensors by"),
        (address_as_key, r"x\.data_ptr\(\)", "asks for the memory", "host"),
        (address_as_text, r"x\.data_ptr\(\)", "asks for the memory", "host"),
        (alignment_to_a_page, r"x\.data_ptr\(\)", "asks for the memory", "host"),
        (storage, r"x\.untyped_storage\(\)", "asks for the memory", "host"),
        (out_closed_over, r"aten\.mul\.out", "would be lost", "Pass it to apply"),
        (list_closed_over, "_foreach_add_", "would be lost", "Pass it to apply"),
        (restrided, r"y\.as_strided_", "another memory", "host"),
    ],
)
def test_it_is_refused(rule, operation, reason, way_out):
    with pytest.raises(TorchRefusal, match=operation) as caught:
        from_torch(made(rule)).apply(jnp.asarray(X.numpy()))
    message = str(caught.value)
    assert "`Made.forward`" in message
    assert reason in message
    assert way_out in message
    file, line = caught.value.where.split(":")
    assert file == __file__
    start = rule.__code__.co_firstlineno
    assert start < int(line) <= start + 3
    assert BUFFER.abs().sum() == 0


@pytest.mark.parametrize(
    ("write", "factors"),
    [
        (lambda z: z.data.mul_(3), [3, 3, 3, 3]),
        (lambda z: z.detach()[0].mul_(3), [3, 1, 1, 1]),
    ],
)
def test_a_second_derivative_sees_writes_through_what_was_detached(write, factors):
    def forward(ctx, x):
        z = x * x
        write(z)
        ctx.save_for_backward(z)
        return x * 1

    writes = torch_class(forward, lambda ctx, g: g * ctx.saved_tensors[0])
    assert Case(writes, [X]).worst(("eager", "jit")) <= 1e-6
    apply, x = from_torch(writes).apply, jnp.asarray(X.numpy())
    first = jax.grad(lambda x: apply(x).sum())
    second = jax.grad(lambda x: first(x).sum())(x)
    assert np.allclose(second, 2 * jnp.array(factors)[:, None] * x)


HELD = torch.arange(6.0)


@pytest.mark.parametrize(
    "write",
    [
        lambda: HELD.view(-1).as_strided((2,), (1,)).mul_(2.0),
        lambda: HELD[2:].as_strided((2,), (1,)).mul_(2.0),
        lambda: HELD.as_strided((4,), (1,)).as_strided((2,), (1,)).mul_(2.0),
        lambda: HELD.view(2, 3)[0].mul_(2.0),
        lambda: HELD.unbind()[0].mul_(2.0),
    ],
)
@pytest.mark.parametrize("rule", ["forward", "backward"])
def test_writes_through_views_of_what_is_held(write, rule):
    def forward(ctx, x):
        if rule == "forward":
            write()
        return x + HELD.sum()

    def backward(ctx, g):
        write()
        return g

    with pytest.raises(TorchRefusal, match="the write would be lost"):
        jax.grad(from_torch(torch_class(forward, backward)).apply)(1.0)
    assert HELD.tolist() == [0, 1, 2, 3, 4, 5]


def test_running_statistics_would_be_lost():
    def forward(ctx, x, mean, var):
        y = torch.nn.functional.batch_norm(x, mean, var, training=True)
        ctx.mark_dirty(mean, var)
        return y, mean, var

    norm = torch_class(forward, lambda ctx, g, *_: (g, None, None))
    args = jnp.arange(12.0).reshape(4, 3), jnp.zeros(3), jnp.ones(3)
    with pytest.raises(TorchRefusal, match="running statistics"):
        from_torch(norm).apply(*args)
    found = from_torch(norm, fallback="host").apply(*args)
    assert np.allclose(found[1], [0.45, 0.55, 0.65])


def test_memory_is_not_handed_out():
    shares = torch_class(lambda ctx, x: torch.from_dlpack(x * 2) + 1)
    with pytest.raises(TorchRefusal, match=r"x\.__dlpack__\(\)"):
        from_torch(shares).apply(jnp.ones(3))
