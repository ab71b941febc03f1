"""What people do with a model: forces, dropout, buffers, ensembles, training."""

import collections
import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import jaxfn.torch
from jaxfn.torch import TorchRefusal, _ops, from_torch
from tests.torch import models
from tests.torch.classes import torch_class
from tests.torch.models import module_of

ROW = _ops.ROWS["aten.tanh"]


def close(got, want, rtol=1e-5):
    want = want.detach().numpy() if isinstance(want, torch.Tensor) else np.asarray(want)
    size = np.abs(want).max() if want.size else 1.0
    np.testing.assert_allclose(np.asarray(got), want, rtol=rtol, atol=rtol * size)


def jnp_of(x):
    return jnp.asarray(x.detach().numpy())


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, positions):
        return self.net(positions).sum()


class EnergyAndForces(Energy):
    def forward(self, positions):
        positions = positions.requires_grad_()
        energy = super().forward(positions)
        (grad,) = torch.autograd.grad(energy, positions, create_graph=True)
        return energy, -grad


def by_name(module, grads):
    return dict(zip(dict(module.named_parameters()), grads, strict=True))


def close_to_gradients(got, module, total):
    """Compare with torch's gradients of `total` by all parameters."""
    options = {"allow_unused": True, "materialize_grads": True}
    want = torch.autograd.grad(total, module.parameters(), **options)
    for name, w in by_name(module, want).items():
        close(got[name], w)


def same_gradients(module, x, total=lambda y: y.sum(), jit=jax.jit, **options):
    """Compare the gradients by all parameters with those of torch.

    Returns:
        The gradient, as a function of the argument.
    """
    model = from_torch(module, **options)
    gradient = jit(jax.grad(lambda params, x: total(model.apply(params, x))))
    got = gradient(model.params, jnp_of(x))
    total(module(x)).backward()
    for name, p in module.named_parameters():
        close(got[name], torch.zeros_like(p) if p.grad is None else p.grad)
    return lambda x: gradient(model.params, x)


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_forces_by_positions_and_then_by_parameters(jit):
    module, x, target = Energy(), torch.randn(5, 3), torch.randn(5, 3)
    model = from_torch(module)

    def loss(params, x):
        forces = -jax.grad(lambda x: model.apply(params, x))(x)
        return ((forces - jnp_of(target)) ** 2).sum()

    got = jit(jax.grad(loss))(model.params, jnp_of(x))
    x.requires_grad_()
    (grad,) = torch.autograd.grad(module(x), x, create_graph=True)
    close_to_gradients(got, module, ((-grad - target) ** 2).sum())


def test_forces_inside_of_the_module():
    module, x = EnergyAndForces(), torch.randn(5, 3)
    model = from_torch(module)

    def loss(params):
        energy, forces = model.apply(params, jnp_of(x))
        return energy + (forces**2).sum()

    value, got = jax.jit(jax.value_and_grad(loss))(model.params)
    energy, forces = module(x)
    total = energy + (forces**2).sum()
    close(value, total)
    close_to_gradients(got, module, total)


def test_every_way_to_a_hessian_and_to_a_jacobian():
    module, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), torch.randn(3)
    model = from_torch(module)
    want = torch.autograd.functional.jacobian(module, x)
    f = lambda x: model.apply(model.params, x)  # noqa: E731
    for jacobian in (jax.jacfwd(f), jax.jit(jax.jacfwd(f)), jax.jacfwd(jax.jit(f))):
        close(jacobian(jnp_of(x)), want)
    want = torch.autograd.functional.hessian(lambda x: module(x).sum(), x)
    total = lambda x: f(x).sum()  # noqa: E731
    for hessian in (
        jax.hessian(total),
        jax.jit(jax.hessian(total)),
        jax.hessian(jax.jit(total)),
        jax.jacrev(jax.jacrev(total)),
        jax.jacfwd(jax.jacfwd(total)),
    ):
        close(hessian(jnp_of(x)), want)


