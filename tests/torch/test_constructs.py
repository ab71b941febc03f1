"""What rules of real Functions do: each construct, beside torch."""

from __future__ import annotations

import functools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import Function

from jaxfn.torch import TorchRefusal, from_torch
from jaxfn.torch._function.host_call import HostCall
from tests.build import saving

from .classes import saves, torch_class
from .compare import Case
from .pairs import AddBias, Linear, Nested, Separate

R = torch.Generator()
R.manual_seed(0)


def normal(*shape: int, dtype=torch.float32):
    return torch.randn(*shape, generator=R, dtype=dtype)


class Scale(Function):
    @staticmethod
    def forward(ctx, x, k=2.0, unused=None):
        ctx.k = k
        ctx.n = ctx.needs_input_grad
        return x * k

    @staticmethod
    def backward(ctx, g):
        return (g * ctx.k, None, None)[: len(ctx.n)]


class Saved(Function):
    """Input, output, an intermediate, None; attributes, nested."""

    @staticmethod
    def forward(ctx, x, w):
        m = torch.sin(x)
        y = m * w
        ctx.save_for_backward(x, None, y, m)
        ctx.held = {"cos": torch.cos(x), "list": [w, 3.0]}
        return y

    @staticmethod
    def backward(ctx, g):
        x, none, y, m = ctx.saved_tensors
        assert none is None
        w, three = ctx.held["list"]
        gx = g * ctx.held["cos"] * w + 0 * y * x
        return gx, g * m * three / 3.0


