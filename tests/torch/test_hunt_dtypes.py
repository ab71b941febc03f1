"""Dtypes as PyTorch has them: promotion, half precision, integers, complex, x64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

from jaxfn.torch import TorchRefusal, from_torch
from jaxfn.torch._base.dtypes import from_numpy, to_jax, to_numpy

from .classes import saves, torch_class
from .compare import Case, tensors

X = torch.linspace(-1.3, 2.0, 20).reshape(4, 5)
HALVES = [torch.float16, torch.bfloat16]
CLOSE = {torch.float16: 4e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}


def promoted(x):
    """With numbers of Python, 0-d tensors and integers."""
    i, s = torch.arange(5), torch.tensor(2.5)
    return (
        x * 2 + i, x * s, x + True, x * torch.tensor(3), x**2, x * (i > 2),
        torch.where(i > 2, x, 0), x.clamp(min=0), x / 3, 0.1 * x,
        torch.full_like(x, 0.1), x * torch.tensor([0.1] * 5), x.sum(),
        x.add(x, alpha=0.1), x.lerp(x * 2, 0.3), x.float() * x,
        x.sum(dtype=torch.float32), torch.linspace(0, 1, 5, dtype=x.dtype) * x,
    )  # fmt: skip


def networks(x):
    return (
        x.softmax(-1), x.log_softmax(-1), x.mean(-1), x.var(-1), x @ x.mT, x.norm(),
        x.cumsum(-1), functional.gelu(x), functional.silu(x),
        functional.layer_norm(x, (5,)), x.logsumexp(-1),
        x.float().exp().to(x.dtype), x.abs().rsqrt(), functional.softplus(x), x.std(),
    )  # fmt: skip


def rounded(x):
    return (
        x.floor(), x // 0.3, x % 0.7, torch.fmod(x, 0.7), x.trunc(), x.frac(),
        x.round(), torch.div(x, 0.3, rounding_mode="trunc"), torch.round(x, decimals=1),
        x.long(), (x * 100).to(torch.int8), x.bool(), *torch.frexp(x),
    )  # fmt: skip


def quantised(x):
    """To a smaller dtype and back, as if it were stored in it."""
    low = x.to(torch.float8_e4m3fn).float()
    lower = x.to(torch.float8_e5m2).float()
    return low, lower, x.half().float() - x.float(), x.bfloat16().float() - x.float()


def in_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t(), (x @ x.t()).softmax(-1)


def plain(f):
    """A class of this forward, whose backward is the sum of all gradients."""

    def backward(ctx, *gs):
        return sum(g.float().sum() for g in gs if g.is_floating_point()).expand(4, 5)

    return torch_class(lambda ctx, x: f(x), backward)


def dtype_in_jax(x):
    name = str(x.dtype).split(".")[1]
    return name if jax.config.read("jax_enable_x64") else name.replace("64", "32")


def same(ours, theirs, close):
    for i, (x, y) in enumerate(zip(ours, theirs, strict=True)):
        assert str(x.dtype) == dtype_in_jax(y), i
        assert x.shape == tuple(y.shape), i
        x, y = (np.asarray(v).astype(np.complex128) for v in (x, to_numpy(y)))
        np.testing.assert_allclose(x, y, rtol=close, atol=close, err_msg=f"{i}")


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("f", [promoted, networks, rounded, quantised, in_autocast])
def test_values_and_dtypes(f, dtype, x64):
    x = X.to(dtype)
    if f is in_autocast and dtype != torch.float32:
        return  # nothing is cast there
    with jax.enable_x64(x64):
        apply = from_torch(plain(f)).apply
        close = 1e-2 if f is in_autocast else CLOSE[dtype]
        outs = f(x)
        same(tensors(apply(to_jax(x))), outs, close)
        found, pull = jax.vjp(jax.jit(apply), to_jax(x))
        same(tensors(found), outs, close)
        floats = [jnp.issubdtype(y.dtype, jnp.inexact) for y in found]
        ones = tuple(
            jnp.ones_like(y) if ok else np.zeros(y.shape, jax.dtypes.float0)
            for y, ok in zip(found, floats, strict=True)
        )
        (grad,) = pull(ones)
        assert grad.dtype == to_jax(x).dtype
        count = sum(y.size for y, ok in zip(found, floats, strict=True) if ok)
        assert np.allclose(np.asarray(grad, np.float32), count, rtol=1e-2)


def integers(i, u, b):
    return (
        i + u, u + 200, u - 10, u * 2, u // 3, i // -2, i % -3, i / 2, i * 2.5, -i, ~u,
        torch.div(i, -2, rounding_mode="floor"), torch.div(i, 3, rounding_mode="trunc"),
        torch.fmod(i, 3), b + b, b | True, b.sum(), u.sum(), i << 1, u >> 1,
        u.cumsum(0), i.clamp(-1, 2), i**2, i.max(), i.argmax(),
        i.to(torch.int16) * 1000 * 40, i.to(torch.int8) * 100, torch.full((3,), 7),
        torch.full((2,), True), torch.true_divide(u, 3), i.float() // 0.3,
        b.to(torch.float16), i.sort()[0], i.sort(stable=True)[1],
        torch.maximum(i, u), torch.cat([i, u.long()]),
    )  # fmt: skip


@pytest.mark.parametrize("x64", [False, True])
def test_integers(x64):
    args = [
        torch.tensor([3, -7, 5, 2, 0]),
        torch.tensor([3, 250, 5, 2, 0], dtype=torch.uint8),
        torch.tensor([True, False, True, True, False]),
    ]
    with jax.enable_x64(x64):
        apply = from_torch(torch_class(lambda _, *x: integers(*x))).apply
        for run in (apply, jax.jit(apply)):
            same(run(*map(to_jax, args)), integers(*args), 1e-6)


BIG = 2**31 + 5


def times_big(x):
    return (x > 0).long() * BIG


def greatest(x):
    return torch.where(x > 0, torch.iinfo(torch.int64).max, 0)


def alpha_big(x):
    return torch.add(x.long(), x.long(), alpha=BIG)


def compared_big(x):
    return x.long() < BIG


def doubled(x):
    return (x.double() * 2).float()


def widened(x):
    return (x.to(torch.complex128) * 1j).abs().float()


def wide_constant(x):
    return x * torch.tensor(2.5, dtype=torch.float64)


def place(rule):
    return f"{__file__}:{rule.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize("f", [times_big, greatest, alpha_big, compared_big])
def test_numbers_that_only_int64_holds(f):
    with pytest.raises(TorchRefusal, match="does not fit into int32") as caught:
        from_torch(plain(f)).apply(to_jax(X))
    assert caught.value.where == place(f)
    assert "jax_enable_x64" in str(caught.value)
    with jax.enable_x64(True):
        same([from_torch(plain(f)).apply(to_jax(X))], [f(X)], 0)


def test_big_numbers_beside_floats_are_no_integers():
    def f(x):
        return x * BIG, x < BIG, x + 2**40, x.masked_fill(x > 0, 2**40)

    same(from_torch(plain(f)).apply(to_jax(X)), f(X), 1e-6)


@pytest.mark.parametrize("f", [doubled, widened, wide_constant])
def test_what_is_double_is_not_narrowed(f):
    with pytest.raises(TorchRefusal, match="would narrow it") as caught:
        from_torch(plain(f)).apply(to_jax(X))
    assert caught.value.where == place(f)
    message = str(caught.value)
    assert "`Made.forward`" in message
    assert ("complex128" if f is widened else "float64") in message
    assert "x64 is off" in message
    assert "jax_enable_x64" in message
    with jax.enable_x64(True):
        same([from_torch(plain(f)).apply(to_jax(X))], [f(X)], 1e-6)


def test_float8_is_that_of_torch():
    edges = [447.0, 449.0, 464.0, 465.0, 1e4, torch.inf, torch.nan, -1e9, 2**-10]
    x = torch.tensor([*edges, *[-e for e in edges], 0.0, 57344.0])
    found = from_torch(plain(quantised)).apply(to_jax(x))
    same(found, quantised(x), 1e-6)
    low = from_numpy(np.asarray(x).astype(ml_dtypes.float8_e5m2))
    apply = from_torch(plain(lambda x: x.float() * 2)).apply
    same([apply(to_jax(low))], [low.float() * 2], 0)


def complexes(z):
    return (
        z * (1 + 2j), z.abs(), z.conj() * z, z.conj().imag, z @ z.mH, torch.fft.fft(z),
        z.conj().clone().add_(1j), torch.view_as_real(z), z.conj().imag[0],
        z.real + z, z / 1j, -z.conj(), torch.polar(z.abs(), z.angle()), z.sgn(),
    )  # fmt: skip


def test_complex_numbers():
    def backward(ctx, *gs):
        (z,) = ctx.saved_tensors
        return sum(g.sum() for g in gs) * z.conj() + gs[0] * (1 - 2j)

    z = torch.complex(X[:3, :3], X[1:, 2:])
    case = Case(torch_class(saves(complexes), backward), [z])
    assert case.worst(("eager", "jit")) <= 1e-5


def test_a_number_of_python_has_no_precision_in_a_second_derivative():
    turned = torch_class(
        lambda ctx, x: torch.complex(x, x * 2) * 1j,
        lambda ctx, g: (g * (1 - 2j)).real,
    )
    assert max(Case(turned, [X]).second_gaps()) <= 1e-6


ALL = torch.arange(-(2**15), 2**15 - 1, dtype=torch.int32).to(torch.int16)
JUMPS = {
    "quantised": lambda x: torch.round(x / 0.1) * 0.1,
    "floor": lambda x: x // 0.3,
    "floor of tensors": lambda x: x // x.roll(1),
    "remainder": lambda x: x % 0.7,
    "fmod": lambda x: torch.fmod(x, -0.7),
    "decimals": lambda x: torch.round(x, decimals=1),
    "tens": lambda x: torch.round(x, decimals=-1),
    "0-d": lambda x: torch.floor(x * torch.tensor(0.1)),
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "softplus": functional.softplus,
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.3),
    "compared": lambda x: (x >= 0.7).to(x.dtype),
    "bounded": lambda x: x.clamp(-0.3, 0.7),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", JUMPS)
def test_all_numbers_of_half_precision(name, dtype):
    """Numbers of Python keep their digits beside them, and jumps are at their place."""
    x = ALL.view(dtype)
    x = x[x.isfinite() & (x.abs() < 300) & ((x.abs() > 1e-3) | (x == 0))]
    theirs = JUMPS[name](x).float()
    ours = from_torch(plain(JUMPS[name])).apply(to_jax(x))
    assert str(ours.dtype) == str(dtype).split(".")[1]
    ours = torch.from_numpy(np.asarray(ours, np.float32))
    assert (ours.isnan() == theirs.isnan()).all()
    same_place = (ours == theirs) | theirs.isnan()
    gap = torch.where(same_place, 0, (ours - theirs).abs())
    assert (gap <= 3 * torch.finfo(dtype).eps * theirs.abs().clamp(min=1e-2)).all()


@pytest.mark.parametrize("function", [torch.digamma, torch.angle])
def test_signed_zeros_and_poles(function):
    x = torch.tensor([0.0, -0.0, -1.0, 0.5])
    apply = from_torch(plain(function)).apply
    for found in (apply(to_jax(x)), jax.jit(apply)(to_jax(x))):
        np.testing.assert_allclose(found, function(x), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_each_step_is_rounded_under_jit_too(dtype):
    """XLA computes a power of bfloat16 in float32, and would not round it."""
    x = torch.linspace(-4, 4, 999).to(dtype)
    squared = torch_class(lambda ctx, x: 1 - x.tanh().pow(2))
    got = jax.jit(from_torch(squared).apply)(to_jax(x))
    np.testing.assert_array_equal(got.astype(np.float32), squared.apply(x).float())
