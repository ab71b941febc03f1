"""Second derivatives of what real Functions do in their rules."""

from __future__ import annotations

import importlib.util
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import jaxfn.torch
from jaxfn.torch import TorchRefusal, from_torch
from tests.build import in_style

from . import packages
from .classes import saves, torch_class
from .compare import Case
from .models import module_of

X = torch.tensor([[0.5, -1.5, 2.0], [-0.25, 1.0, 3.0]])


def times_saved(ctx, g):
    return g * ctx.saved_tensors[0]


def factor(a):
    """A factor of a matrix, with something on the diagonal if it has none."""
    found, info = torch.linalg.cholesky_ex(a)
    if not torch.any(info):
        return found
    if torch.isnan(a).any():
        raise ValueError("nan in the matrix")
    found, info = torch.linalg.cholesky_ex(a + 0.1 * torch.eye(len(a)))
    if not torch.any(info):
        return found
    raise ValueError("no factor")


class Solves(Function):
    """Applied again in its own backward, with conditions on values each time."""

    @staticmethod
    def forward(ctx, a, b):
        found = torch.cholesky_solve(b, factor(a))
        ctx.save_for_backward(a, found)
        return found

    @staticmethod
    def backward(ctx, g):
        a, found = ctx.saved_tensors
        by_b = Solves.apply(a, g)
        return -by_b @ found.mT, by_b


def test_conditions_in_a_rule_that_torch_runs():
    a = X.mT @ X + 2 * torch.eye(3)
    case = Case(Solves, [a, X.mT.contiguous()])
    assert case.worst(("eager", "jit")) <= 1e-5
    assert max(case.second_gaps()) <= 1e-5


def rebinds(ctx, g):
    y = g.clone()
    y.data = g * 3
    return y


def asks(ctx, g):
    (x,) = ctx.saved_tensors
    if (x * g).sum() > 0:
        return 2 * g * x
    return -g * x


Rebinds = torch_class(lambda ctx, x: x * 2, rebinds)
Asks = torch_class(saves(lambda x: x * x), asks)


def through(other, way):
    """A Function that lets torch differentiate another one."""

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            taken = x.requires_grad and way == "grad"
            z = x.view_as(x) if taken else x.detach().requires_grad_()
            y = other.apply(z)
        if way == "grad":
            return torch.autograd.grad(y, z, g, create_graph=again)[0]
        y.backward(g)
        return z.grad

    return torch_class(saves(lambda x: x.clone()), backward)


def test_a_rule_that_torch_runs_is_watched():
    made = from_torch(through(Rebinds, "grad"))
    with pytest.raises(TorchRefusal, match=r"y\.data = …") as caught:
        jax.grad(lambda x: made.apply(x).sum())(jnp.ones(3))
    assert "test_second_order.py" in caught.value.where


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("way", ["grad", "backward"])
def test_both_ways_of_a_condition_there(sign, way):
    case = Case(through(Asks, way), [sign * X])
    assert case.worst() <= 1e-6
    if way == "grad":
        assert max(case.second_gaps()) <= 1e-6


def test_a_condition_that_was_settled_makes_no_paths():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x
        for i in range(1, 6):
            held = x.detach().clone()
            y = y * i if (held > 0).all() else y - i
        return y

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        for i in range(1, 6):
            g = g * i if (x > 0).all() else g
        return g

    often = torch_class(forward, backward)
    report = jaxfn.torch.explain(often, jnp.ones(3))
    assert (report.forward.paths, report.backward.paths) == (2, 2)
    for x in (X, X.abs()):
        assert Case(often, [x]).worst(("eager", "jit")) <= 1e-6


