"""A forward that closes over a traced value: the right number, or a clear error.

The rule gives 2 for x, and says nothing of w. A number for the derivative with respect
to w could only come from differentiating the body, or be a zero that means nothing.
"""

import jax
import jax.numpy as jnp
import pytest

import jaxfn
from tests import wrong
from tests.build import function, in_style

X, W = jnp.float32(2), jnp.float32(7)

RULES = {
    "backward": {"backward": lambda ctx, g: 2 * g},
    "jvp": {"jvp": lambda ctx, t: 2 * t},
    "both": {"backward": lambda ctx, g: 2 * g, "jvp": lambda ctx, t: 2 * t},
    "derived": {"backward": lambda ctx, g: 2 * g, "generate_jvp_rule": True},
    "neither": {},
}
rules = pytest.mark.parametrize("rules", RULES)
styles = pytest.mark.parametrize("style", wrong.STYLES)


def closing_over(w, rules, style, value=lambda x, w: x * w):
    return function(**in_style(style, lambda x: value(x, w)), **RULES[rules]).apply


def scan(f, x):
    return jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]


LOST = {
    "grad": lambda make: jax.grad(lambda w: make(w)(X))(W),
    "jvp": lambda make: jax.jvp(lambda w: make(w)(X), (W,), (W,)),
    "jit of grad": lambda make: jax.jit(jax.grad(lambda w: make(w)(X)))(W),
    "both": lambda make: jax.grad(lambda x, w: make(w)(x), (0, 1))(X, W),
    "grad of jit": lambda make: jax.grad(jax.jit(lambda w: make(w)(X)))(W),
    "grad of jit, both": lambda make: jax.grad(
        jax.jit(lambda x, w: make(w)(x)), (0, 1)
    )(X, W),
    "round": lambda make: jax.grad(lambda w: jnp.round(make(w)(X)) + make(w)(X))(W),
    "scan": lambda make: jax.grad(lambda w: scan(make(w), X))(W),
    "scan, both": lambda make: jax.grad(lambda x, w: scan(make(w), x), (0, 1))(X, W),
    "cond": lambda make: jax.grad(
        lambda w: jax.lax.cond(W > 0, lambda: make(w)(X), lambda: X)
    )(W),
    "checkpoint": lambda make: jax.grad(jax.checkpoint(lambda w: make(w)(X)))(W),
    "vmap": lambda make: jax.vmap(jax.grad(lambda w: make(w)(X)))(W[None]),
}


@rules
@styles
@pytest.mark.parametrize("way", LOST)
def test_the_derivative_of_what_is_closed_over_is_never_a_number(rules, style, way):
    # Where jit has traced a custom_vjp, JAX raises before any rule of ours runs.
    words = r"Pass it to apply|Try passing the closed-over value into"
    with pytest.raises(Exception, match=words):
        LOST[way](lambda w: closing_over(w, rules, style))


class Layer:
    """An object of a user's, which is no pytree."""

    def __init__(self, w):
        self.w = w


HOLDERS = {
    "object": (Layer, lambda held: held.w),
    "object in a dict": (lambda w: {"a": Layer(w)}, lambda held: held["a"].w),
    "function": (lambda w: lambda: w, lambda held: held()),
    "function in a list": (lambda w: [lambda: w], lambda held: held[0]()),
}


@styles
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("way", ["grad", "jvp", "jit of grad", "vmap"])
def test_nor_is_that_of_what_an_argument_holds(style, holder, way):
    """Rounded, it has a zero derivative, and so leaves no tracer in the result."""
    hold, read = HOLDERS[holder]
    forward = in_style(style, lambda held, x: jnp.round(read(held)) * x)
    apply = function("F", **forward, backward=lambda ctx, g: (None, 2 * g)).apply
    with pytest.raises(TypeError, match=r"`F` used a traced value .* Pass it to apply"):
        LOST[way](lambda w: lambda x: apply(hold(w), x))


