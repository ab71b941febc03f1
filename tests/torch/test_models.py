"""Whole models: outputs and all gradients are PyTorch's."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxfn.torch
from jaxfn.torch import TorchRefusal, compare, from_torch
from jaxfn.torch._base import experimental
from tests.torch import models, stubs
from tests.torch.models import module_of


def agrees(module, *args, kwargs=None, order=1, **options):
    report = compare(
        from_torch(module, **options), module, *args, kwargs=kwargs, order=order
    )
    assert report.ok, str(report)
    # A comparison of nothing would agree, too.
    assert len(report.results) > len(dict(module.named_parameters())) / 2
    return report


@pytest.mark.parametrize("name", models.NETWORKS)
def test_a_network(name):
    torch.manual_seed(0)
    make, args = models.NETWORKS[name]
    agrees(make(), *args())


@pytest.mark.parametrize("name", ["mlp", "GRU", "a surrogate gradient"])
def test_its_second_derivative(name):
    torch.manual_seed(0)
    make, args = models.NETWORKS[name]
    report = agrees(make(), *args(), order=2)
    second = [r for r in report.results if r.check.startswith("second derivative of")]
    assert second
    assert all(r.status == "ok" for r in second)


def test_what_torch_itself_can_not_trace_has_a_way_out():
    def curvature(self, x):
        of_one = torch.func.hessian(lambda x: self.net(x).sum())
        return torch.func.vmap(of_one)(x)

    net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh())
    model, x = from_torch(module_of(curvature, net=net)), jnp.ones((3, 2))
    assert model.apply(model.params, x).shape == (3, 2, 2)
    with pytest.raises(TorchRefusal, match=r"jacfwd\(grad\(f\)\) for hessian\(f\)"):
        jax.grad(lambda params: model.apply(params, x).sum())(model.params)


@pytest.mark.skipif(not models.HAS_TRANSFORMERS, reason="transformers is not installed")
@pytest.mark.parametrize("name", models.TRANSFORMERS)
def test_a_model_of_transformers(name):
    torch.manual_seed(0)
    module, kwargs = models.transformer(name)
    agrees(module, kwargs=kwargs)


@pytest.mark.skipif(not models.HAS_TIMM, reason="timm is not installed")
@pytest.mark.parametrize(
    ("name", "size"),
    [("resnet10t", 32), ("vit_tiny_patch16_224", 32), ("mobilenetv3_small_050", 32)],
)
def test_a_model_of_timm(name, size):
    torch.manual_seed(0)
    with stubs.stubbed() as finder:
        timm = stubs.load(finder, "timm")
        options = {"img_size": size} if name.startswith("vit") else {}
        module = timm.create_model(name, num_classes=3, **options).eval()
    agrees(module, torch.randn(2, 3, size, size))


def test_a_wrong_parameter_is_found():
    torch.manual_seed(0)
    module = models.Spiking()
    model = from_torch(module)
    model.params["enter.weight"] = 1.1 * model.params["enter.weight"]
    report = compare(model, module, torch.randn(3, 4), order=1)
    assert not report.ok
    assert report.failures[0].check == "gradient of enter.weight"


def test_a_model_that_writes_is_recorded_by_jaxfn(monkeypatch):
    """Torch's own tracer takes three times as long."""
    monkeypatch.setattr(experimental, "functional_by_torch", None)
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 2)
    )
    agrees(module, torch.randn(2, 3))


def unknown(self, x):
    y = torch.ormqr(x, x[0], x)  # has no row
    return y * 2


def test_a_refusal_in_a_model_that_writes_names_the_place():
    module = torch.nn.Sequential(torch.nn.ReLU(inplace=True), module_of(unknown))
    model = from_torch(module)
    with pytest.raises(jaxfn.torch.TorchRefusal, match="in 1.*ormqr") as refusal:
        model.apply({}, 2 * jnp.ones((3, 3)))
    first = unknown.__code__.co_firstlineno
    assert f"test_models.py:{first + 1}, in 1" in str(refusal.value)


def test_a_module_that_has_changed_is_named():
    module = torch.nn.Linear(3, 2)
    model = from_torch(module)
    with torch.no_grad():
        module.weight.mul_(2.0)
    report = compare(model, module, torch.ones(3), order=1)
    words = "`weight` has another value.* call from_torch"
    assert re.search(words, report.failures[0].message)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m, x: compare(m, from_torch(m), x), "got the module Linear"),
        (
            lambda m, x: compare(from_torch(m), m, from_torch(m).params, x),
            "expected the others alone",
        ),
    ],
)
def test_arguments_of_compare_in_other_places(call, words):
    with pytest.raises(TypeError, match=words):
        call(torch.nn.Linear(3, 2), torch.ones(3))