def dropped():
    weight, dropout = nn.Parameter(torch.ones(1000)), nn.Dropout(0.5)
    run = lambda self: self.dropout(self.weight)  # noqa: E731
    return module_of(run, "Dropped", weight=weight, dropout=dropout)


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_backward_drops_what_forward_dropped(jit):
    model, key = from_torch(dropped(), random=True), jax.random.key(3)

    def loss(params):
        y = model.apply(params, key)
        return y.sum(), y

    (_, y), grads = jit(jax.value_and_grad(loss, has_aux=True))(model.params)
    assert 400 < int((y == 0).sum()) < 600
    np.testing.assert_array_equal(y, grads["weight"])
    # The second derivative of y^3, where y = mask * w, is 6 mask^3 w.
    cube = lambda params: (model.apply(params, key) ** 3).sum()  # noqa: E731
    slope = lambda params: jax.grad(cube)(params)["weight"].sum()  # noqa: E731
    np.testing.assert_allclose(jit(jax.grad(slope))(model.params)["weight"], 6 * y**3)
    other = model.apply(model.params, jax.random.key(4))
    assert (np.asarray(other) != np.asarray(y)).any()


def test_a_draw_without_a_key_is_refused():
    with pytest.raises(TorchRefusal, match=r"Dropped.*random numbers.*random=True"):
        from_torch(dropped()).apply({"weight": jnp.ones(1000)})
    model = from_torch(dropped(), random=True)
    with pytest.raises(TypeError, match=r"Dropped.*expected a PRNG key"):
        model.apply(model.params)


def test_buffers_of_a_batch_norm_in_training():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    x = torch.randn(6, 3)
    model = from_torch(module)
    with pytest.raises(TorchRefusal, match=r"`1.running_mean`.*mutable=True.*eval\(\)"):
        model.apply(model.params, jnp_of(x))
    model = from_torch(module, mutable=True)

    def loss(params, buffers):
        out, buffers = model.apply({**params, **buffers}, jnp_of(x))
        return (out**2).sum(), buffers

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    buffers = model.buffers
    for _ in range(2):
        (value, buffers), got = step(model.params, buffers)
        total = (module(x) ** 2).sum()
        close(value, total)
        for name, want in module.named_buffers():
            close(buffers[name], want)
    want = by_name(module, torch.autograd.grad(total, module.parameters()))
    for name in ("2.weight", "2.bias", "1.weight"):
        close(got[name], want[name], 1e-4)


def test_vmap_over_data_and_over_parameters():
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    model, xs = from_torch(module), jnp_of(torch.randn(5, 3))
    loss = lambda params, x: (model.apply(params, x) ** 2).sum()  # noqa: E731
    params = [jax.tree.map(lambda p, i=i: i * p, model.params) for i in (1.0, 2.0)]
    stacked = jax.tree.map(lambda *p: jnp.stack(p), *params)
    ensemble = jax.jit(jax.vmap(jax.grad(loss), (0, None)))(stacked, xs)
    examples = jax.vmap(jax.grad(loss), (None, 0))(model.params, xs)
    for name in model.params:
        close(ensemble[name], jnp.stack([jax.grad(loss)(p, xs)[name] for p in params]))
        want = jnp.stack([jax.grad(loss)(model.params, x)[name] for x in xs])
        close(examples[name], want)


def test_scan_and_checkpoint():
    model, xs = from_torch(Energy()), jnp_of(torch.randn(4, 5, 3))
    whole = lambda p: sum(model.apply(p, x) for x in xs)  # noqa: E731
    by_scan = lambda p: jax.lax.scan(  # noqa: E731
        lambda c, x: (c + model.apply(p, x), None), 0.0, xs
    )[0]
    want = jax.grad(whole)(model.params)
    for f in (by_scan, jax.checkpoint(whole), jax.jit(whole)):
        got = jax.grad(f)(model.params)
        for name, w in want.items():
            close(got[name], w)


def test_training_is_that_of_torch_and_goes_back():
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    x, y = torch.randn(16, 3), torch.randn(16, 1)
    model = from_torch(module)
    params = model.params

    @jax.jit
    def step(params):
        loss = lambda p: ((model.apply(p, jnp_of(x)) - jnp_of(y)) ** 2).mean()  # noqa: E731
        grads = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(5):
        params = step(params)
        optimizer.zero_grad()
        ((module(x) - y) ** 2).mean().backward()
        optimizer.step()
    for name, want in module.named_parameters():
        close(params[name], want)
    other = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    other.load_state_dict(model.state_dict(params))
    close(other(x).detach().numpy(), module(x))