HIDDEN = []


def hiding(w, rules, style):
    """Close over a value that is found neither in a cell nor in an object."""
    HIDDEN[:] = [w]
    return function(**in_style(style, lambda x: x * HIDDEN[-1]), **RULES[rules]).apply


INSIDE = {
    "grad": lambda make: jax.grad(lambda w: jax.jit(make(w))(X)),
    "jvp": lambda make: lambda w: jax.jvp(lambda w: jax.jit(make(w))(X), (w,), (w,)),
    "both": lambda make: (
        lambda w: jax.grad(lambda x, w: jax.jit(make(w))(x), (0, 1))(X, w)
    ),
    "grad of grad": lambda make: jax.grad(jax.grad(lambda w: jax.jit(make(w))(X))),
    "hessian": lambda make: jax.hessian(lambda w: jax.jit(make(w))(w)),
}


@rules
@styles
@pytest.mark.parametrize("way", INSIDE)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_it_is_none_where_jit_hides_it(rules, style, way, wrap):
    # Under jit nobody uses the value, and JAX does not see that it can't be computed.
    with pytest.raises(RuntimeError, match="Pass it to apply"):
        wrap(INSIDE[way](lambda w: hiding(w, rules, style)))(W)


def decorated(w, by_name=True):
    """A function with both kinds of JAX's rules, whose cells nobody looks into."""
    f = jaxfn.custom_function(lambda x: x * w)
    f.defvjp(lambda x: (f(x) if by_name else x * w, None), lambda _, g: (2 * g,))
    f.defjvp(lambda p, t: (f(*p), 2 * t[0]))
    return lambda x: f(x)