def test_check_of_a_batch_norm():
    """It computes in float64: the buffers must do so too."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).eval()
    module[1].running_mean.uniform_()
    module[1].running_var.uniform_(0.5, 2.0)
    model = from_torch(module)
    x = jnp.array(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    report = jaxfn.check(model.apply, model.params, x, seed=0)
    assert report.ok, str(report)


@pytest.mark.parametrize("writes", [False, True])
def test_residuals_are_those_of_autograd(writes):
    """No parameter is saved again, and no view of one; and forward runs once."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(inplace=True) if writes else torch.nn.Tanh(),
        torch.nn.Linear(64, 64),
    )
    model, x = from_torch(module), jnp.ones((3, 64))
    loss = lambda p: (model.apply(p, x) ** 2).sum()  # noqa: E731
    _, pull = jax.vjp(loss, model.params)
    saved = [leaf for leaf in jax.tree.leaves(pull) if hasattr(leaf, "nbytes")]
    weights = sum(p.nbytes for p in model.params.values())
    # The arguments, the input, tanh and the output.
    assert sum(leaf.nbytes for leaf in saved) <= weights + 4 * x.nbytes
    program = str(jax.make_jaxpr(jax.grad(loss))(model.params))
    assert program.count(" tanh ") == (not writes)


def test_explain_shows_the_graphs_of_a_module():
    report = jaxfn.torch.explain(models.Spiking(), torch.randn(3, 4))
    assert report.ok
    assert report.forward.operations["aten.addmm.default"] == 2
    assert report.backward.operations["aten.abs.default"] == 1  # of its own backward
    assert "models.py" in str(report)


def test_compare_takes_new_buffers_and_results_in_dicts():
    def forward(self, x):
        y = self.norm(x) ** 2
        return {"z": y, "a": y.sum(), "again": y}

    module, x = module_of(forward, norm=torch.nn.BatchNorm1d(3)), torch.randn(5, 3)
    report = agrees(module, x, mutable=True)
    assert sum(r.check.startswith("output") for r in report.results) == 5
    assert int(module.norm.num_batches_tracked) == 0
    with pytest.raises(TypeError, match="skip and precision for a Function alone"):
        compare(from_torch(module), module, x, precision="given")


def test_compare_of_numbers_beside_tensors_and_of_indices():
    """JAX's int32 is PyTorch's int64, which its losses want."""

    def forward(self, x, target):
        loss = torch.nn.functional.cross_entropy(self.layer(x), target)
        return loss, 0.5, target

    module = module_of(forward, layer=torch.nn.Linear(4, 4))
    target = jnp.array([1, 0, 3])
    report = compare(from_torch(module), module, jnp.ones((3, 4)), target)
    assert report.ok, str(report)


def only_without_values(self, x):
    if type(x) is torch.Tensor:
        raise ValueError("not here")
    return self.layer(x)


def test_compare_says_that_pytorch_raised():
    module = module_of(only_without_values, layer=torch.nn.Linear(4, 4))
    with pytest.raises(RuntimeError, match="`Net` raised in PyTorch: V"):
        compare(from_torch(module), module, jnp.ones((3, 4)))
    model = from_torch(torch.nn.Dropout(), random=True)
    with pytest.raises(TypeError, match="draws random numbers"):
        compare(model, torch.nn.Dropout(), jnp.ones(3))


def returns(k=3, detach=False):
    def forward(self, x):
        y = self.w * (x.detach() if detach else x)
        return y, k, y.argmax()

    return module_of(forward, w=torch.nn.Parameter(torch.ones(3)))


def test_compare_sees_all_outputs_and_the_gradients_of_arguments():
    x = jnp.arange(3.0)
    assert compare(from_torch(returns()), returns(), x).ok
    report = compare(from_torch(returns(k=4)), returns(), x)
    assert [r.message for r in report.failures] == ["expected 3, got 4"]
    (failure,) = compare(from_torch(returns(k=None)), returns(), x).failures
    assert failure.message == "expected 1 float outputs and 2 others, got 1 and 1"
    report = compare(from_torch(returns(detach=True)), returns(), x)
    assert report.failures[0].check == "gradient of argument 0"


INDICES = torch.nn.Sequential(
    torch.nn.Linear(3, 2), module_of(lambda self, x: x.argmax(-1))
)


@pytest.mark.parametrize("run", [torch.nn.Tanh(), torch.nn.Flatten(0), INDICES])
def test_compare_of_a_module_without_parameters_or_gradients(run):
    assert compare(from_torch(run), run, jnp.ones((2, 3))).ok