def test_tied_parameters_go_back_under_both_names():
    module = models.Tied()
    model = from_torch(module)
    assert set(model.params) == {"a.weight", "b.bias"}
    assert set(model.frozen) == {"a.bias"}
    state = model.state_dict({**model.params, "a.weight": jnp.zeros((4, 4))})
    assert set(state) == set(module.state_dict())
    module.load_state_dict(state)
    assert not module.b.weight.any()


def test_bfloat16_stays_so():
    module = nn.Linear(4, 4).to(torch.bfloat16)
    model, x = from_torch(module), torch.randn(2, 4).to(torch.bfloat16)

    def loss(p):
        return (model.apply(p, jnp.asarray(x.float().numpy(), jnp.bfloat16))).sum()

    grads = jax.jit(jax.grad(loss))(model.params)
    assert grads["weight"].dtype == jnp.bfloat16
    module(x).sum().backward()
    close(grads["weight"].astype(jnp.float32), module.weight.grad.float(), 1e-2)


def test_results_have_their_classes():
    Pair = collections.namedtuple("Pair", "first rest")  # noqa: PYI024

    def forward(self, x, double=False, more=None):
        y = self.linear(x) * (2 if double else 1)
        return Pair(y, {"sum": y.sum(), "none": None, "more": more["x"][0] * y})

    model = from_torch(module_of(forward, linear=nn.Linear(2, 2)))
    x = jnp.ones((3, 2))

    @jax.jit
    def call(params):
        return model.apply(params, x, double=True, more={"x": [x]})

    found = call(model.params)
    assert type(found) is Pair
    assert found.rest["none"] is None
    close(found.rest["more"], found.first)


class Several(list):
    pass


class Couple(tuple):
    pass


@pytest.mark.parametrize(
    "f",
    [lambda x: x.max(1), lambda x: Several([x, 2 * x]), lambda x: Couple([x.sum()])],
)
def test_lists_and_tuples_have_their_classes(f):
    x = jnp.arange(6.0).reshape(2, 3)
    want = f(torch.arange(6.0).reshape(2, 3))
    for run in (from_torch(f), jax.jit(from_torch(f))):
        found = run(x)
        assert type(found) is type(want)
        for y, z in zip(found, want, strict=True):
            close(y, z)
    assert len(jax.tree.leaves(jax.vmap(from_torch(f))(x[None]))) == len(want)


class Slots:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize(
    "f", [lambda x: {x}, lambda x: [collections.deque([x])], lambda x: Slots(x)]
)
def test_a_tensor_in_what_cannot_be_taken_apart_is_refused(f):
    with pytest.raises(TorchRefusal, match="inside a `(set|deque|Slots)`, which"):
        from_torch(f)(jnp.ones(2))


@pytest.mark.skipif(not models.HAS_TRANSFORMERS, reason="transformers is not installed")
def test_a_jitted_function_returns_a_model_output():
    module, kwargs = models.transformer("Llama", use_cache=True)
    model, tokens = from_torch(module), jnp_of(kwargs["input_ids"])

    @jax.jit
    def call(params):
        return model.apply(params, input_ids=tokens, output_hidden_states=True)

    found, want = call(model.params), module(**kwargs, output_hidden_states=True)
    assert type(found) is type(want)
    close(found.logits, want.logits)
    assert len(found.hidden_states) == len(want.hidden_states)
    assert type(found.past_key_values) is type(want.past_key_values)
    twice = jax.tree.map(lambda x: 2 * x, found)
    close(twice.logits, 2 * found.logits)


