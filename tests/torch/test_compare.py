"""`jaxfn.torch.compare`: what it finds, and what it finds no fault with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import Function

import jaxfn
from jaxfn import CheckError
from jaxfn.torch import OriginalError, compare, from_torch
from tests.build import function

from . import packages, pairs, test_constructs
from .other_ways import Square
from .pairs import RIGHT, A, V, W
from .ports import keeping, original, ported
from .wrong_ports import WRONG

SAVED = "PyTorch takes what forward computes and saves for constants"
# Of the second derivatives that differ from torch's, or that nothing says.
EXPECTED = {
    "intermediates saved": SAVED,
    "cotangents written": SAVED,
    "autograd in backward": "is not the slope of its own gradient here",
}


def report_of(name):
    return compare(WRONG[name].port, WRONG[name].original, *WRONG[name].args)


def row(report, name):
    return next(r for r in report.results if r.check == name)


# ---- wrong ports


@pytest.mark.filterwarnings("ignore:.* returned None, so the gradient is zero")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_port_is_found_and_named(name):
    wrong = WRONG[name]
    report = report_of(name)
    assert not report.ok
    first = report.failures[0]
    assert first.check == wrong.row
    assert wrong.text in first.message
    # What does not build on it agrees: nothing else is blamed.
    assert {r.rule for r in report.failures} == {first.rule}


def test_there_are_many_kinds():
    assert len(WRONG) >= 20
    assert len({(w.row, w.text) for w in WRONG.values()}) >= 20


# ---- right ports


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_port_agrees(name):
    pair = RIGHT[name]
    report = compare(pair.port, pair.original, *pair.args)
    assert report.failures == ()
    assert report.ok
    assert row(report, "value").status == "ok"
    assert row(report, "vmap").status == "ok"
    if name != "jvp alone":
        assert row(report, "gradient of argument 0").status == "ok"
    said = [r.message for r in report.expected]
    assert len(said) == (name in EXPECTED)
    assert all(EXPECTED[name] in text for text in said)


def test_there_are_many_right_ones():
    assert len(RIGHT) >= 20


CONSTRUCTS = (
    *("in place", "several", "complex", "autograd", "nested", "options", "separate"),
    *("reads needs", "broadcast", "linear", "saved", "masks", "bfloat16"),
)


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_what_from_torch_makes_agrees(name):
    cls, args, *_ = test_constructs.CASES[name]
    report = compare(from_torch(cls), cls, *args)
    assert report.failures == ()


PACKAGES = ("brevitas", "fairscale", "norse", "pyro", "snntorch", "spikingjelly")
ROWS = [next(r for r in packages.ROWS if r.package == name) for name in PACKAGES]


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.package)
def test_published_functions_agree(case):
    if not case.is_installed():
        pytest.skip(f"{case.package} is not installed here")
    packages.fresh()
    cls = case.load()
    report = compare(from_torch(cls), cls, *case.args())
    assert report.failures == ()
    assert row(report, "value").status == "ok"


# ---- what torch does


def overwriting(g, x):
    """Writes over what its gradient needs."""
    y = x.exp()
    z = y * g
    y.mul_(2)
    return z


FailsTwice = original("FailsTwice", torch.exp, overwriting)


def test_a_second_derivative_that_fails_in_torch():
    report = compare(jnp.exp, FailsTwice, V)
    found = row(report, "second derivative")
    assert found.status == "skipped"
    assert "PyTorch itself raises: RuntimeError: one of the variables" in found.message
    made = compare(from_torch(FailsTwice), FailsTwice, V)
    assert made.failures == ()


def test_arguments_that_torch_does_not_take_are_refused():
    with pytest.raises(OriginalError, match="`Exp.apply` raised on these"):
        compare(pairs.ExpPort, pairs.Exp, V, W)


def test_one_that_torch_does_not_differentiate_is_said_to_be():
    pair = RIGHT["one that torch does not differentiate"]
    report = compare(pair.port, pair.original, *pair.args)
    found = row(report, "gradient of argument 1")
    assert found.status == "skipped"
    assert "PyTorch itself raises: RuntimeError: no gradient of w" in found.message


def test_values_of_what_draws_are_refused_by_name():
    dropout = test_constructs.Dropout
    report = compare(from_torch(dropout, random=True), dropout, A, 0.5)
    assert (row(report, "shape").status, row(report, "dtype").status) == ("ok", "ok")
    assert row(report, "value").status == "skipped"
    assert "draws random numbers (aten.rand" in row(report, "value").message
    assert "test_constructs.py:" in report.refused
    assert (report.ok, report.failures) == (False, ())
    with pytest.raises(CheckError, match="values were not compared: it draws"):
        report.raise_on_failure()
    wrong = compare(lambda x, p: (x * p)[:1], dropout, A, 0.5)
    assert wrong.failures[0].check == "shape"


Noisy = function(
    "Noisy",
    Function,
    # Nothing of torch's.
    forward=lambda ctx, x: x * np.random.default_rng().random(),
    backward=lambda ctx, g: g,
)


NoisyGradient = function(
    "NoisyGradient",
    Function,
    forward=lambda ctx, x: x * 2,
    backward=lambda ctx, g: g * torch.rand_like(g),
)


def test_what_is_something_else_each_time_is_refused():
    report = compare(lambda x: x, Noisy, V)
    why = "it returns other values each time"
    assert report.refused == f"values were not compared: {why}"
    report = compare(lambda x: 2 * x, NoisyGradient, V)
    assert row(report, "value").status == "ok"
    found = row(report, "gradient of argument 0")
    assert "gradients can't be compared: it draws random numbers" in found.message
    assert not report.ok  # nobody has seen whether the gradients agree
    assert "gradients were not compared: it draws" in str(report)


@pytest.mark.parametrize(
    ("error", "ok"),
    [
        (RuntimeError("not for these " + 500 * "long "), False),
        (NotImplementedError("there is no gradient"), True),
    ],
)
def test_gradients_that_torch_does_not_give_are_not_compared(error, ok):
    def backward(ctx, g):
        raise error

    raises = function("Raises", NoisyGradient, backward=backward)
    report = compare(lambda x: 2 * x, raises, V)
    found = row(report, "gradient of argument 0")
    assert found.status == "skipped"
    assert f"PyTorch itself raises: {type(error).__name__}" in found.message
    assert len(found.message) < 500
    assert report.ok == ok  # as for a class without backward


def test_a_gradient_in_the_precision_given_alone_is_compared():
    def backward(ctx, g):
        assert g.dtype == torch.float32
        return 2 * g

    single = function("Single", NoisyGradient, backward=backward)
    report = compare(lambda x: 2 * x, single, V)
    assert row(report, "gradient of argument 0").status == "skipped"
    assert row(report, "gradients as given").status == "ok"
    assert report.ok
    wrong = compare(lambda x: x + jax.lax.stop_gradient(x), single, V)
    assert [found.check for found in wrong.failures] == ["gradients as given"]


def test_once_differentiable_is_no_second_derivative():
    pair = RIGHT["needs, once differentiable"]
    report = compare(pair.port, pair.original, *pair.args)
    assert row(report, "second derivative").message.startswith("both refuse it")
    report = compare(lambda x, w, b: x @ w.T + b, pair.original, *pair.args)
    assert (
        "only the port has a second derivative"
        in row(report, "second derivative").message
    )
    assert report.ok


def settled(x, tolerance):
    """An iteration, which is no more accurate than its tolerance."""
    y = torch.zeros_like(x)
    while True:
        last, y = y, 0.5 * torch.tanh(y) + x
        if (y - last).norm() < tolerance:
            return y


def settled_in_jax(x, tolerance):
    def step(state):
        return 0.5 * jnp.tanh(state[0]) + x, state[0]

    def goes_on(state):
        return jnp.linalg.norm(state[0] - state[1]) >= tolerance

    return jax.lax.while_loop(goes_on, step, (0 * x, 0 * x + jnp.inf))[0]


def slope_there(g, y, cosh=torch.cosh):
    return g / (1 - 0.5 / cosh(y) ** 2), None


Settles = original("Settles", settled, slope_there, keeping)


def settles(seen):
    """Return a port whose backward sees the saved output through a function."""

    def gradient(g, y):
        return slope_there(g, seen(y), jnp.cosh)

    return ported("Port", settled_in_jax, gradient, keeping)


@pytest.mark.parametrize("tolerance", [1e-6, 1e-4])
def test_a_second_derivative_of_an_iteration_is_compared(tolerance):
    report = compare(settles(lambda y: y), Settles, V, tolerance)
    assert report.ok, str(report)
    assert row(report, "second derivative").status == "ok"
    report = compare(settles(jax.lax.stop_gradient), Settles, V, tolerance)
    assert [r.check for r in report.failures] == ["second derivative"]


def test_a_second_derivative_without_a_reference_is_not_ok():
    """PyTorch takes the saved values of a surrogate for constants."""
    report = compare(pairs.RoundedSavedPort, pairs.RoundedSaved, V)
    assert (report.ok, report.failures) == (False, ())
    assert "second derivative was not compared: it differs" in report.summary
    assert "neither can be called right: PyTorch takes what" in report.summary
    assert "Pass order=1 to leave it out" in report.summary
    with pytest.raises(CheckError, match="second derivative was not compared"):
        report.raise_on_failure()
    assert compare(pairs.RoundedSavedPort, pairs.RoundedSaved, V, order=1).ok


def test_a_second_derivative_is_compared_at_the_edge_of_a_domain():
    def cube(x):
        assert (x <= 1).all()
        return x**3

    def stopped(g, x):
        return 3 * g * jax.lax.stop_gradient(x) ** 2

    edge = original("Edge", cube, lambda g, x: 3 * g * x**2)
    assert compare(lambda x: x**3, edge, np.ones(2)).ok
    report = compare(ported("Port", lambda x: x**3, stopped), edge, np.ones(2))
    assert [r.check for r in report.failures] == ["second derivative"]


def slope(sqrt, factor=1.0):
    """Of the logarithm, and as that NaN below zero."""
    return lambda g, x: factor * g * sqrt(x) / sqrt(x) / x


Logarithm = original("Logarithm", torch.log, slope(torch.sqrt))
Right, Sevenfold = (
    ported(f"Logarithm{factor}", jnp.log, slope(jnp.sqrt, factor))
    for factor in (1.0, 7.0)
)


def test_nan_alone_proves_nothing():
    report = compare(Sevenfold, Logarithm, -np.abs(V))
    assert (report.ok, report.failures) == (False, ())
    assert "value was not compared" in report.summary
    assert "Choose arguments in the domain of the function" in report.summary
    assert row(report, "gradients under jit").status == "skipped"
    assert compare(Right, Logarithm, V).ok  # one of three is in the domain
    assert not compare(Sevenfold, Logarithm, V).ok
    finite = compare(lambda x: jnp.ones(3), Logarithm, -np.abs(V))
    assert finite.failures[0].check == "value"


def test_nan_gradients_alone_prove_nothing():
    zero = original("Zero", lambda x: 0 * x, slope(torch.sqrt))
    port = ported("Port", lambda x: 0 * x, slope(jnp.sqrt, 7.0))
    report = compare(port, zero, -np.abs(V))
    assert (report.ok, report.failures) == (False, ())
    assert row(report, "value").status == "ok"
    assert "gradient of argument 0 was not compared" in report.summary


def test_none_is_the_same_as_zero():
    half = function(
        "Half",
        Function,
        forward=lambda ctx, x, y: x * 2 + y.round(),
        backward=lambda ctx, g: (2 * g, None),
    )
    report = compare(lambda x, y: 2 * x + jnp.round(y), half, V, W)
    assert row(report, "gradient of argument 1").status == "ok"
    assert report.ok


def test_an_unfaithful_vmap_rule_is_that_of_from_torch_too():
    report = compare(from_torch(pairs.BatchedOther), pairs.BatchedOther, V)
    assert report.ok, str(report)
    assert not report.expected
    assert row(report, "vmap").status == "ok"


def test_the_precision_given():
    report = compare(pairs.SinglePort, pairs.NotDouble, V)
    assert "value as given" not in [r.check for r in report.results]
    assert row(report, "value").tolerance == pytest.approx(3.5e-4, rel=0.1)
    pair = RIGHT["output saved"]
    given = compare(pair.port, pair.original, *pair.args, precision="given")
    assert row(given, "value").tolerance == pytest.approx(3.5e-4, rel=0.1)
    assert not jax.config.read("jax_enable_x64")
    assert torch.get_default_dtype() == torch.float32


def test_the_arguments_are_left_as_they_are():
    x, y = torch.tensor(V), torch.tensor(W)
    state = torch.get_rng_state()
    pair = RIGHT["cotangents written"]
    assert compare(pair.port, pair.original, x, y).ok
    assert (x.numpy() == V).all()
    assert (y.numpy() == W).all()
    options = {"k": 2.0, "b": 5.0}
    pair = RIGHT["options and a list"]
    assert compare(pair.port, pair.original, V, options, [W]).ok
    assert options == {"k": 2.0, "b": 5.0}
    assert (torch.get_rng_state() == state).all()


def test_what_cancels_is_not_compared_by_its_digits():
    def forward(ctx, x):
        y = x - x.mean()
        return y.sum(), y.exp()

    def port(x):
        y = x - x[::-1].sum() / 3
        return y[::-1].sum(), jnp.exp(y)

    def backward(ctx, g, h):
        return torch.zeros_like(h)

    centre = function("Centre", Function, forward=forward, backward=backward)
    found = row(compare(port, centre, 100 * V), "value")
    assert found.status == "ok"


def test_a_module_is_double_too():
    class Layer(Function):
        @staticmethod
        def forward(ctx, x, layer):
            ctx.layer = layer
            with torch.no_grad():
                return layer(x)

        @staticmethod
        def backward(ctx, g):
            return g @ ctx.layer.weight, None

    layer = torch.nn.Linear(3, 2)

    def port(x, layer):
        weight, bias = (jnp.asarray(p.detach().numpy()) for p in layer.parameters())
        return x @ weight.T + bias

    report = compare(port, Layer, A, layer)
    assert report.failures == ()
    assert row(report, "value").tolerance < 1e-7
    assert layer.weight.dtype == torch.float32


def filled(x):
    """What it makes without a dtype has torch's default one."""
    out = torch.zeros(3)
    out[:] = x
    return out


