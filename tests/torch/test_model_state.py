"""What a model must not lose: state, hooks, numbers; and what the host returns."""

import collections
import dataclasses
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from jaxfn.torch import TorchRefusal, from_torch
from jaxfn.torch._function import graph_function
from tests.torch.classes import saves, torch_class
from tests.torch.models import module_of
from tests.torch.test_model_usage import (
    by_name,
    close,
    close_to_gradients,
    jnp_of,
    same_gradients,
)


class Counter(nn.Module):
    """Keeps plain values between calls."""

    def __init__(self, change):
        super().__init__()
        self.calls, self.first, self.seen, self.change = 0, True, [], change
        self.held = {"v": 0.0}

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


def keeps_a_kind(m, x):
    if m.first is True:
        m.first = "float" if x.dtype == torch.float32 and x.ndim == 2 else "int"
    return x * len(m.first)


def accumulates(m, x):
    m.held["v"] = m.held["v"] + x
    return 2 * m.held["v"]


def accumulates_and_resets(m, x):
    """As some spiking neurons do at the end."""
    y = accumulates(m, x)
    m.held["v"] = 0.0
    return y


def defines_a_function(m, x):
    m.act = lambda y: 2 * y
    return m.act(x)


STATE = [(counts, "calls"), (remembers, "seen"), (skips_once, "first")]
STATE += [(accumulates, "held")]


@pytest.mark.parametrize(("change", "name"), STATE)
@pytest.mark.parametrize("mutable", [False, True])
def test_a_plain_value_that_changes_is_refused(change, name, mutable):
    model = from_torch(Counter(change), mutable=mutable)
    with pytest.raises(TorchRefusal, match=f"a write to `{name}`.*register_buffer"):
        model.apply({}, jnp.ones((2, 3)))


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        (keeps_its_size, 2),
        (keeps_a_kind, 5),
        (accumulates_and_resets, 2),
        (defines_a_function, 2),
    ],
)
def test_a_plain_value_that_stays_is_a_cache(change, factor):
    found = from_torch(Counter(change)).apply({}, jnp.ones((2, 3)))
    np.testing.assert_array_equal(found, factor)


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


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_has_a_gradient(use_reentrant):
    """The older kind has none for `a`, whose input requires none."""

    def forward(self, x):
        y = checkpoint(lambda x: self.a(x).tanh(), x, use_reentrant=use_reentrant)
        return checkpoint(self.b, self.c(y), use_reentrant=use_reentrant)

    parts = {name: nn.Linear(2, 2) for name in "abc"}
    module = module_of(forward, **parts)
    same_gradients(module, torch.randn(3, 2), lambda y: (y**2).sum())
    assert (module.a.weight.grad is None) == use_reentrant


def pooled_sequence(channels):
    """Torch changes the strides of a pooled array whose channels come last."""

    def run(x):
        y = torch.zeros_like(x)
        y[:, 1:] = x[:, 1:] ** 2
        return nn.functional.adaptive_avg_pool1d(channels(y), output_size=1)

    return run


def pooled_image(x):
    """The strides of an array of one pixel say that its channels come last, too."""
    y = 2 * x.permute(0, 3, 1, 2)
    y += 1
    return nn.functional.adaptive_avg_pool2d(y, 1)


POOLED = {
    "channels last": (pooled_sequence(lambda x: x.transpose(1, 2)), (2, 4, 3)),
    "channels first": (pooled_sequence(lambda x: x), (2, 4, 3)),
    "one pixel": (pooled_image, (2, 1, 1, 4)),
    "four pixels": (pooled_image, (2, 2, 2, 4)),
}


@pytest.mark.parametrize(("run", "shape"), POOLED.values(), ids=POOLED)
def test_pooling_and_a_write(run, shape):
    x = torch.randn(shape, requires_grad=True)
    got = jax.grad(lambda x: (from_torch(run)(x) ** 2).sum())(jnp_of(x.detach()))
    close(got, torch.autograd.grad((run(x) ** 2).sum(), x)[0])


def on_host(run):
    return module_of(lambda self, x, k: run(x, int(k)))


