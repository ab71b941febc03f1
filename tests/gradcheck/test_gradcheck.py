"""gradcheck and gradgradcheck, beyond the rows that are compared with torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from jaxfn.autograd import gradcheck, gradgradcheck
from jaxfn.autograd.gradcheck import GradcheckError
from tests.build import function, keep, nothing


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def product(backward, jvp=None):
    """x * y for any dtype, saving both."""

    def forward(ctx, x, y):
        keep(ctx, x, y)
        return x * y

    rules = {"backward": backward} | ({"jvp": jvp} if jvp else {})
    return function("Product", forward=forward, **rules).apply


def saved(rule):
    """A rule of the saved values and of what it is given."""
    return lambda ctx, *xs: rule(*ctx.saved_tensors, *xs)


right = saved(lambda x, y, g: (g * y.conj(), g * x.conj()))
right_jvp = saved(lambda x, y, s, t: s * y + x * t)


REAL = (np.array([0.5, -1.0]), np.array([2.0, 3.0]))  # float64, which JAX makes later
COMPLEX = (np.array([0.5 + 1j, -1.0 - 2j]), np.array([2.0 - 1j, 3j]))


@pytest.mark.parametrize("xs", [REAL, COMPLEX], ids=["real", "complex"])
def test_right_rules_pass_every_check(xs):
    f = product(right, right_jvp)
    assert gradcheck(f, xs, check_forward_ad=True, check_grad_dtypes=True)
    assert gradgradcheck(f, xs, check_fwd_over_rev=True)


def test_fast_mode_asks_the_same():
    assert gradcheck(product(right), REAL, fast_mode=True)
    assert gradgradcheck(product(right), REAL, fast_mode=True)
    wrong = product(lambda ctx, g: tuple(2 * x for x in right(ctx, g)))
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        gradcheck(wrong, REAL, fast_mode=True)


@pytest.mark.parametrize("xs", [REAL, COMPLEX], ids=["real", "complex"])
def test_right_rules_pass_under_vmap(xs):
    f = product(right, right_jvp)
    options = {"check_forward_ad": True, "check_batched_forward_grad": True}
    assert gradcheck(f, xs, check_batched_grad=True, **options)
    assert gradgradcheck(f, xs, check_batched_grad=True)


def doubled(**rules):
    return function("F", forward=lambda ctx, x: 2 * x, **rules).apply


def wrong_when_batched(x):
    """A function whose batch rule is wrong, and whose value is right."""
    f = jaxfn.custom_function(lambda x: 2 * x)
    f.def_vmap(lambda size, batched, x: (3 * x, True))
    return f(x)


def test_a_batched_derivative_that_differs_from_a_loop():
    x = REAL[0]
    f = doubled(backward=lambda ctx, g: wrong_when_batched(g))
    assert gradcheck(f, x)
    failed = "while testing batched gradient computation. The backward of .*differs"
    with pytest.raises(GradcheckError, match=failed):
        gradcheck(f, x, check_batched_grad=True)
    assert not gradcheck(f, x, check_batched_grad=True, raise_exception=False)
    f = doubled(backward=lambda ctx, g: 2 * g, jvp=lambda ctx, t: wrong_when_batched(t))
    assert gradcheck(f, x, check_forward_ad=True)
    with pytest.raises(GradcheckError, match="The jvp of .* differs from a loop"):
        gradcheck(f, x, check_forward_ad=True, check_batched_forward_grad=True)


def test_a_backward_that_vmap_refuses():
    f = doubled(backward=lambda ctx, g: jnp.asarray(2 * np.asarray(g)))
    assert gradcheck(f, REAL[0])
    with pytest.raises(GradcheckError, match="under jax.vmap raises: .*__array__"):
        gradcheck(f, REAL[0], check_batched_grad=True)


def test_a_batched_check_needs_its_mode():
    with pytest.raises(AssertionError, match="requires check_forward_ad to be True"):
        gradcheck(product(right), REAL, check_batched_forward_grad=True)
    options = {"check_backward_ad": False, "check_forward_ad": True}
    with pytest.raises(AssertionError, match="requires check_backward_ad to be True"):
        gradcheck(product(right), REAL, check_batched_grad=True, **options)


def test_a_missing_conjugate_shows_in_the_imaginary_part():
    f = product(saved(lambda x, y, g: (g * y, g * x)))
    assert gradcheck(f, REAL)
    match = "While considering the imaginary part of complex outputs only, Jacobian mis"
    with pytest.raises(GradcheckError, match=match):
        gradcheck(f, COMPLEX)


def test_a_wrong_jvp_of_complex_numbers_shows():
    f = product(right, saved(lambda x, y, s, t: s * y.conj() + x * t))
    match = "imaginary part of complex inputs only, Jacobian computed with forward mode"
    with pytest.raises(GradcheckError, match=match):
        gradcheck(f, COMPLEX, check_forward_ad=True)


def test_the_message_names_the_function_and_the_input():
    f = product(saved(lambda x, y, g: (g * y, -g * x)))
    match = r"(?s)output 0 with respect to input 1,.*backward of `Product.apply`"
    with pytest.raises(GradcheckError, match=match):
        gradcheck(f, REAL)


def test_a_wrong_second_derivative_shows():
    halfway = product(saved(lambda x, y, g: (g * jax.lax.stop_gradient(y), g * x)))
    assert gradcheck(halfway, REAL)
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        gradgradcheck(halfway, REAL)


def test_once_differentiable_refuses_gradgradcheck():
    f = product(jaxfn.once_differentiable(right))
    assert gradcheck(f, REAL)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradgradcheck(f, REAL)


def test_integer_arguments_and_objects_are_passed_on():
    f = function(
        forward=lambda ctx, x, i, s: x[i] * len(s["name"]),
        backward=lambda ctx, g, *_: (None, None, None),
    ).apply
    i = jnp.array([1, 0, 0])
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        gradcheck(f, (REAL[0], i, {"name": "abc"}))
    assert gradcheck(lambda x, i, s: x[i] * len(s), (REAL[0], i, "abc"))


def test_grad_outputs_may_be_given():
    f = product(right)
    assert gradgradcheck(f, REAL, jnp.array([1.0, -2.0]))
    assert gradgradcheck(f, REAL, (np.array([1.0, -2.0]),))


def test_gradients_of_another_dtype_fail_where_asked():
    @jax.custom_vjp
    def f(x):
        return 2 * x

    f.defvjp(lambda x: (2 * x, None), lambda _, g: ((2 * g).astype(jnp.float32),))
    assert gradcheck(f, REAL[0])
    with pytest.raises(GradcheckError, match="Gradient has dtype mismatch"):
        gradcheck(f, REAL[0], check_grad_dtypes=True)


def thrice(when_one_is_missing):
    """x three times, with a backward that calls this where one gradient is None."""

    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 1, x * 1, x * 1

    def backward(ctx, *gs):
        more = when_one_is_missing() if sum(g is None for g in gs) == 1 else 0.0
        return sum(g for g in gs if g is not None) + more

    return function(forward=forward, backward=backward).apply


def test_a_backward_that_raises_where_an_output_is_unused():
    def fail():
        raise RuntimeError("one is missing")

    assert gradcheck(thrice(fail), REAL[0], check_undefined_grad=False)
    with pytest.raises(GradcheckError, match="handle undefined output grads"):
        gradcheck(thrice(fail), REAL[0])


def test_a_backward_with_a_constant_where_an_output_is_unused():
    with pytest.raises(GradcheckError, match="undefined or zero when all output"):
        gradcheck(thrice(lambda: 1.0), REAL[0])


def test_a_jvp_that_takes_constants_for_something_else():
    def jvp(ctx, s, t):
        x, y = ctx.saved_tensors
        return x if s is None or t is None else s * y + x * t

    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_forward(x, y)
        return x * y

    f = function(forward=forward, jvp=jvp).apply
    options = {"check_forward_ad": True, "check_backward_ad": False}
    assert gradcheck(f, REAL, check_undefined_grad=False, **options)
    with pytest.raises(GradcheckError, match="Mismatch in tangent values"):
        gradcheck(f, REAL, **options)


def test_integer_outputs_that_change_fail():
    def steps(x):
        return (x * 1e7).astype(jnp.int32)

    with pytest.raises(GradcheckError, match="expected to be zero"):
        gradcheck(steps, REAL[0])


def changing(to):
    """The identity with a right backward, whose output is another kind from 1 on."""

    return function(
        "Changing",
        forward=lambda x: to(x) if (np.asarray(x) >= 1).all() else x,
        setup_context=nothing,
        backward=lambda ctx, g: g.real.sum(keepdims=True),
    ).apply


CHANGES = {
    "shape": lambda x: jnp.concatenate([x, x]),
    "dtype": lambda x: x.astype(complex),
}


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("at", [1.0, 1.0 - 1e-7], ids=["at the step", "before it"])
@pytest.mark.parametrize("what", CHANGES)
def test_outputs_whose_kind_changes_are_refused(what, at, check):
    f, xs = changing(CHANGES[what]), (np.array([at]),)
    match = (
        f"Expected `func` to return outputs with the same {what} when inputs are "
        f"perturbed .*by 1e-06, but got: {what}s .* and .* of output 0 of "
        "`Changing.apply` at"
    )
    with pytest.raises(GradcheckError, match=match) as caught:
        check(f, xs, atol=10.0)
    assert isinstance(caught.value, AssertionError)  # what torch raises
    with pytest.raises(AssertionError, match=match):  # also here, as in torch
        check(f, xs, atol=10.0, raise_exception=False)


def test_outputs_whose_kind_changes_are_refused_in_forward_mode():
    def f(x):
        return CHANGES["shape"](x) if (jax.lax.stop_gradient(x) >= 1).all() else x

    options = {"check_forward_ad": True, "check_backward_ad": False}
    match = "with the same shape when inputs are perturbed .*by 0.001, but got: shapes "
    with pytest.raises(GradcheckError, match=match):
        gradcheck(f, np.ones(1), eps=1e-3, **options)


@pytest.mark.parametrize(
    ("to", "match"),
    [
        (lambda x: x.astype(int), "dtypes int64 and float64"),
        (lambda x: (x, x), "the same number .* but got: numbers 2 and 1"),
        (lambda x: x[0], r"shapes \(\) and \(1,\)"),
    ],
    ids=["integers", "count", "scalar"],
)
def test_outputs_may_not_become_something_else(to, match):
    def f(x):
        return to(x) if (jax.lax.stop_gradient(x) >= 1).all() else x

    with pytest.raises(GradcheckError, match=match):
        gradcheck(f, np.ones(1), atol=10.0)


@pytest.mark.parametrize(
    ("check", "options"),
    [
        (gradcheck, {"check_backward_ad": False}),
        (gradgradcheck, {"check_rev_over_rev": False}),
        (gradgradcheck, {"check_rev_over_rev": False, "check_fwd_over_rev": True}),
    ],
)
def test_options_that_contradict_each_other_are_refused(check, options):
    with pytest.raises(AssertionError, match="requires|Expected at least one"):
        check(product(right), REAL, **options)


def test_an_empty_array_has_an_empty_jacobian():
    empty = (np.zeros((0, 2)), np.zeros((0, 2)))
    assert gradcheck(product(right, right_jvp), empty, check_forward_ad=True)