Filled = original("Filled", lambda x: filled(x.exp()), lambda g, x: filled(g * x.exp()))


def test_what_a_rule_makes_without_a_dtype_is_double_too():
    """In single precision nobody could tell these two ports apart."""
    assert compare(jnp.exp, Filled, V).ok
    found = row(compare(lambda x: jnp.exp(x) * (1 + 1e-6), Filled, V), "value")
    assert (found.status, found.error) == ("FAIL", pytest.approx(1e-6, rel=1e-3))
    assert torch.get_default_dtype() == torch.float32


# ---- the report and options


def test_the_report():
    report = report_of("Factor")
    text = str(report)
    assert text == repr(report)
    assert text.startswith(
        "`Factor` and the original `Exp`: 1 of 10 rows differ, 8 skipped. "
        "Wrong: backward.\n"
    )
    ran = [r for r in report.results if r.status != "skipped"]
    assert all(f"\n{r.check}  " in text for r in ran)
    assert "\n8 skipped: " in text
    page = report._repr_html_()
    assert page.count("<tr>") == len(ran) + 1
    assert "2 times the expected one" in page
    with pytest.raises(CheckError, match="2 times the expected one"):
        report.raise_on_failure()
    pair = RIGHT["intermediates saved"]
    report = compare(pair.port, pair.original, *pair.args)
    assert "1 with an expected difference" in str(report)
    assert "expected: PyTorch takes" in str(report)
    assert "expected</td>" in report._repr_html_()
    report.raise_on_failure()


