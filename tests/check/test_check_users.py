"""`check` passes Functions as users write them, and says how accurate they are."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxfn
from tests.build import function, in_style, saving
from tests.check.user_functions import USERS, Bisection, Conjugate, FixedPoint, Root
from tests.check.wrong_functions import V
from tests.sizes import only

# The others take 4 to 20 seconds each.
QUICK = ("learned step", "root")


@pytest.mark.parametrize("name", only(USERS, lambda name: name in QUICK))
def test_no_false_alarm(name):
    user = USERS[name]
    report = jaxfn.check(user.fun, *user.args, **user.options)
    assert report.ok, str(report)
    ran = {r.check for r in report.results if r.status == "ok"}
    assert {"backward", "vmap of backward", "scan", "checkpoint"} <= ran, str(report)


SOLVERS = {
    "fixed point": (FixedPoint, USERS["fixed point"].args[:-1]),
    "root": (Root, USERS["root"].args[:-1]),
    "conjugate gradients": (Conjugate, USERS["conjugate gradients"].args[:-1]),
    "bisection": (Bisection, USERS["root"].args[:-1]),
}
MANY = [(name, tol) for name in SOLVERS for tol in (1e-6, 1e-11, 1e-15)]


def pytest_generate_tests(metafunc):
    if "solver" in metafunc.fixturenames:
        # A halved interval is no shorter than the distance of two floats.
        some = [case for case in MANY if case != ("bisection", 1e-15)]
        metafunc.parametrize(("solver", "tol"), some)


@pytest.mark.full  # the next test has one of them
def test_a_solver_with_a_tolerance_is_no_false_alarm(solver, tol):
    fun, args = SOLVERS[solver]
    report = jaxfn.check(fun, *args, tol, order=1)
    assert report.ok, str(report)


def message_of(report, check):
    return next(r for r in report.results if r.check == check).message


@pytest.mark.full
def test_the_accuracy_is_said():
    fun, args = SOLVERS["bisection"]
    report = jaxfn.check(fun, *args, 1e-9, order=1)
    assert report.ok, str(report)
    assert "forward is accurate to about " in message_of(report, "backward")
    assert "e-10 here" in message_of(report, "backward") or "e-09 here" in str(report)


@pytest.mark.parametrize(
    ("factor", "tol"),
    only(
        itertools.product([0.0, -1.0, 0.99, 1.002], [1e-6, 1e-10]),
        lambda x: x in [(0.99, 1e-6), (1.002, 1e-10)],
    ),
)
def test_a_wrong_gradient_of_a_solver_is_found(factor, tol):
    class Wrong(Bisection):
        @staticmethod
        def backward(ctx, g):
            a, b, tol = Bisection.backward(ctx, g)
            return a, factor * b, tol

    report = jaxfn.check(Wrong, *SOLVERS["bisection"][1], tol, order=1)
    assert report.wrong_rules == ("backward",), str(report)
    assert "gradient of argument 1" in report.failures[0].message


def test_jumps_that_are_no_rounding_excuse_nothing():
    steps = function(
        setup_context=saving(),
        forward=lambda x: x + jnp.round(100 * x) / 1000,
        backward=lambda ctx, g: 1.01 * g,
    )
    assert jaxfn.check(steps, V, order=1).wrong_rules == ("backward",)


@pytest.mark.full
def test_a_loop_without_a_limit_is_not_tried_in_a_low_precision():
    fun, args = SOLVERS["bisection"]
    report = jaxfn.check(fun, *args, 1e-9, order=1)
    assert "without a limit: maybe forever in bfloat16" in message_of(
        report, "low precision"
    )


# ---- the second order, and the tolerances

STOPPED = function(
    setup_context=saving(),
    forward=jnp.sin,
    backward=lambda ctx, g: g * jnp.cos(lax.stop_gradient(ctx.saved_tensors[0])),
)


def test_a_failure_of_second_order_says_what_would_be_right():
    report = jaxfn.check(STOPPED, V)
    assert [r.check for r in report.failures] == ["backward of backward"]
    assert "The first derivative is right" in report.failures[0].message
    assert "once_differentiable" in report.failures[0].message
    assert "order=1" in report.failures[0].message


def test_order_1_leaves_the_second_derivatives_out():
    report = jaxfn.check(STOPPED, V, order=1)
    assert report.ok
    left = {r.check for r in report.skipped if r.message == "order=1"}
    assert left == {
        "backward of backward",
        "jvp of backward",
        "backward of jvp",
        "jvp of jvp",
    }


def off(factor=1.0, constant=0.0):
    return function(
        setup_context=saving(),
        forward=jnp.sin,
        backward=lambda ctx, g: g * (factor * jnp.cos(ctx.saved_tensors[0]) + constant),
    )


@pytest.mark.full
def test_rtol_and_atol_allow_for_what_differs():
    assert not jaxfn.check(off(1.0001), V, order=1).ok
    assert jaxfn.check(off(1.0001), V, order=1, rtol=1e-3).ok
    assert not jaxfn.check(off(1.01), V, order=1, rtol=1e-3).ok
    assert not jaxfn.check(off(constant=1e-4), V, order=1).ok
    assert jaxfn.check(off(constant=1e-4), V, order=1, atol=1e-3).ok
    assert not jaxfn.check(off(constant=1e-2), V, order=1, atol=1e-3).ok


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"order": 3}, "check got order=3: expected 1 or 2"),
        ({"rtol": -1.0}, "check got rtol=-1.0: expected 0 or more"),
        ({"atol": float("nan")}, "check got atol=nan: expected 0 or more"),
    ],
)
def test_wrong_options_are_refused(option, message):
    with pytest.raises(ValueError, match=message):
        jaxfn.check(STOPPED, V, **option)


# ---- low precision


def test_a_gradient_that_fails_in_low_precision_is_of_backward():
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * jnp.cos(x) * (2 if x.dtype == jnp.bfloat16 else 1)

    wrong = function(setup_context=saving(), forward=jnp.sin, backward=backward)
    report = jaxfn.check(wrong, V)
    assert [r.check for r in report.failures] == ["low precision"]
    assert report.wrong_rules == ("backward",)
    assert "gradient 0 in bfloat16" in report.failures[0].message


@pytest.mark.full
def test_a_rounding_that_decides_is_no_failure_in_low_precision():
    user = USERS["learned step"]
    for seed in range(3):
        report = jaxfn.check(user.fun, *user.args, **user.options, seed=seed, order=1)
        assert report.ok, str(report)


def test_many_kinks_are_near():
    x = np.random.default_rng(0).standard_normal(3000).astype(np.float32)
    hinges = function(
        setup_context=saving(),
        forward=lambda x: jnp.abs(x).sum(),
        backward=lambda ctx, g: g * jnp.sign(ctx.saved_tensors[0]),
    )
    report = jaxfn.check(hinges, x, order=1, low_precision=None)
    assert report.ok, str(report)


@pytest.mark.parametrize("decorator", [jax.custom_vjp, jaxfn.custom_function])
def test_rules_get_jax_arrays_where_nothing_can_be_traced(decorator):
    @decorator
    def square(x):
        float(x.sum())
        return x * x

    def fwd(x):
        return x * x, x.at[0].multiply(1.0001)  # wrong by little: `check` looks closer

    square.defvjp(fwd, lambda x, g: (2 * x * g.at[0].get(),))
    report = jaxfn.check(square, jnp.arange(1.0, 4.0))
    (wrong,) = (r for r in report.results if r.check == "backward")
    assert "gradient of argument 0" in wrong.message, str(report)


def keeps_no_array():
    weights = np.array([1.0, 0.0, 2.0])
    return lambda x: jnp.sin(x) * weights


def keeps_no_index():
    index = np.array([1, 0, 2])
    return lambda x: jnp.sin(x)[index]


@pytest.mark.parametrize("make", [keeps_no_array, keeps_no_index])
@pytest.mark.parametrize("before", [True, False], ids=["called before", "not"])
def test_numpy_arrays_keep_their_width(make, before):
    """JAX caches them with the width of their first use, whichever precision is on."""
    f, x = make(), jnp.array([1.0, 2.0, 3.0])
    if before:
        jax.jit(f)(x), f(x)
    report = jaxfn.check(f, x)
    assert report.ok, str(report)
    assert f(x).dtype == jax.jit(f)(x).dtype == np.float32


def test_an_output_without_a_derivative_is_named():
    """Torch refuses the gradient of a bool; JAX gives zero."""

    @jaxfn.custom_function
    def spike(x):
        return x > 0

    spike.defvjp(lambda x: (x > 0, x), lambda x, g: (g / (1 + abs(x)) ** 2,))
    for options in ({}, {"surrogate": True, "reference": lambda x: x / (1 + abs(x))}):
        report = jaxfn.check(spike, jnp.array([0.3, -0.4]), **options)
        assert report.ok
        assert "No derivative was compared: no output is a float" in report.summary


class Answers:
    """An object that has every attribute."""

    def __call__(self):
        pass

    def __getattr__(self, name):
        return Answers()


ANSWERS = Answers()


def test_an_object_that_can_not_be_searched():
    assert jaxfn.check(lambda x: x * (2 if ANSWERS is None else 3), V, order=1).ok


def decorated(factor):
    f = jaxfn.custom_function(lambda x: jnp.sin(x))
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (factor * g * jnp.cos(x),))
    return f


def in_class(factor):
    def backward(ctx, g):
        return factor * g * jnp.cos(ctx.saved_tensors[0])

    forward, save = lambda x: jnp.sin(x), saving()
    return function("F", forward=forward, setup_context=save, backward=backward)


@pytest.mark.parametrize("make", [decorated, in_class])
def test_a_python_number_is_differentiated(make):
    assert jaxfn.check(make(1), 0.5).ok
    assert jaxfn.check(make(99), 0.5).wrong_rules == ("backward",)


def test_a_number_beside_an_array():
    """A decorated function differentiates it; for a plain one it is static."""
    product = jaxfn.custom_function(lambda x, y: x * y)
    product.defvjp(lambda x, y: (x * y, (x, y)), lambda r, g: (r[1] * g, 9 * r[0] * g))
    x = jnp.ones(())
    assert not jaxfn.check(product, x, 0.5).ok
    assert jaxfn.check(lambda x, y: x * 2 if y > 0 else x, x, 0.5).ok


def test_a_list_of_numbers():
    product = jaxfn.custom_function(lambda xs: xs[0] * xs[1])
    bwd = lambda xs, g: ([xs[1] * g, xs[0] * g],)  # noqa: E731
    product.defvjp(lambda xs: (xs[0] * xs[1], xs), bwd)
    assert jaxfn.check(product, [1.0, 2.0]).ok


def test_nothing_to_compare_is_said():
    """A forward without `return`, integers alone, a class of PyTorch, an error."""
    f = function("F", forward=lambda ctx, x: None, backward=lambda ctx, g: g)
    report = jaxfn.check(f, jnp.ones(3))
    assert not report.ok
    assert "Is `return` missing?" in report.failures[0].message
    f = function("F", forward=lambda ctx, x: x * 2, backward=lambda ctx, g: g)
    assert "No derivative was compared" in jaxfn.check(f, jnp.arange(3)).summary
    f = function("F", forward=lambda ctx, x: x.clamp(0), backward=lambda ctx, g: g)
    (failure, *_) = jaxfn.check(f, jnp.ones(3)).failures
    assert "Write jnp.clip(x, lower, upper)" in failure.message


def test_a_leak_says_who_may_leak():
    kept = []

    def leaky(x):
        kept.append(x)
        return jnp.sin(x)

    (failure,) = jaxfn.check(leaky, jnp.ones(3)).failures
    assert failure.check == "leaks"
    assert 'skip=["leaks"]' in failure.message


def test_check_refuses_pytorch():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="expected JAX or NumPy arrays"):
        jaxfn.check(jnp.sin, torch.ones(3))
    mine = type("Mine", (torch.autograd.Function,), {"forward": lambda ctx, x: x})
    with pytest.raises(TypeError, match="JAX does not use the rules of this one"):
        jaxfn.check(mine, jnp.ones(3))
    with pytest.raises(TypeError, match="JAX does not use the rules of this one"):
        jaxfn.check(mine.apply, jnp.ones(3))


def test_wrong_blame():
    """Of the dtype of a constant, of a nan, of what is no function."""
    zero = jnp.zeros((), jnp.float32)
    total = lambda x: lax.scan(lambda c, t: (c + t, None), zero, x)[0]  # noqa: E731
    (failure,) = jaxfn.check(total, jnp.ones(3)).failures
    assert 'pass precision="given"' in failure.message
    assert jaxfn.check(total, jnp.ones(3), precision="given").ok
    report = jaxfn.check(jnp.log, jnp.array([-1.0, 2.0]), order=1)
    assert "the value is nan here" in report.failures[0].message
    assert jaxfn.check(lambda x: x * x, 3).ok  # an integer has no derivative
    with pytest.raises(
        TypeError, match="Pass the function or class itself, without parenthe"
    ):
        jaxfn.check(3, jnp.ones(3))


def test_no_leak_where_another_check_fails():
    """The error of that check keeps traced values."""
    f = jaxfn.custom_function(jnp.sin, generate_jvp_rule=True)

    def bwd(x, g):
        step = lambda s: (s[0] * jnp.cos(x), s[1] + 1)  # noqa: E731
        return (lax.while_loop(lambda s: s[1] < 1, step, (g, 0))[0],)

    f.defvjp(lambda x: (jnp.sin(x), x), bwd)
    assert jaxfn.check(f, V).wrong_rules == ("backward",)


def test_an_output_that_rounds_is_named():
    spike = function(
        **in_style("combined", lambda x: (x > 0).astype(jnp.float32), saving()),
        backward=lambda ctx, g: g / (1 + jnp.abs(ctx.saved_tensors[0])) ** 2,
    )
    report = jaxfn.check(spike, V, surrogate=True)
    skipped = [x.message for x in report.results if "has no slope here" in x.message]
    assert skipped
    assert all("an output is float32 and rounds" in text for text in skipped)


def test_one_mistake_is_one_failure():
    """Its forward can't be traced, its backward is right."""

    def forward(ctx, x, keep):
        ctx.save_for_backward(2 * x * keep)
        return (x * x)[keep].sum()

    @jaxfn.once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None

    masked = function("Masked", forward=forward, backward=backward)
    report = jaxfn.check(masked, V, jnp.array([True, False, True]))
    assert report.wrong_rules == ("forward",)
    assert [x.check for x in report.failures] == ["value under jit"]


