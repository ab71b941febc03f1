"""`check` passes what is right, and names what is wrong."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxfn
from jaxfn._check.report import CheckError
from jaxfn._examples import EXAMPLES
from tests.build import function, saving
from tests.check.wrong_functions import (
    ALIKE,
    WRONG,
    A,
    C,
    V,
    W,
    right_sin,
    right_times,
    times,
)
from tests.sizes import only


@functools.cache
def report_of(name):
    wrong = WRONG[name]
    return jaxfn.check(wrong.fun, *wrong.args)


@pytest.mark.parametrize("name", only(WRONG, lambda name: name not in ALIKE))
def test_a_wrong_function_is_found_and_its_rule_named(name):
    report = report_of(name)
    wrong = WRONG[name]
    assert report.wrong_rules == (wrong.rule,), str(report)
    assert wrong.check in [r.check for r in report.failures], str(report)


def conj_times(ctx, g):
    x, y = ctx.saved_tensors
    return g * y.conj(), g * x.conj()


def times_jvp(ctx, s, t):
    x, y = ctx.saved_tensors
    return s * y + x * t


def take(ctx, x, i):
    """Rows by integer indices."""
    ctx.save_for_backward(i)
    ctx.n = x.shape
    return x[i], i + 1


def take_back(ctx, g, _):
    (i,) = ctx.saved_tensors
    return jnp.zeros(ctx.n, g.dtype).at[i].add(g), None


class Unused(jaxfn.Function):
    """Gradients only where needed, and None where an output is not used."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        ctx.set_materialize_grads(False)
        return x * y, x + y

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        zero = jnp.zeros_like(x)
        g, h = (zero if g is None else g), (zero if h is None else h)
        need_x, need_y = ctx.needs_input_grad
        return (g * y + h if need_x else None), (g * x + h if need_y else None)


def tree(ctx, tree, name):
    """A dict in, a list in a dict out; the object is passed on."""
    ctx.save_for_backward(tree["a"])
    return {"out": [tree["a"] ** 2, 3 * tree["b"]], "name": name}


def tree_back(ctx, g):
    (a,) = ctx.saved_tensors
    return {"a": 2 * a * g["out"][0], "b": 3 * g["out"][1]}, None


@jax.custom_jvp
def log1pexp(x):
    return jnp.log1p(jnp.exp(x))


log1pexp.defjvp(lambda p, t: (log1pexp(*p), jax.nn.sigmoid(p[0]) * t[0]))


@jaxfn.custom_function
def halved(x):
    return x / 2


@halved.setup_context
def _(ctx, inputs, output): ...


@halved.backward
def _(ctx, g):
    return g / 2


def _scaled_vmap(info, in_dims, x, y):
    x, y = (
        z if d == 0 else jnp.broadcast_to(z, (info.batch_size, *z.shape))
        for z, d in zip((x, y), in_dims, strict=True)
    )
    return x * y, 0


TIMES = {"setup_context": saving(), "forward": times}
RIGHT = {
    "real": (function(**TIMES, backward=right_times, jvp=times_jvp), V, W),
    "complex": (function(**TIMES, backward=conj_times, jvp=times_jvp), C, C[::-1]),
    "mixed": (
        function(
            **TIMES,
            backward=lambda ctx, g: (lambda x, y: ((g * y.conj()).real, g * x))(
                *ctx.saved_tensors
            ),
        ),
        V,
        C,
    ),
    "bfloat16": (
        function(**TIMES, backward=right_times),
        jnp.asarray(V, jnp.bfloat16),
        jnp.asarray(W, jnp.bfloat16),
    ),
    "vmap rule": (function(**TIMES, backward=right_times, vmap=_scaled_vmap), V, W),
    "jvp alone": (function(**TIMES, jvp=times_jvp), V, W),
    "integers": (function(forward=take, backward=take_back), A, np.array([2, 0, 0])),
    "unused": (Unused, V, W),
    "tree": (
        function(forward=tree, backward=tree_back, generate_jvp_rule=True),
        {"a": V, "b": A},
        "name",
    ),
    "custom_jvp": (log1pexp, V),
    "custom_function": (halved, V),
    "plain JAX": (lambda a, x: jnp.tanh(a @ x).sum(), A, V),
    "empty": (function(**TIMES, backward=right_times), V[:0], W[:0]),
    "scalar": (function(**TIMES, backward=right_times), V[0], W[0]),
    "large": (lambda x: jnp.log(x), 1e6 * np.abs(V)),
    "small": (lambda x: jnp.sqrt(x), 1e-6 * np.abs(V)),
    "no float": (lambda i: i + 1, np.array([1, 2])),
    "key": (lambda key, x: x * jax.random.normal(key, x.shape), jax.random.key(0), V),
    "constant": (lambda x: jnp.zeros(2), V),
    **{e.function.__name__: (e.function, *e.arrays(), *e.static) for e in EXAMPLES},
}