@pytest.mark.parametrize(
    "inner",
    [
        lambda w: decorated(w)(w),
        lambda w: decorated(w)(X),
        lambda w: decorated(w, by_name=False)(X),
        lambda w: jax.jit(decorated(w))(w),
        lambda w: jax.checkpoint(decorated(w))(w),
        lambda w: jax.lax.cond(w > 0, decorated(w), jnp.sin, w),
    ],
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_nor_is_it_one_of_a_decorated_function(inner, wrap):
    with pytest.raises(RuntimeError, match="Pass it to apply"):
        wrap(jax.grad(jax.jit(inner)))(W)


@rules
@styles
@pytest.mark.parametrize("way", LOST)
def test_nor_is_that_of_a_hidden_one(rules, style, way):
    with pytest.raises(Exception, match=r"Pass it to apply|passing the closed-over"):
        LOST[way](lambda w: hiding(w, rules, style))


@pytest.mark.parametrize("rules", ["backward", "jvp", "both", "derived"])
@styles
def test_others_may_use_what_is_differentiated(rules, style):
    f = closing_over(jnp.float32(7), rules, style)
    # The inner derivative is taken where JAX already traces what uses y,
    inner = jax.grad(lambda y: jax.jit(lambda x: y * x * jax.grad(f)(x))(X))
    assert inner(W) == 2 * X
    # and here y is an argument.
    along = lambda x, t: jax.jvp(f, (x,), (t,))[1]  # noqa: E731
    if rules != "backward":
        through = jax.grad(lambda y: jax.jit(lambda x: along(y, x) * y)(X))
        assert through(W) == 2 * X


LOOPS = {
    "scan": scan,
    "map": lambda f, x: jax.lax.map(f, x[None])[0],
    "checkpoint": lambda f, x: jax.checkpoint(f)(x),
}


@rules
@styles
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_number_that_is_made_in_a_loop_may_be_closed_over(rules, style, loop):
    def program(x):
        return loop(lambda x: closing_over(jnp.float32(7), rules, style)(x), x)

    times = 2 if loop is scan else 1
    assert program(X) == X * 7**times
    if RULES[rules]:
        assert jax.value_and_grad(program)(X) == (X * 7**times, 2**times)


RIGHT = {
    "eager": (14, lambda make: make(W)(X)),
    "jit": (14, lambda make: jax.jit(lambda w: make(w)(X))(W)),
    "vmap": (14, lambda make: jax.vmap(lambda w: make(w)(X))(W[None])[0]),
    "vmap, both": (
        14,
        lambda make: jax.vmap(lambda x, w: make(w)(x))(X[None], W[None])[0],
    ),
    "grad of x": (2, lambda make: jax.grad(lambda x: make(W)(x))(X)),
    "grad of x under jit of w": (
        2,
        lambda make: jax.jit(lambda w: jax.grad(make(w))(X))(W),
    ),
    "grad of x under vmap of w": (
        2,
        lambda make: jax.vmap(lambda w: jax.grad(make(w))(X))(W[None])[0],
    ),
    "scan under jit of w": (
        4,
        lambda make: jax.jit(lambda w: jax.grad(lambda x: scan(make(w), x))(X))(W),
    ),
    "checkpoint under jit of w": (
        2,
        lambda make: jax.jit(lambda w: jax.grad(jax.checkpoint(make(w)))(X))(W),
    ),
}


@rules
@styles
@pytest.mark.parametrize("way", RIGHT)
def test_what_is_not_differentiated_may_be_closed_over(rules, style, way):
    expected, run = RIGHT[way]
    if rules == "neither" and expected != 14:
        with pytest.raises(NotImplementedError, match="implement either the backward"):
            run(lambda w: closing_over(w, rules, style))
        return
    assert run(lambda w: closing_over(w, rules, style)) == expected


# The tangent of round is zero, so that no tracer comes out of an eager forward.
@rules
@styles
@pytest.mark.parametrize("way", ["grad", "jvp", "vmap"])
def test_the_derivative_through_a_flat_body_is_never_a_number(rules, style, way):
    def flat(x, w):
        return jnp.round(x * w)

    with pytest.raises(TypeError, match="Pass it to apply"):
        LOST[way](lambda w: closing_over(w, rules, style, flat))


def test_the_message_names_the_class():
    with pytest.raises(TypeError, match="`F` used a traced value that was not passed"):
        jax.grad(lambda w: closing_over(w, "backward", "combined")(X))(W)


def test_a_callable_argument_that_closes_over_a_traced_value():
    f = function(
        forward=lambda ctx, run, x: run(x), backward=lambda ctx, g: (None, 2 * g)
    ).apply
    assert jax.grad(lambda x: f(lambda v: v * W, x))(X) == 2
    with pytest.raises(TypeError, match="Pass it to apply"):
        jax.jit(jax.grad(lambda w: f(lambda v: v * w, X)))(W)
    with pytest.raises(TypeError, match="Pass it to apply"):  # with a flat body, too
        jax.grad(lambda w: f(lambda v: jnp.round(v * w), X))(W)


def test_a_value_of_a_transformation_that_is_over():
    kept = []
    jax.jit(lambda w: kept.append(w) or w)(W)
    (w,) = kept
    f = function(forward=lambda ctx, x: w, backward=lambda ctx, g: g).apply
    with pytest.raises(TypeError, match="Pass it to apply"):
        f(X)


def test_a_saved_value_that_is_closed_over():
    def make(w):
        return function(
            forward=lambda ctx, x: ctx.save_for_backward(w) or 1 * x,
            backward=lambda ctx, g: g * ctx.saved_tensors[0],
        ).apply

    assert jax.grad(make(W))(X) == 7
    assert jax.jit(lambda w: jax.grad(make(w))(X))(W) == 7


def test_backward_may_close_over_a_value_that_is_differentiated():
    # backward is differentiated as it is: that is its true derivative.
    def outer(w):
        f = function(forward=lambda ctx, x: 1 * x, backward=lambda ctx, g: g * w).apply
        return jax.grad(f)(X) ** 2

    assert jax.grad(outer)(W) == 14