BY_VALUE = {
    "a float beside": lambda x, k: (x.sum() + k, float(x.sum())),
    "the number of steps": lambda x, k: sum((x * i).sum() for i in range(1, 1 + k)),
    "a shape": lambda x, k: x.repeat(k, 1),
    "a slice": lambda x, k: x[: int(x.sum() / 6)] + k,
}


@pytest.mark.parametrize("run", BY_VALUE.values(), ids=BY_VALUE)
def test_the_host_returns_nothing_made_up(run):
    """No trial run, whose values are jaxfn's own, decides what a program returns."""
    model, x = from_torch(on_host(run), fallback="host"), jnp.ones((2, 3))
    with pytest.raises(TorchRefusal, match="to depend on the values of its arguments"):
        jax.jit(lambda x, k: model.apply({}, x, k))(x, 4)
    want = on_host(run)(torch.ones(2, 3), 4)  # outside of a trace it is right
    for got, w in zip(
        *map(jax.tree.leaves, (model.apply({}, x, 4), want)), strict=True
    ):
        np.testing.assert_allclose(got, w)


def test_the_host_returns_no_old_number():
    run = BY_VALUE["a float beside"]
    model, x = from_torch(on_host(run), fallback="host"), jnp.ones((2, 3))
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
    assert from_torch(on_host(attend), fallback="host").apply({}, q, 0).shape == q.shape


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


def appends(m, x):
    m.seen.append(0)  # a deque
    return x * len(m.seen)


def writes_to_numpy(m, x):
    m.seen[0] += 1
    return x * float(m.seen[0])


def switches_mode(m, x):
    m.training = not m.training
    return x * (2 if m.training else 1)


def draws_by_its_own(m, x):
    return x * m.seen.random()


def writes_to_slots(m, x):
    m.seen.step += 1
    return x / m.seen.step


def takes_the_next(m, x):
    return x * next(m.seen)


def exchanges_layers(m, x):
    m.a, m.b = m.b, m.a
    return m.a(x)


def counts_what_was_not_there(m, x):
    m.n = getattr(m, "n", 0) + 1
    return x * m.n


def removes(m, x):
    if not hasattr(m, "seen"):
        return x
    del m.seen
    return 0 * x


@dataclasses.dataclass(slots=True)
class Slots:
    step: int = 0


@pytest.mark.parametrize("fallback", [None, "host"])
@pytest.mark.parametrize(
    ("seen", "change"),
    [
        (collections.deque(), appends),
        (np.zeros(1), writes_to_numpy),
        (None, switches_mode),
        (random.Random(0), draws_by_its_own),
        (np.random.default_rng(0), draws_by_its_own),
        (Slots(), writes_to_slots),
        (iter([1, 2, 3]), takes_the_next),
        (None, exchanges_layers),
        (None, counts_what_was_not_there),
        (None, removes),
    ],
)
def test_state_of_any_kind_is_refused(seen, change, fallback):
    module = Counter(change)
    module.seen, module.a, module.b = seen, nn.Linear(3, 3), nn.Linear(3, 3)
    model = from_torch(module, fallback=fallback)
    with pytest.raises(TorchRefusal, match="a write to .*the new value would be lost"):
        model.apply(model.params, jnp.ones((2, 3)))


def adds_to_a_constant(m, x):
    m.seen.add_(1)
    return x * m.seen


def test_a_constant_that_the_host_writes_to_is_refused():
    module = Counter(adds_to_a_constant)
    module.seen = torch.zeros(1)
    model = from_torch(module, fallback="host")
    for _ in range(2):
        with pytest.raises(TorchRefusal, match="a write to `seen`"):
            model.apply({}, jnp.ones(1))


class Recurrent(nn.Module):
    def __init__(self, in_place):
        super().__init__()
        self.w, self.in_place = nn.Parameter(torch.tensor(3.0)), in_place
        self.register_buffer("h", torch.tensor(1.0))

    def forward(self, x):
        if self.in_place:
            self.h.mul_(self.w * x)
        else:
            self.h = self.w * self.h * x
        return self.h * 1