def test_forward_writes_over_what_its_derivative_needs():
    def forward(ctx, x):
        size = (x * x + 1).sqrt()
        half = size.exp()
        size.mul_(3)  # what the derivative of sqrt and exp need, is gone
        half.add_(size)
        ctx.save_for_backward(half)
        return x * 1

    case = Case(torch_class(forward, times_saved), [X])
    assert case.worst() <= 1e-6
    x = jnp.asarray(X.numpy())
    first = jax.grad(lambda x: case.made.apply(x).sum())
    found = jax.grad(lambda x: first(x).sum())(x)
    # torch takes what forward saved for a constant; its own gradient has this slope.
    size = np.sqrt(X.numpy() ** 2 + 1)
    expected = X.numpy() / size * (np.exp(size) + 3)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


NAMES = ["Triangular", "MaternCovariance", "Solve"]
LONG = pytest.mark.full  # many conditions, to second order
ROWS = {row.name: row for row in packages.ROWS if row.name in NAMES}


@pytest.mark.skipif(
    importlib.util.find_spec("linear_operator") is None,
    reason="the packages are not installed here",
)
@pytest.mark.parametrize("name", [*NAMES[:2], pytest.param("Solve", marks=LONG)])
def test_of_packages(name):
    row = ROWS[name]
    packages.fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = Case(row.load(), row.args(), row.diff)
        gaps = case.second_gaps()
    if row.name == "MaternCovariance":  # by an intermediate, to torch a constant
        gaps = gaps[len(case.diff) :]
    assert max(gaps) <= 1e-5


# ---- torch runs forward without recording, so nothing in it cuts off a derivative


@torch.no_grad()
def unrecorded(x):
    return x.cos()


def by_setter(x):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    c = x.cos()
    torch.set_grad_enabled(before)
    return c


def within_no_grad(x):
    with torch.no_grad():
        c = x.cos()
        with torch.enable_grad():
            c = c * 1
        return c * 1


def written_through(write):
    def cosine(x):
        z = torch.stack([x, x])
        write(z, x.cos())
        return z[1]

    return cosine


CUTS = {
    "detach": lambda x: x.cos().detach(),
    "detach of the argument": lambda x: x.detach().cos(),
    "torch.detach": lambda x: torch.detach(x.cos()),
    "detach by keyword": lambda x: torch.detach(input=x.cos()),
    "detach_": lambda x: x.cos().detach_(),
    "torch.detach_": lambda x: torch.detach_(x.cos()),
    "data": lambda x: x.data.cos(),
    "no_grad": unrecorded,
    "set_grad_enabled": by_setter,
    "enable_grad in no_grad": within_no_grad,
    "torch.tensor": lambda x: torch.tensor(x.cos()),
    "torch.tensor by keyword": lambda x: torch.tensor(data=x.cos()),
    "new_tensor": lambda x: x.new_tensor(x.cos()),
    "new_tensor by keyword": lambda x: x.new_tensor(data=x.cos()),
    "written through detach": written_through(lambda z, c: z.detach()[1].copy_(c)),
    "written through data": written_through(lambda z, c: z.data[1].mul_(0).add_(c)),
}


def sine(cosine, *, separate):
    """A sine whose derivative is what `cosine` made in its forward."""

    def note(ctx, inputs, output):
        ctx.save_for_backward(cosine(*inputs))

    style = "separate" if separate else "combined"
    rules = in_style(style, lambda x: x.sin(), note)
    return torch_class(backward=times_saved, **rules)


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("separate", [False, True], ids=["combined", "separate"])
@pytest.mark.parametrize("cut", CUTS)
def test_nothing_in_forward_cuts_off_what_is_saved(cut, separate):
    apply = from_torch(sine(CUTS[cut], separate=separate)).apply
    x = jnp.array([0.5, -1.25, 2.0])
    assert np.allclose(jax.grad(lambda x: apply(x).sum())(x), jnp.cos(x), rtol=1e-6)

    def squares(f):
        return lambda x: (f(x) ** 2).sum()

    if separate:
        found = jax.jit(jax.jacrev(jax.grad(squares(apply))))(x)
    else:
        found = jax.hessian(squares(apply))(x)
        third = jax.grad(jax.grad(jax.grad(lambda x: apply(x))))(x[0])
        assert np.allclose(third, -jnp.cos(x[0]), atol=1e-6)
    assert np.allclose(found, jax.hessian(squares(jnp.sin))(x), atol=1e-6)


