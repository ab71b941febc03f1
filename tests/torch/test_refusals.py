"""Each refusal names class, rule, file, line, operation and the way out."""

from __future__ import annotations

import inspect
import random
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import Function

import jaxfn.torch
from jaxfn.torch import TorchRefusal, from_torch
from jaxfn.torch._base import experimental

from .classes import torch_class

BUFFER = torch.zeros(2)
LAYER = torch.nn.Linear(2, 2)


def passes(ctx, g):
    return g


def refused(forward, backward=passes):
    """A class whose forward (or backward) has a line that ends in `# here`."""
    return torch_class(forward, backward, "Refused")


def set_data(ctx, x):
    y = x.clone()
    y.data = x * 2  # here
    return y


def set_storage(ctx, x):
    y = x.clone()
    y.set_(x * 2)  # here
    return y


def by_python(ctx, x):
    return x * random.random()


def by_numpy(ctx, x):
    return x * float(np.random.rand())


@pytest.mark.parametrize("fallback", [None, "host"])
@pytest.mark.parametrize("draw", [by_python, by_numpy])
def test_a_draw_that_torch_does_not_make(draw, fallback):
    """A trace would repeat its number; in torch each call draws another one."""
    apply = from_torch(refused(draw), fallback=fallback).apply
    with pytest.raises(TorchRefusal, match=r"a draw by Python's random .* random=True"):
        apply(jnp.ones(2))


def test_a_draw_of_a_backward_that_torch_does_not_make():
    apply = from_torch(refused(lambda ctx, x: x * 2, by_python)).apply
    with pytest.raises(TorchRefusal, match=r"Refused.backward.* a draw by Python's"):
        jax.grad(lambda x: apply(x).sum())(jnp.ones(2))


def loop(ctx, x):
    while x.sum() > 1:  # here
        x = x / 2
    return x


def early_exit(ctx, x):
    for _ in range(40):
        if x.sum() < 1:  # here
            break
        x = x / 2
    return x


def by_cond(ctx, x):
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))  # here


def by_type(ctx, x):
    return x * 2 if type(x) is torch.Tensor else x * 3  # here


def to_int(ctx, x):
    return x[: int(x.sum())]  # here


def one_position(ctx, x):
    return x[x.argmax()]  # here


def resized(ctx, x):
    size = x.long().sum(), 2
    return torch.nn.functional.interpolate(x[None, None, None], size)  # here


def to_float(ctx, x):
    return x * np.exp(float(x.sum()))  # here


def masked(ctx, x):
    return x[x > 0].sort()[0]  # here


def to_numpy(ctx, x):
    return torch.from_numpy(np.sin(x.detach().numpy()))  # here


def draws(ctx, x):
    return x * torch.rand_like(x)  # here


def writes_closed_over(ctx, x):
    BUFFER.add_(1)  # here
    return x + BUFFER


def to_float8(ctx, x):
    return x.to(torch.float8_e4m3fnuz).float()  # here


def resizes(ctx, x):
    return x.clone().resize_(3)  # here


def swaps(ctx, x):
    y, z = x.repeat(2).chunk(2)
    torch.utils.swap_tensors(y, z)  # here
    return y


def converts(ctx, x):
    layer = torch.nn.PReLU()
    layer.to(torch.bfloat16)  # here
    return layer(x.bfloat16())


def makes_sparse(ctx, x):
    return x.to_sparse().to_dense()  # here


def generates(ctx, x):
    return x * torch.rand(2, generator=torch.Generator())  # here


def unknown(ctx, x):
    return torch.special.bessel_j0(x)  # here


def collects(ctx, g):
    with torch.enable_grad():
        x = torch.ones(2, requires_grad=True)
        LAYER(x).backward(g)  # here
    return x.grad