@pytest.mark.parametrize("fallback", [None, "host"])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_gradient_goes_through_new_buffers(in_place, fallback, jit):
    module, x = Recurrent(in_place), jnp.float32(2)
    model = from_torch(module, fallback=fallback)
    with pytest.raises(TorchRefusal, match="a write to `h`"):
        model.apply(model.params, x)
    model = from_torch(module, mutable=True, fallback=fallback)

    def two_steps(params):
        _, buffers = model.apply({**params, **model.buffers}, x)
        return model.apply({**params, **buffers}, x)[0]

    value, grads = jit(jax.value_and_grad(two_steps))(model.params)
    assert (value, grads["w"]) == (36, 24)
    new = lambda h: model.apply({**model.params, "h": h}, x)[1]["h"]  # noqa: E731
    assert jit(jax.grad(new))(model.buffers["h"]) == 6
    assert module.h == 1


@pytest.mark.parametrize("share", [lambda a: a[1:], lambda a: a.detach()])
def test_buffers_that_share_memory_are_refused(share):
    module = nn.Module()
    module.register_buffer("a", torch.zeros(3))
    module.register_buffer("b", share(module.a))
    with pytest.raises(TypeError, match="got `b` of Module, which shares that of `a`"):
        from_torch(module)


def pruned(layer):
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


OLD = {
    "weight norm": nn.utils.weight_norm,
    "spectral norm": lambda layer: nn.utils.spectral_norm(layer).eval(),
    "pruned": pruned,
}


@pytest.mark.parametrize("make", OLD.values(), ids=list(OLD))
@pytest.mark.parametrize("is_called", [False, True])
@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
def test_a_weight_that_each_call_computes_anew(make, is_called):
    """It is an attribute, which the module has from the call before."""
    module, x = make(nn.Linear(3, 2)), torch.randn(4, 3)
    if is_called:
        module(x)
    model = from_torch(module)
    grads = jax.jit(jax.grad(lambda p: (model.apply(p, jnp_of(x)) ** 2).sum()))
    (module(x) ** 2).sum().backward()
    for name, got in grads(model.params).items():
        close(got, module.get_parameter(name).grad)


@pytest.mark.parametrize("compute", [lambda w: w * 2, lambda w: w.detach()[1:]])
def test_a_tensor_of_a_parameter_that_is_read_is_refused(compute):
    weight = nn.Parameter(torch.ones(2, 3))
    kept = compute(weight)
    module = module_of(lambda self, x: x * self.kept.sum(), weight=weight, kept=kept)
    model = from_torch(module)
    with pytest.raises(TorchRefusal, match="`Net.*of a parameter or a buffer"):
        model.apply(model.params, jnp.ones(3))


def test_a_part_in_torchscript_is_refused():
    module = nn.Sequential(nn.Tanh(), torch.jit.script(nn.Linear(3, 2)))
    with pytest.raises(TypeError, match="a part of Sequential made by torch.jit: `1`"):
        from_torch(module)


def test_parts_of_one_array_share_no_memory():
    whole = torch.arange(8.0)
    layer = nn.Linear(3, 2)
    layer.weight = nn.Parameter(whole[:6].view(2, 3))
    layer.bias = nn.Parameter(whole[6:])
    model = from_torch(layer)
    close(model.apply(model.params, jnp.ones(3)), layer(torch.ones(3)))


def branches(m, x):
    return m.a(x) if x.sum() > 0 else m.b(x)


def keeps_and_asks(m, x):
    m.seen = m.a(x)
    return m.seen.tanh() if m.seen.sum() > 0 else m.b(m.seen)


@pytest.mark.parametrize("run", [branches, keeps_and_asks])
@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_gradient_of_a_branch_that_does_not_use_all(run, jit):
    module = Counter(run)
    module.a, module.b, module.seen = nn.Linear(3, 3), nn.Linear(3, 3), None
    model = from_torch(module)
    gradient = jax.grad(lambda params, x: model.apply(params, x).sum())
    for x in (torch.ones(3), -torch.ones(3)):
        got = jit(gradient)(model.params, jnp_of(x))
        close_to_gradients(got, module, module(x).sum())