# 2 to 6 seconds each. "real" and "scalar" are checked in other tests too.
SLOW = {"real", "mixed", "scalar", "large", "small", "key", "integers"}
SLOW |= {"plain JAX", "custom_jvp", "complex"}
SLOW |= {e.function.__name__ for e in EXAMPLES}


@pytest.mark.parametrize("name", only(RIGHT, lambda name: name not in SLOW))
def test_a_right_function_passes(name):
    report = jaxfn.check(*RIGHT[name])
    assert report.ok, str(report)


def row(report, check):
    return next(r for r in report.results if r.check == check)


@functools.cache
def names():
    """Of all checks."""
    return [r.check for r in jaxfn.check(lambda i: i, np.array([1])).results]


def all_but(*checks):
    """What to skip, to see these alone."""
    assert set(checks) <= set(names())
    return [name for name in names() if name not in checks]


def test_elements_on_a_kink_are_not_compared():
    # V[2] is 0.4, and in bfloat16 it would be on the kink exactly.
    clamped = function(
        forward=lambda ctx, x: (ctx.save_for_backward(x), jnp.maximum(x, 0.4))[1],
        backward=lambda ctx, g: jnp.where(ctx.saved_tensors[0] > 0.5, g, 0),
    )
    report = jaxfn.check(clamped, V, low_precision=None)
    assert report.ok, str(report)
    wrong = function(
        forward=lambda ctx, x: jnp.maximum(x, 0.4), backward=lambda ctx, g: 0.9 * g
    )
    assert jaxfn.check(wrong, V, low_precision=None).wrong_rules == ("backward",)


def test_a_wrong_rule_of_jax_custom_jvp_is_named():
    @jax.custom_jvp
    def square(x):
        return x * x

    square.defjvp(lambda p, t: (square(*p), p[0] * t[0]))
    assert jaxfn.check(square, V).wrong_rules == ("jvp",)


# ---- rules that differ from the value on purpose

STE = function(
    "RoundSTE",
    setup_context=saving(),
    forward=lambda x: jnp.round(x),
    backward=lambda ctx, g: g,
)


def test_a_surrogate_fails_unless_it_is_said_to_be_one():
    assert jaxfn.check(STE, V).wrong_rules == ("backward",)
    report = jaxfn.check(STE, V, surrogate=True)
    assert report.ok
    assert row(report, "backward").status == "skipped"
    assert "surrogate" in str(report)


def test_a_surrogate_is_compared_with_its_reference():
    right = jaxfn.check(STE, V, surrogate=True, reference=lambda x: 1 * x)
    wrong = jaxfn.check(STE, V, surrogate=True, reference=lambda x: 2 * x)
    assert right.ok
    assert "backward" not in [r.check for r in right.skipped]
    assert [r.check for r in wrong.failures] == ["backward"]


def test_a_surrogate_with_a_wrong_jvp_is_still_found():
    wrong = function(
        setup_context=saving(),
        forward=lambda x: jnp.round(x),
        backward=lambda ctx, g: g,
        jvp=lambda ctx, t: 2 * t,
    )
    report = jaxfn.check(wrong, V, surrogate=True)
    assert [r.check for r in report.failures] == ["adjoint"]
    assert report.wrong_rules == ("backward or jvp",)


def test_a_reference_compares_the_value_too():
    sin = function(setup_context=saving(), forward=jnp.sin, backward=right_sin)
    assert jaxfn.check(sin, V, reference=jnp.sin).ok
    report = jaxfn.check(sin, V, reference=lambda x: jnp.sin(x) + 1)
    assert report.wrong_rules == ("forward",)


def through(x):
    """The value of STE with its derivative."""
    return x + lax.stop_gradient(jnp.round(x) - x)