ROWS = {
    "data": (set_data, r"y\.data = …", "another memory", "y.copy_"),
    "set_": (set_storage, r"y\.set_", "another memory", 'fallback="host"'),
    "loop": (loop, r"bool\(tensor\)", "depends on the value", "torch.where"),
    "early exit": (early_exit, r"bool\(tensor\)", "how often a loop", "while_loop"),
    "torch.cond": (by_cond, r"torch\.cond", "that are passed to it", "in Python"),
    "type": (by_type, r"type\(x\) is", "of a derived class", "isinstance(x, torch"),
    "int": (to_int, r"int\(tensor\)", "depends on the value", 'fallback="host"'),
    "position": (one_position, r"x\[i\]", "depends on the value", "x[i.reshape(1)]"),
    "size": (resized, "a size that is", "depends on values", "from shapes"),
    "float": (to_float, r"float\(tensor\)", "depends on the value", "host"),
    "mask": (masked, r"aten\.sort", "shape depends on values", "torch.where"),
    "NumPy": (to_numpy, "NumPy", "without values", 'fallback="host"'),
    "draws": (draws, r"aten\.rand_like", "need a key", "random=True"),
    "closed over": (writes_closed_over, "add_", "would be lost", "Pass it to apply"),
    "float8": (to_float8, "float8_e4m3fnuz", "can't hold it", 'fallback="host"'),
    "resize_": (resizes, r"y\.resize_\(…\)", "another memory", "y.copy_"),
    "swaps": (swaps, r"module\.to\(…\)", "another memory", "before from_torch"),
    "converts": (converts, r"module\.to\(…\)", "another memory", "before from_torch"),
    "sparse": (makes_sparse, "_to_sparse", "does not have it", 'fallback="host"'),
    "unknown": (unknown, "bessel_j0", "table does not have it", 'fallback="host"'),
}


def place(rule):
    lines, start = inspect.getsourcelines(rule)
    (at,) = [i for i, line in enumerate(lines) if line.rstrip().endswith("# here")]
    return f"{__file__}:{start + at}"


@pytest.mark.parametrize("name", ROWS)
def test_refusal_of_forward(name):
    rule, operation, reason, way_out = ROWS[name]
    with pytest.raises(TorchRefusal, match=operation) as caught:
        from_torch(refused(rule)).apply(jnp.array([0.5, 1.5]))
    message = str(caught.value)
    assert "`Refused.forward`" in message
    assert reason in message
    assert way_out in message
    assert place(rule) in message
    assert caught.value.where == place(rule)
    assert BUFFER.tolist() == [0.0, 0.0]


def test_a_loop_with_an_early_exit_is_refused_at_once():
    runs = []

    def counted(ctx, x):
        runs.append(1)
        return early_exit(ctx, x)

    with pytest.raises(TorchRefusal, match="how often a loop runs"):
        from_torch(refused(counted)).apply(jnp.ones(2))
    # Two paths and the look ahead; if Triton is loaded, the same as on a GPU.
    assert len(runs) in (3, 6)


def test_a_short_loop_with_an_early_exit_runs():
    def short(ctx, x):
        for _ in range(6):
            if x.sum() < 1:
                break
            x = x / 2
        return x

    apply = from_torch(refused(short)).apply
    for start in (0.25, 1.0, 8.0, 300.0):
        expected = short(None, torch.full((2,), start)).numpy()
        for run in (apply, jax.jit(apply)):
            np.testing.assert_array_equal(run(jnp.full(2, start)), expected)


def test_refusal_of_backward():
    made = from_torch(refused(lambda ctx, x, _: x * 2, _collects))
    with pytest.raises(TorchRefusal, match="would be lost") as caught:
        jax.grad(lambda x: made.apply(x, LAYER).sum())(jnp.ones(2))
    assert "`Refused.backward`" in str(caught.value)
    assert caught.value.where == place(collects)
    assert LAYER.weight.grad is None


def _collects(ctx, g):
    return collects(ctx, g), None