def test_only_the_results_that_count_are_differentiated():
    """PyTorch does not call the backward of a Function whose result has no gradient."""
    plus_one = torch_class(lambda ctx, x: 1 * x, lambda ctx, g: g + 1)
    module = module_of(
        lambda self, x: (self.a(x), plus_one.apply(self.b(x))),
        a=nn.Linear(2, 2),
        b=nn.Linear(2, 2),
    )
    model = from_torch(module)
    for _ in range(2):
        loss = lambda p: model.apply(p, jnp.ones(2))[0].sum()  # noqa: E731
        grads = jax.jit(jax.grad(loss))(model.params)
        close(grads["a.bias"], [1.0, 1.0])
        close(grads["b.bias"], [0.0, 0.0])
    grads = jax.grad(lambda p: model.apply(p, jnp.ones(2))[1].sum())(model.params)
    close(grads["b.bias"], [2.0, 2.0])


def test_the_model_is_as_it_was():
    module = nn.Linear(2, 2)
    model = from_torch(module)
    before = model.apply(model.params, jnp.ones(2))
    with torch.no_grad():
        module.weight.zero_()
    module.forward = lambda x: 0 * x
    close(model.apply(model.params, jnp.ones((2,))), before)
    close(model.apply(model.params, jnp.ones((1, 2)))[0], before)
    assert module.weight.grad is None


def test_eight_devices():
    if len(jax.devices()) < 8:
        pytest.skip("needs 8 devices")
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    model, x = from_torch(module), jnp_of(torch.randn(16, 16))
    loss = lambda p, x: (model.apply(p, x) ** 2).sum()  # noqa: E731
    want = jax.grad(loss)(model.params, x)
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=auto)

    def split(*spec):
        return jax.NamedSharding(mesh, jax.P(*spec))

    specs = {
        "0.weight": split("model", None),
        "0.bias": split("model"),
        "2.weight": split(None, "model"),
        "2.bias": split(),
    }
    params = jax.device_put(model.params, specs)
    got = jax.jit(jax.grad(loss))(params, jax.device_put(x, split("data", None)))
    for name, w in want.items():
        close(got[name], w)
    assert not got["0.weight"].sharding.is_fully_replicated


# ---- functions


def test_a_function_on_tensors():
    shift = torch.tensor([1.0, 2.0, 3.0])

    def f(x, power=2, *, scale=1.0):
        return {"y": torch.sin(x) * shift * scale**power}

    g = from_torch(f)
    assert g.__name__ == "f"
    x = jnp.ones(3)
    got = jax.jit(jax.grad(lambda x: g(x, scale=2.0)["y"].sum()))(x)
    close(got, np.cos(1) * np.array([1.0, 2.0, 3.0]) * 4)
    close(jax.vmap(g)(jnp.ones((2, 3)))["y"][0], np.sin(1) * np.array([1.0, 2.0, 3.0]))


SLOPE = 2.0


def scaled_by_a_global(x):
    return SLOPE * x


def test_it_sees_globals_and_what_it_closes_over_as_they_are_now(monkeypatch):
    setting = {"scale": 1.0}
    g = from_torch(lambda x: setting["scale"] * scaled_by_a_global(x))
    close(g(jnp.ones(2)), [2.0, 2.0])
    setting["scale"] = 5.0
    close(g(jnp.ones(2)), [10.0, 10.0])
    monkeypatch.setitem(globals(), "SLOPE", 3.0)
    close(g(jnp.ones(2)), [15.0, 15.0])


def test_a_lost_gradient_is_refused():
    weight = torch.ones(2, requires_grad=True)
    with pytest.raises(
        TypeError, match=r"closes over a tensor.*give from_torch the module"
    ):
        from_torch(lambda x: x * weight)


# ---- mistakes


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (lambda p: {}, r"`Linear.apply` expected a parameter `weight`"),
        (lambda p: p | {"wieght": 1.0}, r"`wieght`.*Did you mean `weight`"),
        (lambda p: p | {"bias": jnp.ones(3)}, r"`bias` of shape \(2,\), got \(3,\)"),
        (lambda p: [1], r"expected a dict of parameters.*got list"),
    ],
)
def test_wrong_parameters(params, message):
    model = from_torch(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=message):
        model.apply(params(model.params), jnp.ones(2))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (nn.LazyLinear(3), {}, r"`weight` of LazyLinear without a shape"),
        (3, {}, r"a module or a function on tensors, got 3"),
        (nn.Linear, {}, r"Of a module, pass an instance"),
        (torch.sin, {"mutable": True}, r"mutable=True for a torch.nn.Module alone"),
        (nn.Linear(1, 1), {"generate_jvp_rule": True}, r"has a jvp without it"),
    ],
)
def test_wrong_sources(source, options, message):
    with pytest.raises(TypeError, match=message):
        from_torch(source, **options)