def test_what_backward_cuts_off_stays_so():
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            c = x.cos()
        return g * c + g * x.detach() + 3 * g * x

    apply = from_torch(torch_class(saves(torch.sin), backward)).apply
    assert jax.grad(jax.grad(apply))(0.5) == 3


def test_a_nested_function_keeps_its_own_backward_in_forward():
    """Its forward may record with grad enabled, and that ends with it."""

    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch.enable_grad():
            y = x * 1
        return y * 2  # not recorded: the rule counts

    five = torch_class(forward, lambda ctx, g: 5 * g * ctx.saved_tensors[0].detach())
    apply = from_torch(sine(lambda x: five.apply(x).detach(), separate=False)).apply
    assert jax.grad(apply)(0.5) == 1
    assert jax.grad(jax.grad(apply))(0.5) == 2.5


def test_inference_mode_in_forward():
    def cosine(x):
        with torch.inference_mode():
            return x.cos()

    apply = from_torch(sine(cosine, separate=False)).apply
    with pytest.raises(TorchRefusal, match=r"inference_mode.*no_grad") as caught:
        jax.grad(jax.grad(apply))(0.5)
    assert __file__ in caught.value.where


def test_nothing_in_setup_context_cuts_off_a_batch():
    class Batched(sine(lambda x: x.detach().cos(), separate=True)):
        @staticmethod
        def vmap(info, in_dims, x):
            return Batched.apply(x), in_dims[0]

    apply, xs = from_torch(Batched).apply, jnp.array([0.5, -1.25, 2.0])

    def total(f):
        return lambda xs: jax.grad(lambda xs: (jax.vmap(f)(xs) ** 2).sum())(xs).sum()

    found = jax.grad(total(apply))(xs)
    assert np.allclose(found, jax.grad(total(jnp.sin))(xs), atol=1e-6)


def by_grad(x):
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        return torch.autograd.grad(z.sin().sum(), z)[0]


def by_backward(x):
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        z.sin().sum().backward()
    return z.grad


def by_func(x):
    return torch.func.vmap(torch.func.grad(lambda z: z.detach() * z.sin()))(x)


def by_forward_mode(x):
    return torch.func.jvp(lambda z: z.detach() * z, (x,), (x,))[1]


@pytest.mark.parametrize("separate", [False, True], ids=["combined", "separate"])
@pytest.mark.parametrize("rule", [by_grad, by_backward, by_func, by_forward_mode])
def test_a_second_derivative_of_a_derivative_in_forward_is_refused(rule, separate):
    cls = sine(rule, separate=separate)
    apply, x = from_torch(cls).apply, jnp.array([0.5, -1.25, 2.0])
    leaf = torch.tensor(np.asarray(x), requires_grad=True)
    wanted = torch.autograd.grad(cls.apply(leaf).sum(), leaf)[0]
    for wrap in (lambda f: f, jax.jit):
        found = wrap(jax.grad(lambda x: apply(x).sum()))(x)
        assert np.allclose(found, wanted, rtol=1e-6)
    words = "a derivative in forward: .* in backward"
    with pytest.raises(TorchRefusal, match=words) as caught:
        jax.hessian(lambda x: apply(x).sum())(x)
    assert __file__ in caught.value.where


def test_forward_is_shown_what_it_would_be_without_a_derivative():
    def cosine(x):
        y = x * 1
        asked = y.requires_grad, not y.is_leaf, y.grad_fn is not None
        return x.cos() * (1 + 10 * sum(asked))

    apply = from_torch(sine(cosine, separate=False)).apply
    assert np.allclose(jax.grad(apply)(0.5), np.cos(0.5))
    assert np.allclose(jax.grad(jax.grad(apply))(0.5), -np.sin(0.5))