def test_options():
    pair, seen = RIGHT["output saved"], []
    port, original, args = pair
    report = compare(
        port, original, *args, skip=["vmap", "gradients"], order=1,
        progress=lambda *now: seen.append(now),
    )  # fmt: skip
    assert row(report, "vmap").message == "skipped as told"
    assert row(report, "gradient of argument 0").message == "skipped as told"
    assert row(report, "second derivative").message == "order=1"
    assert seen[0] == (0, len(report.results), "outputs")
    assert [name for _, _, name in seen] == [r.check for r in report.results]
    wrong = WRONG["Factor"]
    assert compare(wrong.port, wrong.original, *wrong.args, rtol=10.0).ok
    assert compare(wrong.port, wrong.original, *wrong.args, atol=100.0).ok
    with pytest.raises(CheckError):
        compare(wrong.port, wrong.original, *wrong.args, raise_on_failure=True)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"skip": ["nothing"]}, "compare got skip=.*expected a list of names among"),
        ({"order": 3}, "compare got order=3: expected 1 or 2"),
        ({"rtol": -1.0}, "compare got rtol=-1.0"),
        ({"precision": "half"}, "compare got precision 'half'"),
    ],
)
def test_wrong_options(how, message):
    with pytest.raises(ValueError, match=message):
        compare(pairs.ExpPort, pairs.Exp, V, **how)