def test_a_tensor_as_an_argument():
    model = from_torch(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"torch.Tensor of shape \(2,\).*jnp.asarray"):
        model.apply(model.params, torch.ones(2))


def test_what_cannot_be_traced_is_refused():
    lost = lambda y, x: y[torch.nonzero(x.sum(-1) > 0)[:, 0]]  # noqa: E731
    model = from_torch(models.Then(nn.Linear(2, 2), lost))
    with pytest.raises(TorchRefusal, match=r"`Then.apply` \(.*test_model_usage.py:"):
        model.apply(model.params, jnp.ones((3, 2)))


def test_or_runs_on_the_host():
    by_value = lambda y, x: y * float(x.detach().sum().numpy())  # noqa: E731
    module = models.Then(nn.Linear(2, 2), by_value)
    same_gradients(module, torch.randn(3, 2), fallback="host")


def test_importing_it_imports_no_package_of_models():
    import subprocess
    import sys

    program = (
        "import jaxfn.torch, sys; "
        "print([x for x in ('transformers', 'triton') if x in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert run.stdout.strip() == "[]", run.stderr


def test_the_public_names():
    assert {"TorchModel", "from_torch", "compare"} <= set(jaxfn.torch.__all__)
    assert isinstance(from_torch(nn.Linear(1, 1)), jaxfn.torch.TorchModel)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_backward_with_a_condition_on_its_gradient(sign):
    """As Liger's loss has, which skips a product by one."""

    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return 2 * g * y if g.sum() > 0 else 5 * g * y

    asks = torch_class(forward, backward)
    module = models.Then(nn.Linear(3, 3), lambda y, _: asks.apply(y))
    gradient = same_gradients(module, torch.randn(3), lambda y: sign * y.sum())
    assert str(jax.make_jaxpr(gradient)(jnp.ones(3))).count(" tanh ") == 1


def unknown(_, x):
    """Two operations without a row in the table."""
    return torch.special.bessel_j0(x) + torch.special.airy_ai(x)


def test_a_refusal_names_all_operations_and_their_module():
    inner = nn.Sequential(module_of(unknown))
    model = from_torch(nn.Sequential(nn.Linear(2, 2), inner))
    seen = r"test_model_usage.py:\d+, in 1.0\).*bessel_j0.*Nor does it have: .*airy_ai"
    with pytest.raises(TorchRefusal, match=seen):
        model.apply(model.params, jnp.ones(2))


def test_a_missing_argument_is_pythons_own_error():
    model = from_torch(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"forward\(\) missing 1 required positional"):
        model.apply(model.params)


CALLS = []


def refused(x):
    CALLS.append(1)
    return torch.special.airy_ai(x)


def test_a_refusal_is_remembered():
    CALLS.clear()
    g = from_torch(refused)
    for _ in range(3):
        with pytest.raises(TorchRefusal, match="airy_ai"):
            jax.grad(lambda x: g(x).sum())(jnp.ones(2))
    assert len(CALLS) == 1


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return 2 * found if func is torch.sin else found


def test_a_mode_of_others_is_refused_and_leaves_no_trace():
    f = from_torch(lambda x: torch.sin(x))
    with (
        Doubling(),
        pytest.raises(TorchRefusal, match=r"Doubling.*outside of that mode"),
    ):
        f(jnp.ones(2))
    close(f(jnp.ones(2)), np.sin([1.0, 1.0]))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.softmax(x, -1),
        lambda x: torch.log_softmax(x, -1),
        lambda x: torch.cumsum(x, -1),
        lambda x: torch.logcumsumexp(x, -1),
        lambda x: torch.var(x, -1),
        lambda x: torch.linalg.vector_norm(x, dim=-1),
        lambda x: nn.functional.group_norm(x[:, :, None], 2),
        lambda x: nn.functional.layer_norm(x, x.shape[-1:]),
    ],
)
def test_half_precision_is_rounded_once(f):
    """As PyTorch does, which adds up in single precision."""
    x = torch.randn(4, 64).to(torch.bfloat16)
    got = jax.jit(from_torch(f))(jnp.asarray(x.float().numpy(), jnp.bfloat16))
    want = f(x.double()).numpy()
    rounding = np.abs(np.asarray(got.astype(jnp.float32)) - want) / np.abs(want).max()
    assert rounding.max() < 0.6 * float(jnp.finfo(jnp.bfloat16).eps)