def test_a_generator_of_ones_own():
    made = from_torch(refused(generates), random=True)
    with pytest.raises(TorchRefusal, match="draws from a generator of its own") as got:
        made.apply(jax.random.key(0), jnp.ones(2))
    assert "`Refused.forward`" in str(got.value)
    assert "aten.rand.generator" in str(got.value)
    assert 'fallback="host"' in str(got.value)
    assert got.value.where == place(generates)


def by_sparse(ctx, x, held):
    return torch.sparse.mm(held[0], x[:, None])[:, 0]  # here


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("kind", ["to_sparse", "to_sparse_csr"])
@pytest.mark.parametrize("into", [tuple, list, lambda held: {0: held[0]}])
def test_sparse_arguments(kind, into):
    held = into([getattr(torch.eye(2), kind)()])
    made = from_torch(refused(by_sparse, lambda ctx, g: (g, None)))
    with pytest.raises(TorchRefusal, match="sparse") as caught:
        made.apply(jnp.ones(2), held)
    assert "`Refused.forward`" in str(caught.value)
    assert 'fallback="host"' in str(caught.value)
    assert caught.value.where == place(by_sparse)
    on_host = from_torch(refused(by_sparse, lambda ctx, g: (g, None)), fallback="host")
    assert on_host.apply(jnp.array([2.0, 3.0]), held).tolist() == [2.0, 3.0]


def test_arrays_whose_dtype_torch_does_not_have():
    made = from_torch(refused(lambda ctx, x: x * 2))
    for dtype in (jnp.int4, jnp.float8_e4m3fnuz):
        with pytest.raises(TorchRefusal, match="torch has no such dtype") as caught:
            made.apply(jnp.ones(2, dtype))
        assert "`Refused.forward`" in str(caught.value)
        assert "Pass an array of another dtype" in str(caught.value)


def test_random_without_a_draw():
    made = from_torch(refused(lambda ctx, x: x * 2), random=True)
    with pytest.raises(ValueError, match="draws no random numbers"):
        made.apply(jax.random.key(0), jnp.ones(2))


def test_random_without_a_key():
    made = from_torch(refused(draws), random=True)
    with pytest.raises(TypeError, match="expected a PRNG key as the first argument"):
        made.apply(jnp.ones(2), jnp.ones(2))


def test_what_is_no_function():
    with pytest.raises(TypeError, match=r"torch\.autograd\.Function, got"):
        from_torch(torch.nn.Linear)
    with pytest.raises(ValueError, match="fallback=None or"):
        from_torch(refused(draws), fallback="cpu")