@pytest.mark.full
def test_second_derivatives_of_a_surrogate_inside_go_through_its_rules():
    def product(x):
        return jnp.sin(x) * STE.apply(x)

    some = all_but("value", "backward", "backward of backward")
    report = jaxfn.check(
        product, V, reference=lambda x: jnp.sin(x) * through(x), skip=some
    )
    assert report.ok, str(report)
    assert row(report, "backward of backward").status == "ok"
    report = jaxfn.check(product, V, surrogate=True, skip=some)
    assert report.ok, str(report)
    second = row(report, "backward of backward")
    assert second.status == "skipped"
    assert "a second derivative goes through the rules" in second.message


def test_a_wrong_second_derivative_is_found_beside_a_reference():
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * lax.stop_gradient(jnp.cos(x))

    first = function(setup_context=saving(), forward=jnp.sin, backward=backward)
    report = jaxfn.check(first, V, reference=jnp.sin)
    assert [r.check for r in report.failures] == ["backward of backward"]


HESSIAN_RAISES = "no forward rule, and backward can't be transposed: jax.hessian raises"


def stopped(ctx, grad):
    """Have no transpose in JAX: what is stopped has no derivative."""
    return jax.lax.stop_gradient(grad) * jnp.cos(ctx.saved_tensors[0])


def test_a_backward_that_can_not_be_transposed_is_no_failure():
    rules = {"setup_context": saving(), "forward": jnp.sin, "backward": stopped}
    some = all_but("value", "backward", "jvp", "jvp of backward")
    report = jaxfn.check(function(**rules), V, skip=some)
    assert report.ok, str(report)
    last = row(report, "jvp of backward")
    assert (last.status, last.message) == ("skipped", HESSIAN_RAISES)
    claimed = jaxfn.check(function(generate_jvp_rule=True, **rules), V, skip=some)
    assert "jvp" in [r.check for r in claimed.failures], str(claimed)


def test_a_guarded_backward_has_a_hessian():
    def guarded(ctx, grad):
        return jnp.nan_to_num(grad) * jnp.cos(ctx.saved_tensors[0])

    rules = {"setup_context": saving(), "forward": jnp.sin, "backward": guarded}
    report = jaxfn.check(function(**rules), V)
    assert report.ok, str(report)
    assert row(report, "jvp of backward").status == "ok"


def test_it_says_that_a_hessian_of_defvjp_alone_raises():
    f = jaxfn.custom_function(jnp.sin)
    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * jnp.cos(x),))
    result = row(jaxfn.check(f, V), "jvp of backward")
    assert (result.status, result.message) == ("skipped", "no forward rule")


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (NotImplementedError("no kernel for it"), True),
        (TypeError("lu does not accept dtype bfloat16"), True),
        (TypeError("add requires arguments to have equal dtypes"), False),
    ],
)
def test_a_backward_may_refuse_a_low_precision(error, refused):
    def backward(ctx, g):
        if g.dtype == jnp.bfloat16:
            raise error
        return 2 * g

    picky = function(forward=lambda ctx, x: 2 * x, backward=backward)
    report = jaxfn.check(picky, V, skip=all_but("backward", "low precision"))
    assert report.ok == refused, str(report)
    low = row(report, "low precision")
    assert low.message.startswith("backward refuses bfloat16: ") == refused
    assert str(error) in low.message


def test_a_gradient_that_cancels_is_right_in_low_precision():
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return out * (g - (g * out).sum())

    softmax = function(
        forward=lambda ctx, x: (ctx.save_for_backward(y := jax.nn.softmax(x)), y)[1],
        backward=backward,
    )
    # For cotangents that are all one the gradient is zero, beside rounding.
    low = all_but("backward", "low precision")
    report = jaxfn.check(softmax, np.linspace(-1, 1, 12), skip=low)
    assert report.ok, str(report)


def test_a_value_that_rounds_has_no_slope_to_compare_with():
    def short(x):
        return jnp.sin(x.astype(jnp.bfloat16)).astype(x.dtype)

    rounding = function(setup_context=saving(), forward=short, backward=right_sin)
    assert not jaxfn.check(rounding, V).ok


# ---- the report