# ---- what a module leaves behind


def clips(self, x):
    with torch.no_grad():
        self.weight.clamp_(-1, 1)
    return self.weight * x


def test_a_write_to_a_parameter_is_refused_even_if_mutable():
    weight = nn.Parameter(torch.tensor([3.0, -3.0]))
    model = from_torch(module_of(clips, weight=weight), mutable=True)
    with pytest.raises(TorchRefusal, match="a write to `weight`"):
        model.apply(model.params, jnp.ones(2))


HIDDEN = nn.Linear(2, 2)


def with_a_global_module(x):
    return HIDDEN(x)


def test_a_parameter_that_nobody_passes_is_refused():
    with pytest.raises(TorchRefusal, match=r"its gradient would be lost"):
        from_torch(with_a_global_module)(jnp.ones(2))
    # A list, and no ModuleList: PyTorch does not know them.
    hiding = module_of(lambda self, x: self.parts[0](x), parts=[nn.Linear(2, 2)])
    with pytest.raises(TorchRefusal, match=r"its gradient would be lost"):
        from_torch(hiding).apply({}, jnp.ones(2))


# ---- what JAX gets


def test_no_operation_of_forward_is_differentiated_by_jax(monkeypatch):
    """A row may have no derivative in JAX, as a kernel of Triton has none."""

    @jax.custom_jvp
    def tanh(x):
        return jnp.tanh(x)

    @tanh.defjvp
    def _(primals, tangents):
        raise AssertionError("JAX differentiates a row")

    monkeypatch.setitem(_ops.ROWS, "aten.tanh", dataclasses.replace(ROW, fn=tanh))
    # The result of tanh is a residual, and no result of the model.
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model, x = from_torch(module), torch.randn(3)
    want = torch.autograd.functional.hessian(lambda x: module(x).sum(), x)
    close(jax.hessian(lambda x: model.apply(model.params, x).sum())(jnp_of(x)), want)


class Caches(torch.nn.Module):
    """Keeps a mask and a scale, which it may make at the first call."""

    def __init__(self, *, kept=False):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.mask = torch.tril(torch.ones(4, 4)) if kept else None
        self.cache = {"scale": torch.full((4,), 2.0)} if kept else {}
        self.list = [torch.ones(4)]

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.tril(torch.ones(4, 4))
        if "scale" not in self.cache:
            self.cache["scale"] = torch.full((4,), 2.0)
        return self.linear(x) @ self.mask * self.cache["scale"] + self.list[0]


def test_tensors_that_a_module_keeps_beside_its_buffers():
    module = Caches(kept=True)
    model, x = from_torch(module), jnp.ones((2, 4))
    grad = jax.jit(jax.grad(lambda p: model.apply(p, x).sum()))
    for _ in range(2):
        got = grad(model.params)["linear.bias"]
        np.testing.assert_array_equal(got, [4, 8, 12, 16])
    with torch.no_grad():
        expected = module(torch.ones(2, 4)).numpy()
    np.testing.assert_allclose(model.apply(model.params, x), expected, rtol=1e-6)