def test_second_derivatives_of_complex_arguments():
    square = torch_class(
        saves(lambda z: z * z), lambda ctx, g: 2 * ctx.saved_tensors[0].conj() * g
    )

    def second(square):
        def first(z):
            return jax.grad(lambda z: (square(z) * (1 + 2j)).real.sum())(z)

        return jax.grad(lambda z: (first(z) * (3 - 1j) * z).real.sum())

    z = jnp.array([0.5 - 1j, 2 + 0.25j])
    apply = from_torch(square).apply
    for wrap in (lambda f: f, jax.jit):
        found = wrap(second(apply))(z)
        assert np.allclose(found, second(lambda z: z * z)(z), rtol=1e-6)


def test_a_saved_output_without_gradient_calls_no_backward():
    """Backward is not zero for zeros, and compares the output that forward saved."""

    def forward(ctx, x):
        y = x * 2
        ctx.save_for_backward(x, y)
        return y

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return (g + 0.5) * x * (y > -100)

    case = Case(torch_class(forward, backward), [X])
    assert case.worst() <= 1e-6
    assert max(case.second_gaps()) <= 1e-6


def slope(ctx, g):
    return 3 * g * ctx.saved_tensors[0]


# x**2. The factor of backward is wrong on purpose.
Once = torch_class(saves(lambda x: x * x), once_differentiable(slope), "Once")


def test_once_differentiable_below_another_decorator():
    below = torch_class(
        custom_fwd(saves(lambda x: x * x), device_type="cpu"),
        custom_bwd(once_differentiable(slope), device_type="cpu"),
        "Below",
    )
    apply = from_torch(below, generate_jvp_rule=True).apply
    x = jnp.arange(1.0, 4.0)
    assert jax.grad(lambda x: apply(x).sum())(x).tolist() == [3, 6, 9]
    with pytest.raises(TorchRefusal, match="`Below.backward.*below another deco"):
        jax.jvp(apply, (x,), (x,))


def test_forward_mode_of_once_differentiable():
    """It is the transpose of backward, which the decorator does not forbid."""
    apply = from_torch(Once, generate_jvp_rule=True).apply
    x = jnp.arange(1.0, 4.0)
    for f in (apply, jax.jit(apply), jax.vmap(apply)):
        assert jax.jvp(f, (x,), (x,))[1].tolist() == [3, 12, 27]
    with pytest.raises(jaxfn.SecondDerivativeError):
        jax.hessian(lambda x: apply(x).sum())(x)
    of_backward = jax.grad(lambda x: from_torch(Once).apply(x).sum())
    with pytest.raises(jaxfn.SecondDerivativeError, match="once_differentiable"):
        jax.grad(lambda x: of_backward(x).sum())(x)


@pytest.mark.parametrize("fallback", [None, "host"])
def test_once_differentiable_inside_of_a_model(fallback):
    """PyTorch would leave this part of the derivative out, and say nothing."""
    module = module_of(
        lambda self: (Once.apply(self.w) * self.w).sum(),
        w=torch.nn.Parameter(torch.arange(1.0, 4.0)),
    )
    model = from_torch(module, fallback=fallback)
    loss, w = model.apply, model.params
    for grad in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.jit(loss))):
        assert grad(w)["w"].tolist() == [4, 16, 36]
    further = {
        "jvp": lambda: jax.jvp(loss, (w,), (w,)),
        "grad of grad": lambda: jax.grad(lambda w: jax.grad(loss)(w)["w"].sum())(w),
        "hessian": lambda: jax.hessian(loss)(w),
    }
    for name, run in further.items():
        with pytest.raises(Exception, match="`Once.backward`: it is marked") as caught:
            jax.block_until_ready(run())
        assert fallback or caught.type is jaxfn.torch.TorchRefusal, name
    report = jaxfn.check(loss, w, precision="given")
    assert report.wrong_rules == ("backward",)  # by its factor, and no jvp
