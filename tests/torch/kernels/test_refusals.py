"""What is refused around launches: by name, with the line that launches."""

import threading

import jax
import jax.numpy as jnp
import pytest
import torch
import triton

import jaxfn
import jaxfn.torch
from tests.torch.kernels import functions, refused

X = jnp.arange(1.0, 9.0)


def message(f, *args):
    with pytest.raises(Exception) as caught:  # noqa: PT011  (its words are compared)
        jax.block_until_ready(f(*args))
    return str(caught.value)


@pytest.mark.parametrize("name", refused.CASES)
def test_refused(name):
    kind, words, n = refused.CASES[name]
    apply = jaxfn.torch.from_torch(kind).apply
    args = (X, jnp.float32(1.0))[:n]
    for f in (apply, jax.jit(apply)):
        text = message(f, *args)
        for word in words:
            assert word in text, text
        assert "refused.py" in text
    if "outside" not in name and "before" not in name:
        return
    assert kind.__name__ in message(apply, *args)


def test_the_class_and_the_rule_are_named():
    kind, _, _ = refused.CASES["tuple_of_tensors"]
    with pytest.raises(jaxfn.torch.TorchRefusal) as caught:
        jaxfn.torch.from_torch(kind).apply(X)
    assert caught.value.name == "tuple_of_tensors"
    assert caught.value.rule == "forward"
    assert "refused.py" in caught.value.where


def test_a_second_derivative():
    apply = jaxfn.torch.from_torch(functions.Square).apply
    first = jax.grad(lambda x: apply(x).sum())
    assert (first(X) == 2 * X).all()
    for transform in (lambda f: f, jax.jit):
        text = message(transform(jax.grad(lambda x: first(x).sum())), X)
        for word in ("Square.backward", "product_kernel", "a Function of its own"):
            assert word in text
        assert "functions.py" in text


def test_check_skips_the_second_derivative():
    report = jaxfn.check(jaxfn.torch.from_torch(functions.Square), X, precision="given")
    assert report.ok, str(report)
    (row,) = [x for x in report.results if x.check == "backward of backward"]
    assert row.message == "a kernel has no derivative of its own"


class WritesToSaved(torch.autograd.Function):
    """Its backward writes its results to what forward saved, as kernels do."""

    @staticmethod
    def forward(ctx, x):
        x = x.view(-1)
        ctx.save_for_backward(x)
        return functions.scaled(x * x, 1.0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        functions.scaled(2 * g * x, 3.0, out=x)
        return x.view(2, 4)


class Squares(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.a = torch.nn.Parameter(torch.arange(1.0, 9.0).view(2, 4))
        self.function = function

    def forward(self):
        return self.function.apply(self.a * 1)


@pytest.mark.parametrize("fallback", [None, "host"])
@pytest.mark.parametrize("kind", [functions.Square, WritesToSaved])
@pytest.mark.parametrize("mode", [jax.grad, jax.jacfwd])
def test_a_second_derivative_of_a_model(kind, fallback, mode):
    """On the host too, where PyTorch gives none and says nothing."""
    model = jaxfn.torch.from_torch(Squares(kind), fallback=fallback)
    first = jax.grad(lambda params: model.apply(params).sum())
    assert first(model.params)["a"].any()
    second = mode(lambda params: first(params)["a"].sum())
    assert "has no derivative" in message(second, model.params)


class KeepsATensor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return functions.scaled(x * refused.kept(len(x)), 2.0)

    @staticmethod
    def backward(ctx, g):
        return functions.scaled(g * refused.kept(len(g)), 2.0)


def test_a_tensor_that_a_function_keeps_between_traces():
    refused.kept.cache_clear()
    apply = jaxfn.torch.from_torch(KeepsATensor).apply
    grad = jax.grad(lambda x: apply(x).sum())
    for _ in range(2):  # the first trace makes the tensor, and gives it its values
        assert (grad(X) == 2 * jnp.arange(8)).all()
    assert type(refused.kept(len(X))) is torch.Tensor


def test_nothing_stays_replaced():
    def state():
        return (
            triton.runtime.JITFunction.run,
            triton.runtime.Autotuner.run,
            dict(vars(torch.cuda)),
            triton.runtime.driver.__dict__["_active"],
            vars(type(torch.empty(1))).get("device"),
        )

    before = state()
    apply = jaxfn.torch.from_torch(functions.Scale).apply
    jax.grad(lambda x: apply(x).sum())(X)
    assert state() == before
    for name in ("tuple_of_tensors", "reads_outside", "wrong_keyword"):
        message(jaxfn.torch.from_torch(refused.CASES[name][0]).apply, X)
        assert state() == before


def test_launches_of_other_threads_reach_triton():
    inside, done = threading.Event(), threading.Event()
    seen = []

    def launch():
        inside.wait(60)
        for _ in range(50):
            try:  # there is no GPU here, or there is: both are Triton's own
                functions.scale_kernel[(1,)](
                    torch.ones(8), torch.ones(8), 8, 2.0, BLOCK=8
                )
                seen.append("launched")
            except Exception as error:  # noqa: BLE001
                seen.append(type(error).__name__)
            seen.append(torch.cuda.is_available())
        done.set()

    available = torch.cuda.is_available()
    thread = threading.Thread(target=launch)
    thread.start()

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = functions.scaled(x, 2.0)
            inside.set()
            assert done.wait(60)
            return functions.scaled(y, 3.0)

        @staticmethod
        def backward(ctx, g):
            return g

    found = jaxfn.torch.from_torch(Slow).apply(X)
    thread.join()
    assert (found == 6 * X).all()
    assert len(seen) == 100
    assert set(seen[1::2]) == {available}
    assert "LaunchSeen" not in seen
    assert "GuardError" not in seen
    if not available:
        assert set(seen[::2]) == {"RuntimeError"}


def test_a_kernel_that_is_defined_again(monkeypatch):
    apply = jaxfn.torch.from_torch(functions.Scale).apply
    assert (apply(X) == 3 * X).all()
    monkeypatch.setattr(functions, "scale_kernel", refused.other_kernel)
    assert (apply(X) == 4 * X).all()


def test_a_global_that_a_kernel_reads_and_that_changes(monkeypatch):
    apply = jaxfn.torch.from_torch(refused.ReadsGlobal).apply
    assert (apply(X) == 2 * X).all()
    monkeypatch.setattr(refused, "FACTOR", refused.tl.constexpr(5.0))
    text = message(apply, X)
    assert "FACTOR" in text
    assert "global_kernel" in text


def test_with_x64_a_pointer_can_be_recast():
    with jax.enable_x64(True):
        apply = jaxfn.torch.from_torch(refused.CASES["recast"][0]).apply
        assert (apply(jnp.ones(8, jnp.float32)) == jnp.arange(8)).all()