def test_what_a_module_makes_at_the_first_call_is_there_after_a_call():
    """It may be a counter as well: only the module itself knows."""
    module, x = Caches(), jnp.ones((2, 4))
    model = from_torch(module)
    with pytest.raises(TorchRefusal, match="a write to `mask`.* `cache`"):
        model.apply(model.params, x)
    assert module.mask is None
    with torch.no_grad():
        expected = module(torch.ones(2, 4)).numpy()
    again = from_torch(module)
    np.testing.assert_allclose(again.apply(again.params, x), expected, rtol=1e-6)


def test_a_view_of_a_buffer_is_no_constant():
    mean = nn.Buffer(torch.zeros(4))
    half = {"of": [mean[:2]]}
    module = module_of(lambda self, x: x * self.half["of"][0], mean=mean, half=half)
    model = from_torch(module)
    with pytest.raises(TorchRefusal, match="of a parameter or a buffer before"):
        model.apply({}, jnp.ones(2))


class Counts(Caches):
    """Keeps what depends on an argument, or on the call before."""

    def __init__(self, change):
        super().__init__(kept=True)
        self.n, self.last, self.change = torch.zeros(()), None, change
        self.deep = {"a": {"b": torch.zeros(4)}, "object": types.SimpleNamespace()}
        self.register_buffer("empty", None)

    def forward(self, x):
        self.change(self, x)
        return super().forward(x) + self.n


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m, _: setattr(m, "n", m.n + 1), "a write to `n`"),
        (lambda m, _: m.n.add_(1), "it writes to a tensor that is not an argument"),
        (
            lambda m, x: setattr(m, "last", x if m.last is None else m.last * 1),
            "`last`",
        ),
        (lambda m, x: setattr(m, "last", x * isinstance(m.last, torch.Tensor)), "last"),
        (lambda m, x: setattr(m, "n", x.sum() + m.n.numel()), "a write to `n`"),
        (lambda m, _: m.list.append(torch.ones(3)), "a write to `list`"),
        (lambda m, _: m.deep["a"].update(b=torch.ones(4)), "to `deep`"),
        (lambda m, x: setattr(m.deep["object"], "c", x), "to `deep`"),
        (lambda m, x: setattr(m, "empty", x.sum()), "a write to `empty`"),
    ],
)
def test_what_a_module_keeps_of_a_call_is_refused(change, words):
    model = from_torch(Counts(change), random=True)
    with pytest.raises(TorchRefusal, match=words):
        model.apply(model.params, jax.random.key(0), jnp.ones((2, 4)))


@pytest.mark.parametrize(
    "value",
    [
        lambda x: x.sum(),
        lambda x: torch.zeros(4).copy_(x[0]),
        lambda _: torch.rand(()),
        lambda _: torch.zeros(3),
    ],
)
def test_a_tensor_that_is_kept_and_never_read_is_no_state(value):
    """Attention weights are kept for inspection, which a model in JAX does not have."""
    module = Counts(lambda m, x: setattr(m, "last", value(x)))
    model = from_torch(module, random=True)
    module.change = lambda m, x: None
    want = module(torch.ones(2, 4))
    got = model.apply(model.params, jax.random.key(0), jnp.ones((2, 4)))
    close(got, want)
    with pytest.raises(AttributeError, match="has no `last`"):
        _ = model.last


def test_check_of_a_model_takes_its_arguments_too():
    model = from_torch(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()))
    x = jnp.ones((4, 3))
    assert jaxfn.check(model.apply, model.params, x, order=1).ok
    report = jaxfn.check(lambda params: model.apply(params, x), model.params)
    assert "closes over arrays of another dtype" in report.failures[0].message


def with_backward(rule):
    product = torch_class(lambda ctx, x, w: x * w, rule)
    weight = nn.Parameter(torch.ones(3))
    return module_of(lambda self, x: product.apply(x, self.w), "Layer", w=weight)


WRONG = {
    "count": (lambda ctx, g: g, "PyTorch raises: .*incorrect number of gradients"),
    "shape": (lambda ctx, g: (g, g[:, :2]), "PyTorch raises: .*invalid gradient"),
    "kind": (lambda ctx, g: (g, 3), "PyTorch raises: expected Variable or None"),
    "numpy": (lambda ctx, g: (g, torch.tensor(g.numpy())), "without values.*host"),
}