@pytest.mark.parametrize(
    ("port", "original", "message"),
    [
        (pairs.ExpPort, pairs.ExpPort, "expected a class derived from torch.autograd"),
        (pairs.ExpPort, pairs.Exp.apply, "Pass the class itself, not its apply"),
        (pairs.Exp, pairs.Exp, r"Pass jaxfn.torch.from_torch\(Exp\)"),
        (3, pairs.Exp, "expected a port that can be called, got 3"),
    ],
)
def test_no_port_or_no_original(port, original, message):
    with pytest.raises(TypeError, match=message):
        compare(port, original, V)


def test_the_same_seed_gives_the_same_report():
    pair = RIGHT["cotangents written"]
    first, again = (compare(pair.port, pair.original, *pair.args) for _ in range(2))
    assert first == again
    other = compare(pair.port, pair.original, *pair.args, seed=1)
    assert [r.status for r in other.results] == [r.status for r in first.results]
    assert isinstance(first, jaxfn.CheckReport)


def test_single_precision_inside_backward_is_not_wrong():
    """The usual gradient of a bias in a fused norm, whatever its arguments have."""

    def bias(base, total):
        def forward(ctx, x, b):
            ctx.dtype = b.dtype
            return x + b

        def backward(ctx, g):
            return g, total(g, ctx.dtype)

        return function("Bias", base, forward=forward, backward=backward)

    def port(factor):
        def total(g, dtype):
            return (factor * g.astype(jnp.float32).sum(0)).astype(dtype)

        return bias(jaxfn.Function, total)

    theirs = bias(Function, lambda g, dtype: g.float().sum(0).to(dtype))
    numbers = np.random.default_rng(0)
    args = [numbers.normal(size=size).astype("float32") for size in ((50, 8), (8,))]
    for right in (port(1), from_torch(theirs)):
        report = compare(right, theirs, *args)
        assert report.ok, report
    assert not compare(port(1 + 1e-4), theirs, *args).ok