class Several(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        at = x.argmax(-1)
        ctx.mark_non_differentiable(at)
        ctx.save_for_backward(x)
        return x.exp(), at, None, x.sum()

    @staticmethod
    def backward(ctx, g, g_at, g_none, g_sum):
        (x,) = ctx.saved_tensors
        assert g_at is None
        assert g_none is None
        total = torch.zeros_like(x)
        if g is not None:
            total = total + g * x.exp()
        return total if g_sum is None else total + g_sum


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(3)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        g.mul_(3)
        return g


class Views(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.zeros_like(x)
        y[0].copy_(x[0] * 2)
        y[1:].add_(x[1:])
        y[:, 1] += 1
        y.t()[0] *= 5
        y[x > 1] = 0.5
        ctx.save_for_backward(x)
        return y.contiguous()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = g.clone()
        grad[x > 1] = 0
        return grad


class Autograd(Function):
    """Autograd inside backward."""

    @staticmethod
    def forward(ctx, x, fn):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.fn(x)
        torch.autograd.backward(y, g)
        return x.grad, None


class Itself(Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        ctx.save_for_backward(x)
        return x**n

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.n * Itself.apply(x, ctx.n - 1), None


class NotStatic(Function):
    def forward(ctx, x):  # noqa: N805
        return x * 2

    def backward(ctx, g):  # noqa: N805
        return g * 2


class ByClass(Function):
    factor = 4.0

    @classmethod
    def forward(cls, ctx, x):
        return x * cls.factor

    @classmethod
    def backward(cls, ctx, g):
        return g * cls.factor


class Heir(ByClass):
    factor = 6.0


class ReadsNeeds(Function):
    @staticmethod
    def forward(ctx, x, w):
        if w.requires_grad:
            raise RuntimeError("no gradient of w")
        ctx.leaf = x.is_leaf
        ctx.save_for_backward(w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        assert ctx.needs_input_grad == (True, False)
        return g * ctx.saved_tensors[0], None


class Branch(Function):
    @staticmethod
    def forward(ctx, x):
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        y = x * 2 if x.sum() > 0 else x.exp()
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if (x > 100).any():
            return torch.zeros_like(g)
        return g * (2 if x.sum() > 0 else x.exp())


class Masks(Function):
    @staticmethod
    def forward(ctx, x):
        m = x > 0
        y = torch.zeros_like(x)
        y[m] = torch.exp(x[m]) * 2 + x[m].mean()
        ctx.save_for_backward(x)
        return y, x[x > 0].sum(), x.masked_select(m).amax()

    @staticmethod
    def backward(ctx, g, h, k):
        (x,) = ctx.saved_tensors
        grad = torch.zeros_like(x)
        m = x > 0
        grad[m] = g[m] * x[m].exp() * 2 + h
        grad[~m] = k
        return grad


def swish(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x) * x


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it is deprecated, and in use
    scripted = torch.jit.script(swish)


def swish_gradient(ctx, g):
    (x,) = ctx.saved_tensors
    s = torch.sigmoid(x)
    return g * (s + x * s * (1 - s))


AMP = {"device_type": "cuda"}
Amp = torch_class(
    torch.amp.custom_fwd(saves(torch.relu), **AMP),
    torch.amp.custom_bwd(lambda ctx, g: g * (ctx.saved_tensors[0] > 0), **AMP),
)


def complex_gradient(ctx, g):
    (z,) = ctx.saved_tensors
    return g * z.conj() * 2j + g.conj() * z


def zero_dim(ctx, x):
    y = x * 1
    y[x > 0] = 3.0
    ctx.save_for_backward(x)
    return y


def zero_dim_gradient(ctx, g):
    g = g.clone()
    g[ctx.saved_tensors[0] > 0] = 0.5
    return g


def factory(k):
    return torch_class(lambda ctx, x: x * k, lambda ctx, g: g * k)


ItemValue = torch_class(
    saves(lambda x: x * (x.sum().item() + 1.0)),
    lambda ctx, g: g * ctx.saved_tensors[0].sum(),
)
ZeroDim = torch_class(zero_dim, zero_dim_gradient)
Scripted = torch_class(saves(scripted), swish_gradient)
Complex = torch_class(saves(lambda z: z * z.conj() * 1j), complex_gradient)


class Options(Function):
    @staticmethod
    def forward(ctx, x, options):
        k = options.pop("k")
        ctx.options = options
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.options.pop("b"), None


CASES = {
    "scale": (Scale, [normal(4, 3), 3.0]),
    "defaults": (Scale, [normal(3)]),
    "saved": (Saved, [normal(4, 3), normal(3)]),
    "several": (Several, [normal(4, 3)]),
    "in place": (InPlace, [normal(4, 3)]),
    "views": (Views, [normal(4, 3)]),
    "autograd": (Autograd, [normal(4, 3), torch.tanh]),
    "nested": (Nested, [normal(4, 3)]),
    "itself": (Itself, [normal(4, 3), 3]),
    "not static": (NotStatic, [normal(4)]),
    "by class": (ByClass, [normal(4)]),
    "heir": (Heir, [normal(4)]),
    "separate": (Separate, [normal(4), 2.5]),
    "reads needs": (ReadsNeeds, [normal(4), normal(4)], (0,)),
    "broadcast": (AddBias, [normal(4, 3), normal(3)]),
    "branch": (Branch, [normal(4, 3)]),
    "masks": (Masks, [normal(4, 3)]),
    "item": (ItemValue, [normal(4)]),
    "no dimension, held": (ZeroDim, [torch.tensor(0.3)]),
    "no dimension, not": (ZeroDim, [torch.tensor(-0.3)]),
    "scripted": (Scripted, [normal(4)]),
    "amp": (Amp, [normal(4)]),
    "complex": (Complex, [normal(4, dtype=torch.complex64)]),
    "factory": (factory(3.0), [normal(4)]),
    "options": (Options, [normal(4), {"k": 2.0, "b": 5.0}]),
    "linear": (Linear, [normal(4, 3), normal(2, 3), normal(2)]),
    "linear without bias": (Linear, [normal(4, 3), normal(2, 3), None]),
    "empty": (Saved, [normal(0, 3), normal(3)]),
    "half": (Scale, [normal(4).half(), 3.0]),
    "bfloat16": (Scale, [normal(4).bfloat16(), 3.0]),
}
# Of the others torch's backward is no function of x, does not record its own backward,
# or says no; and a saved intermediate is a constant in torch, silently.
TWICE = ("nested", "itself", "separate", "item", "scripted")


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_torchs(name):
    assert Case(*CASES[name]).worst() <= 1e-6


@pytest.mark.parametrize("name", TWICE)
def test_second_derivative_is_torchs(name):
    assert Case(*CASES[name]).worst_second() <= 1e-6


def on_host(call, needs, bridge):
    why = TorchRefusal(operation="all", reason="a test")
    return HostCall(bridge.cls, call, bridge.settings, why)


@pytest.mark.parametrize("name", CASES)
def test_on_the_host_too(name):
    cls, args, *diff = CASES[name]
    case = Case(cls, args, *diff, fallback="host")
    # As if nothing of it could be traced.
    bridge = case.made.jaxfn_torch_bridge
    bridge._make = functools.partial(on_host, bridge=bridge)
    assert case.worst(("eager", "jit", "vmap(grad)")) <= 1e-6


def test_saved_intermediates_keep_their_derivative():
    x = jnp.array([0.3, 1.2])
    made = from_torch(Saved)

    def first(x):
        return jax.grad(lambda x: made.apply(x, jnp.ones(2)).sum())(x).sum()

    # cos x was computed by forward: torch takes it for a constant and has 0.
    assert np.allclose(jax.grad(first)(x), -jnp.sin(x), atol=1e-6)


def test_a_branch_that_raises():
    made = from_torch(Branch)
    bad = jnp.array([1.0, math.nan])
    with pytest.raises(ValueError, match="not finite"):
        made.apply(bad)
    assert jnp.isnan(jax.jit(made.apply)(bad)).all()  # JAX can't raise
    for x in (jnp.array([1.0, 2.0]), -jnp.array([1.0, 2.0])):
        ours = jax.jit(jax.vmap(jax.grad(lambda x: made.apply(x).sum())))(x[None])[0]
        t = torch.tensor(np.array(x), requires_grad=True)
        (theirs,) = torch.autograd.grad(Branch.apply(t).sum(), t)
        assert np.allclose(ours, theirs)


# Wrong on purpose, so that it shows which rule runs.
Own = torch_class(
    lambda x: x**2,
    lambda ctx, g: 3 * g * ctx.saved_tensors[0],
    setup_context=saving(),
    jvp=lambda ctx, t: 5 * t * ctx.saved_tensors[0],
)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_own_jvp(wrap):
    made, x = from_torch(Own), jnp.array([1.0, 2.0])
    dot = wrap(lambda x: jax.jvp(made.apply, (x,), (jnp.ones(2),))[1])(x)
    assert dot.tolist() == [5.0, 10.0]
    grad = wrap(jax.grad(lambda x: made.apply(x).sum()))(x)
    assert grad.tolist() == [3.0, 6.0]


def test_hessian_and_third_order():
    made, x = from_torch(Itself), jnp.array(1.5)
    f = functools.partial(made.apply, n=4)
    assert np.allclose(jax.hessian(f)(x), 12 * 1.5**2)
    assert np.allclose(jax.jit(jax.grad(jax.grad(jax.grad(f))))(x), 24 * 1.5)
    assert np.allclose(jax.jacfwd(jax.grad(f))(x), 12 * 1.5**2)


class Dropout(Function):
    @staticmethod
    def forward(ctx, x, p):
        kept = (torch.rand_like(x) > p).float()
        ctx.save_for_backward(kept)
        return x * kept

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


class Recomputed(Function):
    """Saves the state of the generator, and draws the same again in backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.state = torch.get_rng_state()
        return x * (torch.rand_like(x) > 0.5)

    @staticmethod
    def backward(ctx, g):
        torch.set_rng_state(ctx.state)
        return g * (torch.rand_like(g) > 0.5)


@pytest.mark.parametrize("fallback", [None, "host"])
@pytest.mark.parametrize("cls", [Dropout, Recomputed])
def test_random_draws(cls, fallback):
    before = torch.get_rng_state()
    made = from_torch(cls, random=True, fallback=fallback)
    x, rest = jnp.ones(64), (0.5,) if cls is Dropout else ()
    keys = jax.random.key(0), jax.random.key(1)
    one, other = (made.apply(key, x, *rest) for key in keys)
    assert 0 < one.sum() < 64
    assert (one != other).any()
    assert (jax.jit(lambda key, x: made.apply(key, x, *rest))(keys[0], x) == one).all()
    grad = jax.grad(lambda x: made.apply(keys[0], x, *rest).sum())(x)
    assert (grad == one).all()
    assert (torch.get_rng_state() == before).all()


def test_with_the_same_draws_torch_computes_the_same():
    case = Case(Dropout, [torch.linspace(-1.0, 2.0, 12), 0.5], random=True)
    assert case.worst(("eager", "jit")) <= 1e-6


def draws_by_a_key(ctx, x, key):
    ctx.save_for_backward(torch.rand_like(x))
    return x * key * ctx.to_save[0]


def test_a_parameter_may_be_called_key():
    cls = torch_class(draws_by_a_key, lambda ctx, g: (g * ctx.saved_tensors[0], None))
    made, x = from_torch(cls, random=True), jnp.ones(8)
    out, back = jax.vjp(lambda x: made.apply(jax.random.key(0), x, 1.0), x)
    assert out.std() > 0
    assert (back(jnp.ones(8))[0] == out).all()


def test_what_is_not_a_number_is_not_dropped():
    drops = torch_class(lambda ctx, x: torch.native_dropout(x, 0.5, True)[0])
    x = torch.full((20,), torch.nan)
    assert drops.apply(x).isnan().all()
    made = from_torch(drops, random=True)
    assert jnp.isnan(made.apply(jax.random.key(0), jnp.asarray(x.numpy()))).all()


# The names of methods and attributes that torch's ctx leaves free.
FREE = ("kept", "attributes", "saved", "state", "record", "needs", "key", "run")


def takes_all_names(ctx, x):
    for i, name in enumerate(FREE):
        setattr(ctx, name, x * i if i % 2 else float(i))
    ctx.save_for_backward(x)
    return x * 2


def reads_all_names(ctx, g):
    return g * sum(getattr(ctx, name) for name in FREE) + ctx.saved_tensors[0]


@pytest.mark.parametrize("fallback", [None, "host"])
def test_an_attribute_of_ctx_may_have_any_name(fallback):
    cls, x = torch_class(takes_all_names, reads_all_names), jnp.array([0.5, -2.0])
    made = from_torch(cls, fallback=fallback)
    got = jax.grad(lambda x: made.apply(x).sum())(x)
    assert np.allclose(got, (0 + 2 + 4 + 6) + (1 + 3 + 5 + 7) * x + x)


def test_module_is_a_constant_with_its_newest_weights():
    layer = torch.nn.Linear(2, 2, bias=False)
    made, x = from_torch(Autograd), jnp.ones(2)

    def gradient():
        return jax.grad(lambda x: made.apply(x, _Frozen(layer)).sum())(x)

    first = gradient()
    with torch.no_grad():
        layer.weight.mul_(2)
    assert np.allclose(gradient(), 2 * first)
    assert layer.weight.grad is None


class _Frozen:
    def __init__(self, layer):
        self.weight = layer.weight.detach()

    def __call__(self, x):
        return x @ self.weight.t()
