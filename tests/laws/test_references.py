"""References (jax.new_ref) in the rules of a Function: of its own, and from outside."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from tests.build import function, in_style, rules_of, saving

X, ONE = jnp.float32(0.5), jnp.float32(1)


def sine(x):
    ref = jax.new_ref(x)
    ref[...] = jnp.sin(ref[...])
    return ref[...]


def with_a_reference(style, sine):
    def with_cosine(ctx, x):
        ctx.save_for_backward(sine(x + jnp.pi / 2))
        return sine(x)

    if style == "saving":
        backward = lambda ctx, g: g * ctx.saved_tensors[0]  # noqa: E731
        return function(
            "F", forward=with_cosine, backward=backward, generate_jvp_rule=True
        ).apply
    rules = in_style(style, sine, saving())
    backward = lambda ctx, g: g * jnp.cos(ctx.saved_tensors[0])  # noqa: E731
    return function("F", backward=backward, generate_jvp_rule=True, **rules).apply


# ---- statistics of gradients, which bwd writes


def watched():
    def primal(x, ref):
        return 1 * x

    def bwd(ref, g):
        ref[...] = g
        return g, None

    f = jaxfn.custom_function(primal)
    f.defvjp(lambda x, ref: (primal(x, ref), ref), bwd)
    return f


STATISTICS = {
    "grad": lambda f: lambda x, ref: 3 * f(x, ref),
    "checkpoint": lambda f: jax.checkpoint(lambda x, ref: 3 * f(x, ref)),
    "scan": lambda f: (
        lambda x, ref: jax.lax.scan(
            lambda c, _: (3 * f(c, ref), None), x, None, length=2
        )[0]
    ),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("program", STATISTICS)
def test_a_rule_in_jax_terms_may_write_to_an_argument(program, jit):
    gradient = jax.grad(STATISTICS[program](watched()))
    ref = jax.new_ref(ONE)
    found = (jax.jit(gradient) if jit else gradient)(X, ref)
    assert found == ref[...] == (9 if program == "scan" else 3)


styles = pytest.mark.parametrize("style", ["combined", "separate", "saving"])


def along(f):
    return lambda x: jax.jvp(f, (x,), (ONE,))[1]


SECOND = {
    "grad grad": lambda f: jax.grad(jax.grad(f)),
    "jvp grad": lambda f: along(jax.grad(f)),
    "jvp jvp": lambda f: along(along(f)),
    "jit inside": lambda f: jax.grad(jax.jit(jax.grad(f))),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
@styles
def test_a_forward_with_a_reference_is_differentiated_twice(style, second, compiled):
    f = with_a_reference(style, sine)
    assert jax.grad(f)(X) == pytest.approx(np.cos(0.5))
    program = second(f)
    if compiled:
        program = jax.jit(program)
    assert program(X) == pytest.approx(-np.sin(0.5))


# Not where what came through a reference is saved: JAX can't batch the tangents
# alone of a reference ("got axis spec None but output was batched"), as jacfwd does.
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("style", ["combined", "separate"])
def test_a_forward_with_a_reference_has_a_hessian(style, wrap):
    f = with_a_reference(style, sine)
    assert wrap(jax.hessian(f))(X) == pytest.approx(-np.sin(0.5))
    assert jax.hessian(wrap(f))(X) == pytest.approx(-np.sin(0.5))


@pytest.mark.parametrize("second", [jax.hessian, lambda f: jax.grad(jax.grad(f))])
def test_a_decorated_function_with_a_reference_is_differentiated_twice(second):
    f = jaxfn.custom_function(lambda x: jnp.sin(x))
    f.defvjp(lambda x: (sine(x), x), lambda x, g: (g * jnp.cos(x),))
    f.defjvp(lambda p, t: (f(*p), t[0] * jnp.cos(*p)))
    assert second(f)(X) == pytest.approx(-np.sin(0.5))
    assert jax.jit(second(f))(X) == pytest.approx(-np.sin(0.5))
    assert second(jax.jit(f))(X) == pytest.approx(-np.sin(0.5))


WRITTEN = []  # here the cells of a function do not show it


def sine_plus(x):
    ref = jax.new_ref(jnp.sin(x))
    ref[...] += WRITTEN[-1]
    return ref[...]


FORWARD = {
    "jvp": along,
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](ONE),
    "jvp of jvp": lambda f: along(along(f)),
    "vmap": lambda f: lambda x: jax.vmap(along(f))(x[None])[0],
    "checkpoint": lambda f: jax.checkpoint(along(f)),
    "jvp of grad": lambda f: along(jax.grad(f)),
}


# JAX compiles no custom_jvp that makes a reference, so all stays eager. A rule with an
# effect, whose result is used, is not run again for a second derivative.
USED = "jvp", "jvp of grad", "linearize"


@pytest.mark.parametrize(
    ("way", "value_is_used"),
    [*[(way, False) for way in FORWARD], *[(way, True) for way in USED]],
)
def test_rules_that_call_a_decorated_function_with_a_reference(way, value_is_used):
    f = jaxfn.custom_function(sine)
    f.defvjp(lambda x: (f(x), x), lambda x, g: (3 * g * jnp.cos(x),))

    @f.defjvp
    def push(primals, tangents):
        (x,), (t,) = primals, tangents
        value = f(x)
        return value, 5 * t * (value / jnp.tan(x) if value_is_used else jnp.cos(x))

    second = {"jvp of jvp": -5 * np.sin(0.5), "jvp of grad": -3 * np.sin(0.5)}
    expected = second.get(way, 5 * np.cos(0.5))
    assert FORWARD[way](f)(X) == pytest.approx(expected, rel=1e-5)


def with_value_written(style, value):
    WRITTEN[:] = [value]
    return with_a_reference(style, sine_plus)


# By the rules the derivative in x is cos(x), and they say nothing of the value.
CLOSING_OVER = {
    "another": lambda style, x: jax.grad(
        lambda y: y + y * jax.hessian(with_value_written(style, y))(x)
    )(x),
    "grad": lambda style, x: jax.grad(lambda y: with_value_written(style, y)(x))(x),
    "grad of grad": lambda style, x: jax.grad(
        lambda y: jax.grad(with_value_written(style, y))(x)
    )(x),
    "jvp of grad": lambda style, x: along(
        jax.grad(lambda x: with_value_written(style, 3 * x)(x))
    )(x),
    "jit between": lambda style, x: jax.grad(
        jax.jit(lambda y, x: jax.grad(with_value_written(style, y))(x))
    )(x, x),
    "jit inside": lambda style, x: along(
        jax.grad(lambda x: jax.jit(with_value_written(style, 3 * x))(x))
    )(x),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("program", CLOSING_OVER.values(), ids=CLOSING_OVER)
@styles
def test_what_is_written_into_a_reference_is_closed_over(style, program, compiled):
    program = partial(program, style)
    if compiled:
        program = jax.jit(program)
    kinds = RuntimeError, jax.errors.UnexpectedTracerError
    with pytest.raises(kinds, match="`F` used a traced value that|unexpected tracer"):
        program(X)


@pytest.mark.parametrize("style", ["combined", "separate"])
def test_a_value_of_one_run_alone_is_closed_over(style):
    def once(x):  # it is traced again, to see what it closes over
        return jnp.sin(x) + (WRITTEN.pop() if WRITTEN else 1)

    def program(y, x):
        WRITTEN[:] = [y]
        return jax.grad(with_a_reference(style, once))(x)

    with pytest.raises(RuntimeError, match="`F` used a traced value that was not"):
        jax.grad(program)(X, X)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@styles
def test_a_reference_where_others_are_differentiated(style, wrap):
    f = with_a_reference(style, sine)
    with pytest.raises(RuntimeError, match="that makes one under jax.jit"):
        wrap(jax.grad(lambda y: y * jax.grad(f)(X)))(X)
    program = wrap(jax.grad(lambda y: y * jax.grad(jax.jit(f))(X)))
    assert program(X) == pytest.approx(np.cos(0.5))


@styles
def test_what_is_written_into_a_reference_may_be_traced(style):
    second = lambda y: along(jax.grad(with_value_written(style, y)))(X)  # noqa: E731
    for program in (
        jax.vmap(second),
        jax.jit(jax.vmap(second)),
        jax.vmap(jax.jit(second)),
    ):
        assert program(jnp.ones(2)) == pytest.approx(-np.sin(0.5))


# ---- of its own, and one from outside beside it


def reading(style, outside):
    WRITTEN[:] = [outside]

    def scaled(x):
        ref = jax.new_ref(jnp.sin(x))
        ref[...] *= WRITTEN[-1][...]
        return ref[...]

    return with_a_reference(style, scaled)


SECOND_COMPILED = SECOND | {
    "grad grad jit": lambda f: jax.grad(jax.grad(jax.jit(f))),
    "jit grad grad": lambda f: jax.jit(jax.grad(jax.grad(f))),
}


@pytest.mark.parametrize("second", SECOND_COMPILED.values(), ids=SECOND_COMPILED)
@pytest.mark.parametrize("style", ["combined", "separate"])
def test_a_reference_from_outside_is_right_or_refused(style, second):
    f, refused = reading(style, jax.new_ref(ONE)), False
    try:
        assert second(f)(X) == pytest.approx(-np.sin(0.5))
    except RuntimeError as error:
        refused = "Pass the value of a reference from outside" in str(error)
        if not refused:
            raise


@pytest.mark.parametrize("returned", [False, True], ids=["used", "returned"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("style", ["combined", "separate"])
def test_what_it_holds_is_closed_over(style, wrap, returned):
    def program(y, x):
        f = reading(style, jax.new_ref(3 * y))
        if returned:
            f = with_a_reference(style, lambda x: (sine(x), WRITTEN[-1][...])[1])
        return jax.grad(f)(x)

    for first in (jax.grad(wrap(program)), wrap(jax.grad(program))):
        with pytest.raises(RuntimeError, match="`F` used a traced value that was not"):
            first(X, X)


# ---- from outside


def counting(engine, use):
    """A Function whose rules count their runs, and what they count in."""
    ref = jax.new_ref(jnp.float32(0))

    def scaled(x):
        return use(ref, x)

    if engine == "def_vmap":
        f = jaxfn.custom_function(scaled)
        f.def_vmap(lambda n, batched, x: (scaled(x), batched[0]))
        return f, ref

    rule = lambda ctx, g: scaled(ctx.saved_tensors[0]) * g  # noqa: E731
    rules = in_style("combined", lambda x: 1 * x, saving())
    return along(function("F", **rules, **rules_of(engine, rule, rule)).apply), ref


def count(ref, x):
    ref[...] += 1
    return 3 * x


def count_and_read(ref, x):
    ref[...] += 1
    return ref[...] * x


def read_and_count(ref, x):
    value = ref[...] + 1
    ref[...] = value
    return value * x


def read(ref, x):
    return (ref[...] + 3) * x


def test_a_jvp_of_known_values_may_use_a_reference():
    ref = jax.new_ref(jnp.float32(0))
    rules = {"backward": lambda ctx, g: 5 * g, "jvp": lambda ctx, t: count(ref, t)}
    f = function("F", forward=lambda ctx, x: 1 * x, **rules).apply
    assert jax.jvp(f, (X,), (ONE,)) == (0.5, 3)
    assert ref[...] == 1
    # Nobody asks for the tangents.
    assert jax.grad(f)(X) == 5


@pytest.mark.parametrize("use", [count, count_and_read, read_and_count, read])
@pytest.mark.parametrize("engine", ["both", "def_vmap"])
def test_a_rule_that_uses_a_reference_is_not_run_again(engine, use):
    f, _ = counting(engine, use)
    assert f(X) is not None
    for derivative in (jax.value_and_grad, along):
        with pytest.raises(NotImplementedError, match="uses a reference from outside"):
            derivative(f)(X)


@pytest.mark.parametrize("use", [count, read])
@pytest.mark.parametrize("engine", ["both", "derived", "def_vmap"])
def test_a_reference_is_refused_in_an_operation_that_is_compiled(engine, use):
    f, _ = counting(engine, use)
    with pytest.raises(NotImplementedError, match="uses a reference from outside"):
        jax.jit(f)(X)


def test_a_backward_may_use_a_reference_under_jit():
    ref = jax.new_ref(jnp.float32(0))
    f = function(
        forward=lambda ctx, x: 1 * x, backward=lambda ctx, g: count_and_read(ref, g)
    ).apply
    assert jax.jit(jax.grad(f))(X) == 1
    assert jax.jit(jax.grad(f))(X) == 2
    assert ref[...] == 2


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_setup_context_may_use_a_reference_once(wrap):
    ref = jax.new_ref(jnp.float32(0))

    def setup_context(ctx, inputs, output):
        ref[...] += 1
        ctx.save_for_backward(inputs[0] * ref[...])

    f = function(
        "F",
        forward=lambda x: x * x,
        setup_context=setup_context,
        backward=lambda ctx, g: 5 * g * ctx.saved_tensors[0],
    ).apply
    assert wrap(jax.grad(f))(X) == 2.5
    assert ref[...] == 1
    for second in (jax.grad(jax.grad(f)), along(jax.grad(f))):
        with pytest.raises(NotImplementedError, match="`F.setup_context` uses a ref"):
            wrap(second)(X)