def test_the_message_says_which_element_is_wrong_and_by_how_much():
    (failure,) = report_of("OneElement").failures
    assert "argument 0 (f32[3,3]) at [1, 2]" in failure.message
    assert "got 0" in failure.message
    (failure,) = report_of("Factor").failures
    assert "the whole gradient is 2 times the expected one" in failure.message
    assert failure.error == pytest.approx(0.5, abs=1e-5)  # relative, with a least size
    assert failure.error > failure.tolerance


def test_a_failing_report_begins_with_what_is_wrong():
    report = report_of("Factor")
    summary, _, first, _, head, _, *rows, _, folded = str(report).splitlines()
    assert repr(report) == str(report)
    ran = len(report.results) - len(report.skipped)
    assert summary == report.summary
    assert summary == (
        f"`Factor`: 1 of {ran} checks failed, {len(report.skipped)} skipped. "
        "Wrong: backward."
    )
    assert first == f"backward (backward): {report.failures[0].message}"
    assert head.split() == ["check", "rule", "error", "allowed"]
    shown = [r for r in report.results if r.status != "skipped"]
    for row, result in zip(rows, shown, strict=True):
        assert row.startswith(f"{result.check}  ")
        assert row.endswith(f"  {result.status}")
    assert folded == "22 skipped: 16 depend on `backward`, 6 need a forward rule"


@pytest.mark.full
def test_skips_are_folded_by_their_reason():
    told = jaxfn.check(WRONG["Factor"].fun, V, skip=["scan", "leaks"], order=1)
    folded = str(told).splitlines()[-1]
    assert folded.startswith(f"{len(told.skipped)} skipped: ")
    for part in ("2 as told", "4 (order=1)", "11 depend on `backward`"):
        assert part in folded
    numbers = [int(part.split()[0]) for part in folded.partition(": ")[2].split(", ")]
    assert sum(numbers) == len(told.skipped)
    one = jaxfn.check(WRONG["Factor"].fun, V, skip=all_but("backward", "scan"))
    assert ", 1 depends on `backward`" in str(one)


@functools.cache
def passing():
    return jaxfn.check(*RIGHT["real"])


def test_a_passing_report_has_all_rows_and_ends_with_the_summary():
    report = passing()
    assert [r.check for r in report.skipped] == ["backward, unused outputs"]
    *_, last = str(report).splitlines()
    assert all(r.check in str(report) for r in report.results)
    assert last == report.summary
    assert last.endswith(" checks passed, 1 skipped.")
    assert "skipped: one output has a derivative" in str(report)


def test_the_html_has_the_same_rows():
    report = report_of("WrongShape")
    text = report._repr_html_()
    ran = len(report.results) - len(report.skipped)
    assert text.count("<tr>") == ran + 1
    assert f"{len(report.skipped)} skipped: " in text
    assert text.index("Wrong: ") < text.index("<thead>")
    assert "FAIL" in text
    assert "&#x27;" in text or "`" in text
    assert passing()._repr_html_().count("<tr>") == len(passing().results) + 1


def test_the_html_escapes():
    report = jaxfn.check(lambda x: jnp.round(x), V)
    assert "&lt;lambda&gt;" in report._repr_html_()
    assert "<lambda>" not in report._repr_html_()


def test_what_builds_on_a_failure_is_not_run():
    report = report_of("Factor")
    linear = row(report, "backward is linear")
    assert linear.message == "builds on 'backward', which failed"


@pytest.mark.full
def test_raise_on_failure_raises_the_messages():
    with pytest.raises(CheckError, match="Wrong: backward") as caught:
        jaxfn.check(WRONG["Factor"].fun, V, raise_on_failure=True)
    assert "2 times the expected one" in str(caught.value)
    jaxfn.check(*RIGHT["scalar"], raise_on_failure=True)


# ---- options


def test_checks_can_be_skipped():
    wrong = WRONG["NumPyInForward"]
    report = jaxfn.check(wrong.fun, *wrong.args, skip=["value under jit", "scan"])
    told = [r.check for r in report.skipped if r.message == "skipped as told"]
    assert told == ["value under jit", "scan"]


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="expected a list of names among value, "):
        jaxfn.check(STE, V, skip=["jit"])
    with pytest.raises(ValueError, match="expected a list of names"):
        jaxfn.check(STE, V, skip="scan")
    with pytest.raises(ValueError, match="expected 'float64' or 'given'"):
        jaxfn.check(STE, V, precision="float32")