class Forces(nn.Module):
    def __init__(self, by_backward):
        super().__init__()
        self.layer, self.by_backward = nn.Linear(2, 1), by_backward

    def forward(self, x):
        x = x.detach().clone().requires_grad_()
        energy = (self.layer(x) ** 2).sum()
        if not self.by_backward:
            return torch.autograd.grad(energy, x, create_graph=True)[0]
        energy.backward()
        return x.grad


def test_gradients_that_backward_adds_to_parameters_are_refused():
    model = from_torch(Forces(by_backward=True))
    with pytest.raises(TorchRefusal, match="`layer.weight.grad`.*torch.autograd.grad"):
        model.apply(model.params, jnp.ones(2))
    module = Forces(by_backward=False)
    model = from_torch(module)
    close(model.apply(model.params, jnp.ones(2)), module(torch.ones(2)))


def test_a_model_with_a_loss_is_traced_once(monkeypatch):
    """Its predictions probably have no cotangent. If one has, it is traced again."""
    traces, trace = [], graph_function.trace
    count = lambda *args, **how: traces.append(1) or trace(*args, **how)  # noqa: E731
    monkeypatch.setattr(graph_function, "trace", count)
    model = from_torch(lambda x: ((x**2).sum(), 3 * x))
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(jax.grad(lambda x: model(x)[0])(x), 2 * x)
    assert len(traces) == 1
    np.testing.assert_array_equal(jax.grad(lambda x: model(x)[1].sum())(x), 3)
    both = lambda x: model(x)[0] + model(x)[1].sum()  # noqa: E731
    np.testing.assert_array_equal(jax.grad(both)(x), 2 * x + 3)
    assert len(traces) == 3


def asks_of_cotangent(ctx, g):
    x, w = ctx.saved_tensors
    if (g == 1).all():
        return g * w, None
    return g * w, 3 * g * x


AsksCotangent = torch_class(saves(lambda x, w: x * w), asks_of_cotangent)


def test_a_branch_on_a_cotangent_may_lack_a_gradient():
    multiply = from_torch(lambda x, w: AsksCotangent.apply(x, w))
    x, w = jnp.array([2.0, 3.0]), jnp.array([5.0, 7.0])
    for factor, want in ((1, jnp.zeros(2)), (2, 6 * x)):
        loss = lambda x, w: factor * multiply(x, w).sum()  # noqa: B023, E731
        dx, dw = jax.jit(jax.grad(loss, (0, 1)))(x, w)
        np.testing.assert_array_equal(dx, factor * w)
        np.testing.assert_array_equal(dw, want)


def test_a_refusal_names_what_asked_for_a_value():
    """And not the end of the context around it."""

    def scaled(x):
        with torch.enable_grad():
            return x * float(x.mean())

    with pytest.raises(TorchRefusal, match=r"can't run in JAX: float\(tensor\)"):
        from_torch(scaled)(jnp.ones(2))


@pytest.mark.parametrize(
    "cell", [nn.RNNCell(3, 4), nn.GRUCell(3, 4)], ids=["RNN", "GRU"]
)
@pytest.mark.parametrize("argnums", [(0,), (0, 1)], ids=str)
@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_cell_in_a_scan(cell, argnums, jit):
    """JAX traces it for more and more arguments, and keeps what the first one saves."""
    model, xs, h = from_torch(cell), torch.randn(5, 3), torch.randn(4)

    def loss(params, h, xs):
        def step(h, x):
            h = model.apply(params, x, h)
            return h, h

        return (jax.lax.scan(step, h, xs)[1] ** 2).sum()

    got = jit(jax.grad(loss, argnums))(model.params, jnp_of(h), jnp_of(xs))
    h.requires_grad_()
    hs = [h]
    for x in xs:
        hs.append(cell(x, hs[-1]))
    total = (torch.stack(hs[1:]) ** 2).sum()
    want = torch.autograd.grad(total, [*cell.parameters(), h])
    for name, w in by_name(cell, want[:-1]).items():
        close(got[0][name], w)
    for of_h in got[1:]:
        close(of_h, want[-1])