def is_compiled(x):
    return type(x).__name__ in ("DynamicJaxprTracer", "JitTracer")


def test_what_is_wrong_only_when_compiled_is_told_once():
    """Some rows run a compiled port, and are not about that."""
    port = lambda x: jnp.exp(x) * (x.itemsize if is_compiled(x) else 1)  # noqa: E731
    report = compare(port, pairs.Exp, V)
    assert [r.check for r in report.failures] == ["value under jit"]


def test_few_programs_are_compiled():
    """A single operation takes almost as long to compile as a program."""

    def rules(floor, round_):
        def root(x):
            return x - floor(x) + round_(x)

        return lambda x: root(x) ** 2, lambda g, x: 2 * g * root(x)

    port = ported("Port", *rules(jnp.floor, jnp.round))
    theirs = original("Original", *rules(torch.floor, torch.round))
    shapes = np.arange(15, dtype=np.float32).reshape(3, 5) / 7  # of no other test
    found = []

    def listen(event, seconds, **_):
        found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        assert compare(port, theirs, shapes).ok
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert sum("backend_compile" in event for event in found) < 40


def test_an_integer_output_has_no_gradient_to_compare():
    sign, port = (
        function("Sign", base, forward=forward, backward=lambda ctx, g: 3 * g)
        for base, forward in (
            (Function, lambda ctx, x: torch.where(x < 0, -1.0, 1.0)),
            (jaxfn.Function, lambda ctx, x: jnp.where(x < 0, -1, 1)),
        )
    )
    report = compare(port, sign, V)
    assert [r.check for r in report.results if r.status == "FAIL"] == ["dtype"]
    assert "an integer or bool has no gradient" in row(report, "dtype").message
    assert "Wrong: forward." in str(report)
    assert "of the port is int" in row(report, "gradient of argument 0").message


def test_a_port_is_traced_and_not_run_at_each_step():
    """Its loops would compile each time that the arguments are stepped."""
    runs = []

    def gradient(g, x):
        runs.append(isinstance(x, jax.core.Tracer))
        return 7.00001 * x * g

    port = ported("Port", lambda x: x * x, gradient)
    report = compare(port, Square, jnp.arange(1.0, 4.0), order=1)
    assert report.wrong_rules == ("backward",)
    assert runs.count(False) < 10
    assert len(runs) < 30, len(runs)