@pytest.mark.full
def test_the_given_precision_is_looser():
    report = jaxfn.check(*RIGHT["custom_function"], precision="given")
    assert report.ok, str(report)
    assert row(report, "backward").tolerance > 1e-3
    some = all_but("value", "backward")
    report = jaxfn.check(WRONG["Factor"].fun, V, precision="given", skip=some)
    assert report.wrong_rules == ("backward",)


def test_the_dtypes_that_forward_sees():
    seen = set()

    def spy(x):
        seen.add(x.dtype.name)
        return x * 2

    assert jaxfn.check(spy, V, low_precision=None).ok
    assert seen == {"float64"}
    assert jaxfn.check(spy, V, low_precision="float16").ok
    assert seen == {"float64", "float16"}


@pytest.mark.full
def test_a_seed_gives_the_same_numbers_again():
    first, again, other = (jaxfn.check(STE, V, seed=seed) for seed in (1, 1, 2))
    assert first.failures[0].error == again.failures[0].error
    assert str(first) == str(again)
    assert [r.error for r in first.results] != [r.error for r in other.results] or str(
        first
    ) != str(other)


def test_progress_is_told_before_each_check():
    told = []
    report = jaxfn.check(STE, V, progress=lambda *what: told.append(what))
    assert [name for _, _, name in told] == [r.check for r in report.results]
    assert [i for i, _, _ in told] == list(range(len(told)))
    assert {n for _, n, _ in told} == {len(told)}


def test_arguments_that_forward_uses_up_are_not_those_of_the_caller():
    x = jnp.array(V)

    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x + 1

    dirty = function(forward=forward, backward=lambda ctx, g: g)
    assert jaxfn.check(dirty, x, precision="given").ok
    assert x.tolist() == V.tolist()


def test_x64_is_as_before():
    jaxfn.check(STE, V)
    assert jnp.ones(()).dtype == jnp.float32
    assert lax.full((), 1.0).dtype == jnp.float32


# ---- what newcomers meet


def checked(forward, backward, *args, **rules):
    return jaxfn.check(
        function("F", forward=forward, backward=backward, **rules), *args
    )


def test_a_marked_output_is_left_out_of_the_slope():
    def forward(ctx, x):
        y, wave = x * x, jnp.sin(x)
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable(wave)
        return y, wave

    def backward(ctx, g, _):
        return 2 * ctx.saved_tensors[0] * g

    x = jnp.array([0.3, 1.2])
    assert checked(forward, backward, x).ok
    assert checked(forward, backward, x, generate_jvp_rule=True).ok
    # The other output still counts, and so does one without a mark.
    assert not checked(forward, lambda ctx, g, _: 3 * backward(ctx, g, _), x).ok
    f = function(
        "F", forward=lambda ctx, x: (x * x, jnp.sin(x)), jvp=lambda c, t: (t, None)
    )
    assert jaxfn.check(f, x).wrong_rules == ("jvp",)


def test_a_straight_through_rule_is_told_of_surrogate():
    report = checked(lambda ctx, x: jnp.round(x), lambda ctx, g: g, jnp.array([0.3]))
    assert "all zero" in report.failures[0].message
    assert "`surrogate=True`" in report.failures[0].message


@pytest.mark.filterwarnings("ignore:.* returned None, so the gradient is zero")
def test_a_backward_without_a_return_is_named():
    report = checked(lambda ctx, x: x * x, lambda ctx, g: None, jnp.array([0.3]))
    message = report.failures[0].message
    assert message.endswith("`F.backward` returned None: is a return missing?")


@pytest.mark.parametrize("size", [1.0, 0.03])  # so that either is the worst
def test_gradients_in_the_wrong_order_are_named(size):
    # The sum over the broadcast dimension makes both fit.
    def forward(ctx, x, b):
        ctx.save_for_backward(x, b)
        return x * b

    def backward(ctx, g):
        x, b = ctx.saved_tensors
        return g * x, g * b

    args = jnp.arange(1.0, 7).reshape(2, 3), size * jnp.array([0.3, -1.2, 2.0])
    (message,) = (r.message for r in checked(forward, backward, *args).failures)
    assert "it looks like that of argument" in message
    assert "is the order right?" in message