@pytest.mark.parametrize(("rule", "words"), WRONG.values(), ids=list(WRONG))
def test_a_wrong_backward_in_a_module(rule, words):
    model = from_torch(with_backward(rule))
    grad = jax.grad(lambda params: model.apply(params, jnp.ones((2, 3))).sum())
    with pytest.raises(TorchRefusal, match=rf"(?s)`Layer.apply and.*{words}"):
        grad(model.params)


def test_a_refusal_by_jax_names_the_model():
    mesh = jax.make_mesh((1,), ("data",))
    model = from_torch(nn.Linear(3, 2))
    x = jax.device_put(jnp.ones((4, 3)), jax.NamedSharding(mesh, jax.P("data")))
    loss = lambda params: model.apply(params, x).sum()  # noqa: E731
    words = r"`Linear\.apply.*axis_types=\(jax\.sharding\.AxisType\.Auto,\)"
    with jax.set_mesh(mesh), pytest.raises(TorchRefusal, match=f"(?s){words}"):
        jax.jit(jax.grad(loss))(model.params)


GROUPS = {  # which axis has the groups
    "rows": ((8, 4), (3, 4, 4)),
    "contracted": ((4, 8), (8, 4)),
    "columns": ((3, 4, 4), (4, 8)),
}


@pytest.mark.parametrize(("of_a", "of_b"), GROUPS.values(), ids=list(GROUPS))
def test_products_by_groups(of_a, of_b):
    """As those of experts, of which one gets no rows."""
    offs = torch.tensor([3, 3, 8], dtype=torch.int32)
    run = lambda a, b: torch.nn.functional.grouped_mm(a, b, offs=offs)  # noqa: E731
    a, b = torch.randn(of_a), torch.randn(of_b)
    close(from_torch(run)(jnp_of(a), jnp_of(b)), run(a, b))
    if of_a == (8, 4):  # the one that torch differentiates
        a, b = a.requires_grad_(), b.requires_grad_()
        want = torch.autograd.grad(run(a, b).pow(2).sum(), (a, b))
        loss = lambda a, b: (from_torch(run)(a, b) ** 2).sum()  # noqa: E731
        grads = jax.jit(jax.grad(loss, (0, 1)))(jnp_of(a), jnp_of(b))
        for got, expected in zip(grads, want, strict=True):
            close(got, expected)


def test_a_histogram():
    x = torch.tensor([-1.0, 0.0, 0.5, 1.0, 1.0, 4.0, 5.0])
    for options in ((4, 0, 4), (3, 0, 0), (2, 1, 1)):
        run = lambda x, o=options: torch.histc(x, *o)  # noqa: E731
        assert from_torch(run)(jnp_of(x)).tolist() == run(x).tolist()


@pytest.mark.parametrize("method", [False, True])
def test_the_inverse_of_a_spectrogram(method):
    """Torch reads whether the windows leave out a sample."""

    def run(x, window):
        s = torch.stft(x, 16, 4, window=window, return_complex=True) * 2
        if method:
            return s.istft(16, 4, window=window)
        return torch.istft(s, 16, 4, window=window, length=x.shape[-1])

    x, window = torch.randn(2, 64), torch.hann_window(16)
    xs = x.requires_grad_(), window.requires_grad_()
    want = torch.autograd.grad((run(*xs) ** 2).sum(), xs)
    loss = lambda *xs: (from_torch(run)(*xs) ** 2).sum()  # noqa: E731
    got = jax.jit(jax.grad(loss, (0, 1)))(*[jnp_of(x.detach()) for x in xs])
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)


def test_operations_on_lists_of_tensors():
    def run(x, y):
        found = torch._foreach_mul([x, y], 2.0)
        found = torch._foreach_add(found, [y, x])
        torch._foreach_mul_(found, [3.0, 5.0])
        norms = torch._foreach_norm(found)
        return torch._foreach_sqrt(norms)[0] + found[1].sum()

    xs = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0])
    want = torch.autograd.grad(run(*xs), xs[0])[0]
    arrays = [jnp_of(x.detach()) for x in xs]
    close(jax.grad(from_torch(run))(*arrays), want)