WRONG = {
    "their number": (
        (passes, jnp.ones(2)),
        r"incorrect number of gradients \(expected 2, got 1\)",
    ),
    "a shape": (
        (lambda ctx, g: (g[:1].expand(1, 1), None), jnp.ones(2)),
        r"invalid gradient at index 0 - got \[1, 1\] but expected shape",
    ),
    "of what is static": (
        (lambda ctx, g: (g, g), 3),
        r"Argument 1 is static: return None in its place.",
    ),
    "a number": (
        (lambda ctx, g: (1.0, None), jnp.ones(2)),
        "got float.*for argument 0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_of_backward_names_the_place_of_backward(name):
    (backward, other), words = WRONG[name]
    made = from_torch(refused(lambda ctx, x, other: x * other, backward))
    argnums = 0 if name == "of what is static" else (0, 1)
    error = jaxfn.RuleTypeError if name == "a number" else jaxfn.RuleValueError
    with pytest.raises(error, match=words) as caught:
        jax.grad(lambda *xs: made.apply(*xs).sum(), argnums)(jnp.ones(2), other)
    line = backward.__code__.co_firstlineno
    assert f"test_refusals.py:{line}" in str(caught.value)


SIZES = {torch.float32: 1.0}


def test_check_says_that_it_computes_in_float64():
    made = from_torch(refused(lambda ctx, x: x * SIZES[x.dtype]))
    (failure,) = jaxfn.check(made, jnp.ones(2)).failures
    assert "check computes in float64" in failure.message
    assert jaxfn.check(made, jnp.ones(2), precision="given", low_precision=None).ok


def test_a_tensor_in_the_place_of_an_array():
    made = from_torch(refused(lambda ctx, x, w: x * w))
    words = r"torch.Tensor of shape \(2,\) as an argument.*jnp.asarray"
    with pytest.raises(TypeError, match=words):
        made.apply(jnp.ones(2), torch.ones(2))


def test_a_torch_whose_names_differ(monkeypatch):
    experimental.name.cache_clear()
    monkeypatch.setitem(experimental._NAMES, "make_fx", "torch.fx.no_such_module")
    with pytest.raises(
        ImportError, match=r"no_such_module\.make_fx.*tested with: torch"
    ):
        from_torch(refused(draws))
    experimental.name.cache_clear()


def test_a_tensor_that_requires_grad_is_a_constant_and_a_warning():
    weight = torch.ones(2, requires_grad=True)
    made = from_torch(refused(lambda ctx, x: x * weight))
    with pytest.warns(UserWarning, match="gets no gradient here"):
        made.apply(jnp.ones(2))


def test_explain_says_what_is_refused():
    report = jaxfn.torch.explain(refused(lambda ctx, x: x * 2), jnp.ones(2))
    assert report.ok
    assert report.forward.operations == {"aten.mul.Tensor": 1}
    report = jaxfn.torch.explain(refused(loop), jnp.ones(2))
    assert not report.ok
    assert place(loop) in str(report)


def test_explain_traces_tensors_like_arrays():
    cls = refused(lambda ctx, x: x * x, lambda ctx, g: g * 2)
    x = np.ones(2, "float32")
    by_array = jaxfn.torch.explain(cls, jnp.asarray(x))
    by_tensor = jaxfn.torch.explain(cls, torch.from_numpy(x))
    assert str(by_tensor) == str(by_array)
    assert by_tensor.backward.operations


def test_explain_takes_a_sparse_tensor_as_it_is():
    cls = refused(lambda ctx, x, a: x * 2, lambda ctx, g: (g * 2, None))
    sparse = torch.eye(2).to_sparse()
    assert jaxfn.torch.explain(cls, jnp.ones(2), sparse).ok


def test_host_call_that_draws():
    made = from_torch(refused(draws), fallback="host")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TorchRefusal, match="random=True"):
            made.apply(jnp.ones(2))


class Checkpoint(Function):
    """Takes a module and its parameters, as torch.utils.checkpoint's relatives do."""

    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.run, ctx.parameters = run, parameters
        ctx.save_for_backward(x)
        return run(x, *parameters)

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            parameters = [p.detach().requires_grad_() for p in ctx.parameters]
            y = ctx.run(x, *parameters)
        return None, *torch.autograd.grad(y, [x, *parameters], g)


def by_functional_call(x, w, b):
    return torch.func.functional_call(LAYER, {"weight": w, "bias": b}, x)


@pytest.mark.parametrize("fallback", [None, "host"])
@pytest.mark.filterwarnings("ignore:.*functional_call:UserWarning")
def test_a_module_and_its_parameters(fallback):
    apply = from_torch(Checkpoint, fallback=fallback).apply
    w, b = (jnp.asarray(p.detach().numpy()) for p in LAYER.parameters())
    args = (jnp.arange(2.0), w, b)

    def gradient(run):
        return jax.grad(lambda *args: apply(run, *args).sum(), (0, 1, 2))(*args)

    found = gradient(by_functional_call)
    wanted = jax.grad(lambda x, w, b: (x @ w.T + b).sum(), (0, 1, 2))(*args)
    for one, other in zip(found, wanted, strict=True):
        assert np.allclose(one, other)
    with pytest.raises(TorchRefusal, match=r"functional_call") as caught:
        gradient(lambda x, *_: LAYER(x))
    assert "`Checkpoint" in str(caught.value)
    assert 'fallback="host"' not in str(caught.value)
