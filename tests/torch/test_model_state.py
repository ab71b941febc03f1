"""What a model must not lose: state, hooks, numbers; and what the host returns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from jaxfn.torch import TorchRefusal, from_torch
from tests.torch.test_model_usage import by_name, close, jnp_of


class Counter(nn.Module):
    """Keeps plain values between calls."""

    def __init__(self, change):
        super().__init__()
        self.calls, self.first, self.seen, self.change = 0, True, [], change

    def forward(self, x):
        return self.change(self, x)


def counts(m, x):
    m.calls += 1
    return x * m.calls


def remembers(m, x):
    m.seen.append(3)
    return x * len(m.seen)


def skips_once(m, x):
    first, m.first = m.first, False
    return x * 0 if first else x


def keeps_its_size(m, x):
    m.calls, m.width = x.shape[0], x.shape[1]
    return x * m.calls


STATE = [(counts, "calls"), (remembers, r"len\(seen\)"), (skips_once, "first")]


@pytest.mark.parametrize(("change", "name"), STATE)
@pytest.mark.parametrize("mutable", [False, True])
def test_a_plain_value_that_changes_is_refused(change, name, mutable):
    model = from_torch(Counter(change), mutable=mutable)
    with pytest.raises(TorchRefusal, match=f"a write to `{name}`.*register_buffer"):
        model.apply({}, jnp.ones((2, 3)))


def test_a_plain_value_that_stays_is_a_cache():
    x = jnp.ones((2, 3))
    np.testing.assert_array_equal(from_torch(Counter(keeps_its_size)).apply({}, x), 2)


def test_a_hook_on_a_parameter_is_refused():
    layer = nn.Linear(2, 1)
    layer.weight.register_hook(lambda g: 3 * g)
    with pytest.raises(TypeError, match="got one on `weight` of Linear"):
        from_torch(layer)


@pytest.mark.parametrize("dtype", [jnp.int32, bool, jnp.bfloat16, jnp.complex64])
@pytest.mark.parametrize("shape", [(2,), (3, 2)])
def test_a_product_of_two_dtypes_is_refused(dtype, shape):
    model = from_torch(nn.Linear(2, 1))
    with pytest.raises(TorchRefusal, match="PyTorch refuses a product of two dtypes"):
        model.apply(model.params, jnp.ones(shape, dtype))


@pytest.mark.parametrize("number", [lambda x: x.item(), lambda x: int(x)])
def test_a_number_of_a_tensor_is_not_returned(number):
    model = from_torch(lambda x: (x * 2, number(x.sum())))
    with pytest.raises(TorchRefusal, match="Return the tensor itself|depends on the v"):
        model(jnp.ones(2))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        y = checkpoint(lambda x: self.a(x).tanh(), x, use_reentrant=False)
        return checkpoint(self.b, y, use_reentrant=False)


def test_a_checkpoint_has_a_gradient():
    module, x = Checkpointed(), torch.randn(3, 2)
    model = from_torch(module)
    loss = lambda params: (model.apply(params, jnp_of(x)) ** 2).sum()  # noqa: E731
    got = jax.jit(jax.grad(loss))(model.params)
    want = torch.autograd.grad((module(x) ** 2).sum(), module.parameters())
    for name, w in by_name(module, want).items():
        close(got[name], w)


@pytest.mark.parametrize("channels", [lambda x: x.transpose(1, 2), lambda x: x])
def test_pooling_to_one_and_a_write(channels):
    """Torch changes the strides of a pooled array whose channels come last."""

    def run(x):
        y = torch.zeros_like(x)
        y[:, 1:] = x[:, 1:] ** 2
        return torch.nn.functional.adaptive_avg_pool1d(channels(y), output_size=1)

    x = torch.randn(2, 4, 3, requires_grad=True)
    got = jax.grad(lambda x: (from_torch(run)(x) ** 2).sum())(jnp_of(x.detach()))
    close(got, torch.autograd.grad((run(x) ** 2).sum(), x)[0])


class OnHost(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.run = run

    def forward(self, x, k):
        return self.run(x, int(k))


BY_VALUE = {
    "a float beside": lambda x, k: (x.sum() + k, float(x.sum())),
    "the number of steps": lambda x, k: sum((x * i).sum() for i in range(1, 1 + k)),
    "a shape": lambda x, k: x.repeat(k, 1),
    "a slice": lambda x, k: x[: int(x.sum() / 6)] + k,
}


@pytest.mark.parametrize("run", BY_VALUE.values(), ids=BY_VALUE)
def test_the_host_returns_nothing_made_up(run):
    """No trial run, whose values are jaxfn's own, decides what a program returns."""
    model, x = from_torch(OnHost(run), fallback="host"), jnp.ones((2, 3))
    with pytest.raises(TorchRefusal, match="to depend on the values of its arguments"):
        jax.jit(lambda x, k: model.apply({}, x, k))(x, 4)
    want = OnHost(run)(torch.ones(2, 3), 4)  # outside of a trace it is right
    for got, w in zip(
        *map(jax.tree.leaves, (model.apply({}, x, 4), want)), strict=True
    ):
        np.testing.assert_allclose(got, w)


def test_the_host_returns_no_old_number():
    run = BY_VALUE["a float beside"]
    model, x = from_torch(OnHost(run), fallback="host"), jnp.ones((2, 3))
    assert model.apply({}, x, 0)[1] == 6
    assert model.apply({}, 2 * x, 0)[1] == 12
    with pytest.raises(
        Exception, match="returned other Python values than when it was"
    ):
        jax.jit(lambda x: model.apply({}, x, 0))(x)[0].block_until_ready()


def test_attention_without_dropout_draws_nothing_on_the_host():
    def attend(q, k):
        scale = float(q.sum()) + k
        return torch.nn.functional.scaled_dot_product_attention(q, q, q) * scale

    q = jnp.ones((1, 2, 3, 4))
    assert from_torch(OnHost(attend), fallback="host").apply({}, q, 0).shape == q.shape


def test_the_model_is_no_module():
    model = from_torch(nn.Linear(2, 1))
    with pytest.raises(TypeError, match=r"model.apply\(model.params, \.\.\.\)"):
        model(jnp.ones(2))
    with pytest.raises(AttributeError, match="has no `eval`, which belongs to the mod"):
        model.eval()
    with pytest.raises(AttributeError, match="no attribute 'weigths'"):
        _ = model.weigths
    with pytest.raises(TypeError, match="of a model's parameters model.params"):
        model.apply(dict(nn.Linear(2, 1).named_parameters()), jnp.ones(2))
    with pytest.raises(TorchRefusal, match="random=True"):
        model.apply(model.params, jax.random.key(0), jnp.ones(2))
    with pytest.raises(TorchRefusal, match=r"`Linear.params` can't .*float64"):
        from_torch(nn.Linear(2, 1).double())
    with pytest.raises(TypeError, match="`Linear.state_dict` expected a parameter"):
        model.state_dict({})