def test_compare_skips_second_derivatives_that_kernels_lack():
    swiglu = pytest.importorskip("liger_kernel.ops.swiglu")
    multiply = swiglu.LigerSiLUMulFunction.apply
    module = module_of(
        lambda self, x: multiply(x * self.w, x + self.w),
        w=torch.nn.Parameter(torch.ones(4)),
    )
    report = compare(from_torch(module), module, jnp.ones((2, 4)))
    assert report.ok, str(report)
    (skipped,) = report.skipped
    assert skipped.check == "second derivative"


class Checkpointed(torch.nn.Module):
    """Attention and a batch norm, which run a second time in backward."""

    def __init__(self, reentrant):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(3)
        self.reentrant = reentrant

    def inner(self, x):
        y = self.layer(x)
        y = torch.nn.functional.scaled_dot_product_attention(y, y, y)
        return self.norm(y)

    def forward(self, x):
        checkpoint = torch.utils.checkpoint.checkpoint
        x = x * self.layer.weight[0]
        return checkpoint(self.inner, x, use_reentrant=self.reentrant).square()


@pytest.mark.parametrize("reentrant", [False, True])
def test_compare_of_a_module_with_a_checkpoint(reentrant):
    module, x = Checkpointed(reentrant), torch.randn(2, 3, 4)
    before = module.layer.weight.grad = torch.ones(4, 4)
    model = from_torch(module, mutable=True)
    report = compare(model, module, x)
    assert report.ok, str(report)
    second = [r for r in report.results if r.check.startswith("second derivative")]
    if reentrant:  # PyTorch has none
        assert [r.status for r in second] == ["skipped"]
        assert "use_reentrant=True" in second[0].message
    else:
        assert [r.status for r in second] == ["ok"] * 5
    assert module.layer.weight.grad is before
    assert (before == 1).all()
    assert module.layer.bias.grad is None
    assert int(module.norm.num_batches_tracked) == 0
    other = Checkpointed(reentrant)
    other.load_state_dict(module.state_dict())
    other.layer.weight.register_hook(lambda g: 2 * g)
    (failure,) = compare(model, other, x, order=1).failures
    assert failure.check == "gradient of layer.weight"


@pytest.mark.parametrize("frozen_first", [True, False])
def test_compare_of_other_parameters_is_refused(frozen_first):
    module = torch.nn.Linear(3, 2)
    module.bias.requires_grad_(not frozen_first)
    model = from_torch(module)
    module.bias.requires_grad_(frozen_first)
    text = "expected ['bias'], got []" if frozen_first else "expected [], got ['bias']"
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        compare(model, module, jnp.ones(3))
    assert "Call from_torch(module) again" in str(caught.value)


def test_compare_of_a_compiled_module_with_the_module_is_refused():
    module = torch.nn.Linear(3, 2)
    model = from_torch(torch.compile(module))
    with pytest.raises(
        ValueError, match=r"`Linear` .* got \['_orig_mod.bias', '_orig_mod"
    ):
        compare(model, module, jnp.ones(3))


def single_precision_inside(scale=1.0):
    """A module whose softmax is in float32, as in many of today's transformers."""

    def forward(self, x):
        return torch.softmax(self.linear(x).float(), -1).to(x.dtype) * scale

    return module_of(forward, linear=torch.nn.Linear(4, 4))


@pytest.mark.parametrize(("scale", "right"), [(1.0, True), (1.002, False)])
def test_compare_allows_for_parts_in_less_precision(scale, right):
    torch.manual_seed(0)
    module = single_precision_inside().double()
    other = single_precision_inside(scale).double()
    other.load_state_dict(module.state_dict())
    with jax.enable_x64(True):
        x = jnp.linspace(-1, 1, 400).reshape(100, 4)
        report = compare(from_torch(other), module, x)
    assert report.ok == right
    if right:
        assert any("it computes in float32, too" in r.message for r in report.results)
    else:
        assert {"forward", "backward"} == set(report.wrong_rules)


def one_output_in_low_precision(scale=1.0):
    def forward(self, x):
        y = self.linear(x)
        return y * scale, (y.to(torch.bfloat16) * scale).float()

    return module_of(forward, linear=torch.nn.Linear(4, 4))


def test_another_output_in_low_precision_allows_for_nothing():
    torch.manual_seed(0)
    module, other = one_output_in_low_precision(), one_output_in_low_precision(1.01)
    other.load_state_dict(module.state_dict())
    report = compare(from_torch(other), module, jnp.linspace(-1, 1, 12).reshape(3, 4))
    assert [r.check for r in report.failures if r.rule == "forward"] == ["output 0"]