def product(x, y, scale=2):
    return scale * x * y


def combined_product(ctx, x, y, scale=2):
    ctx.save_for_backward(x, y)
    return product(x, y, scale)


def save_both(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])


def product_backward(ctx, g):
    x, y = ctx.saved_tensors
    return 2 * g * y, 2 * g * x, None


Product = function("Product", forward=combined_product, backward=product_backward)
Separate = function("S", base=Product, forward=product, setup_context=save_both)


decorated = jaxfn.custom_function(product, nondiff_argnums=2)
decorated.defvjp(
    lambda x, y, k: (product(x, y, k), (x, y)),
    lambda k, res, g: (k * g * res[1], k * g * res[0]),
)


@pytest.mark.parametrize(
    "fun",
    [Product, Product.apply, Separate, Separate.apply, product, decorated],
    ids=["combined", "apply", "separate", "its apply", "function", "decorated"],
)
def test_arguments_that_do_not_fit_are_no_wrong_rule(fun):
    x = jnp.ones(3)
    missing = r"got 1 arguments for .*argument: 'y'\. Expected .*\(x, y, scale=2\)\."
    with pytest.raises(TypeError, match=missing):
        jaxfn.check(fun, x)
    with pytest.raises(TypeError, match="too many positional arguments"):
        jaxfn.check(fun, x, x, 2, x)
    assert jaxfn.check(fun, x, 2 * x, order=1).ok


def test_a_wrapper_takes_arguments_of_its_own():
    @functools.wraps(product)
    def square(x):
        return product(x, x)

    assert jaxfn.check(square, jnp.ones(3), order=1).ok
    gradient = jax.grad(Product.apply)
    assert jaxfn.check(gradient, 1.0, 2.0, order=1).ok
    assert jaxfn.check(functools.partial(product, y=2.0), jnp.ones(3), order=1).ok
