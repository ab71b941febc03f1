"""`lax.stop_gradient(x)`, torch's `x.detach()`, is another array than `x`.

Outside of a trace JAX gives back the very same object, and ctx goes by identity.
"""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxfn import custom_function
from tests import wrong
from tests.build import function, in_style, keep, rules_of, saving
from tests.sizes import only

X, Y = jnp.float32(2), jnp.float32(5)

# Each gives the derivative `d` of a function of numbers, at numbers.
PLACES = {
    "eager": lambda d: d,
    "jit": jax.jit,
    "vmap one": lambda d: (
        lambda x, *rest: jax.vmap(d, (0, *[None] * len(rest)))(x[None], *rest)[0]
    ),
}
places = pytest.mark.parametrize("place", PLACES)
styles = pytest.mark.parametrize("style", ["combined", "separate"])


engines = pytest.mark.parametrize("engine", wrong.ENGINES)


def build(engine, style, value, save, backward, jvp):
    """A Function; `save(ctx, inputs, outputs)` is told what forward has at hand."""
    rules = in_style(style, value, save) | rules_of(engine, backward, jvp)
    return function(**rules).apply


# ---- marks


@engines
@styles
@places
@pytest.mark.parametrize("marked", [0, 1])
def test_only_the_detached_output_is_marked(engine, style, place, marked):
    def value(x):
        y = x**2
        z = lax.stop_gradient(y)
        return (z, y) if marked == 0 else (y, z)

    def save(ctx, inputs, outputs):
        keep(ctx, *inputs)
        ctx.mark_non_differentiable(outputs[marked])

    def backward(ctx, *grads):
        (x,) = ctx.saved_tensors
        return 7 * x * grads[1 - marked]

    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return (None, 7 * x * t) if marked == 0 else (7 * x * t, None)

    f = build(engine, style, value, save, backward, jvp)
    for i, expected in ((1 - marked, 14), (marked, 0)):
        got = PLACES[place](jax.grad(lambda x, i=i: f(x)[i]))(X)
        np.testing.assert_allclose(got, expected)
        got = PLACES[place](jax.grad(jax.grad(lambda x, i=i: f(x)[i])))(X)
        np.testing.assert_allclose(got, expected / 2)


@engines
@pytest.mark.parametrize("place", ["eager", "jit"])
def test_what_forward_does_happens_once_where_marks_are_told_apart(engine, place):
    seen, draws = [], np.random.default_rng(0)

    def value(x):
        scale = float(np.round(draws.uniform(1, 2), 3))
        jax.debug.callback(lambda s: seen.append(float(s)), jnp.float32(scale) + 0 * x)
        y = scale * x
        return y, lax.stop_gradient(y)

    def save(ctx, inputs, outputs):
        y, z = outputs
        keep(ctx, y)
        ctx.mark_non_differentiable(z)

    def backward(ctx, g, _):
        return ctx.saved_tensors[0] * g

    def jvp(ctx, t):
        return ctx.saved_tensors[0] * t, None

    f = build(engine, "combined", value, save, backward, jvp)
    y, slope = PLACES[place](jax.value_and_grad(lambda x: f(x)[0]))(X)
    jax.effects_barrier()
    # The value, its derivative and the effect are of one run.
    assert len(seen) == 1
    assert float(y) == float(slope) == pytest.approx(2 * seen[0])


@engines
@styles
@places
def test_a_detached_input_is_marked_and_the_input_is_not(engine, style, place):
    f = build(
        engine,
        style,
        lambda x: (x, lax.stop_gradient(x)),
        lambda ctx, inputs, outputs: ctx.mark_non_differentiable(outputs[1]),
        lambda ctx, g, _: 7 * g,
        lambda ctx, t: (7 * t, None),
    )
    assert PLACES[place](jax.grad(lambda x: f(x)[0]))(X) == 7
    assert PLACES[place](jax.grad(lambda x: f(x)[1]))(X) == 0


# ---- what is saved: 3 x^2 g where x is saved, so 6 x is the second derivative


SAVED = {
    "input": (lambda x, out: [x], 12),
    "detached": (lambda x, out: [lax.stop_gradient(x)], 0),
    "both": (lambda x, out: [x, lax.stop_gradient(x)], 6),
    "detached twice": (lambda x, out: [lax.stop_gradient(x), lax.stop_gradient(x)], 0),
}
FORWARD = {
    "jacfwd of jacfwd": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "grad of jacfwd": lambda f: jax.grad(jax.jacfwd(f)),
}
SECOND = {
    "grad of grad": lambda f: jax.grad(jax.grad(f)),
    "jacfwd of grad": lambda f: jax.jacfwd(jax.grad(f)),
    "grad of jit of grad": lambda f: jax.grad(jax.jit(jax.grad(f))),
    **FORWARD,
}


@pytest.mark.parametrize(
    ("engine", "order"),
    # a Function with backward alone has no forward mode
    [
        (e, o)
        for e in wrong.ENGINES
        for o in SECOND
        if e != "backward" or o not in FORWARD
    ],
)
@styles
@pytest.mark.parametrize(
    "place", only(["eager", "jit"], lambda place: place == "eager")
)
@pytest.mark.parametrize("saved", SAVED)
def test_a_detached_input_has_no_second_derivative(engine, style, place, order, saved):
    values, expected = SAVED[saved]

    def backward(ctx, g):
        a, b = (ctx.saved_tensors * 2)[:2]
        return 3 * a * b * g

    def save(ctx, inputs, out):
        keep(ctx, *values(*inputs, out))

    # the rule is the same in both directions
    f = build(engine, style, lambda x: x**3, save, backward, backward)
    np.testing.assert_allclose(PLACES[place](SECOND[order](f))(X), expected)


@engines
@styles
@places
@pytest.mark.parametrize(("detach", "expected"), [(False, np.exp(2)), (True, 0)])
def test_a_detached_output_has_no_second_derivative(
    engine, style, place, detach, expected
):
    def save(ctx, inputs, out):
        ctx.out = lax.stop_gradient(out) if detach else out

    rule = lambda ctx, g: ctx.out * g  # noqa: E731
    f = build(engine, style, jnp.exp, save, rule, rule)
    got = PLACES[place](jax.grad(jax.grad(f)))(X)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@engines
@styles
@places
@pytest.mark.parametrize("detach", ["x", "y"])
def test_one_input_is_detached_and_one_is_differentiated(engine, style, place, detach):
    def save(ctx, inputs, out):
        x, y = inputs
        if detach == "x":
            x = lax.stop_gradient(x)
        else:
            y = lax.stop_gradient(y)
        keep(ctx, x, y, 2 * x)

    def backward(ctx, g):
        x, y, double = ctx.saved_tensors
        return double * y * g, x**2 * g

    def jvp(ctx, s, t):
        x, y, double = ctx.saved_tensors
        return double * y * s + x**2 * t

    f = build(engine, style, lambda x, y: x**2 * y, save, backward, jvp)
    second = PLACES[place](jax.grad(jax.grad(f)))(X, Y)
    assert second == (0 if detach == "x" else 2 * Y)
    mixed = PLACES[place](jax.grad(jax.grad(f), 1))(X, Y)
    assert mixed == (2 * X if detach == "x" else 0)


@places
def test_a_detached_residual_of_both_rules(place):
    @custom_function
    def cube(x):
        return x**3

    cube.defvjp(
        lambda x: (x**3, (x, lax.stop_gradient(x))),
        lambda res, g: (3 * res[0] * res[1] * g,),
    )
    cube.defjvp(lambda xs, ts: (xs[0] ** 3, 3 * xs[0] ** 2 * ts[0]))
    got = PLACES[place](jax.grad(jax.grad(cube)))(X)
    np.testing.assert_allclose(got, 6)


# ---- a body that needs values runs all the same, if it does not save


@pytest.mark.parametrize(
    "value",
    [
        lambda x: np.asarray(x) ** 3,
        lambda x: x**3 if x > 0 else -(x**3),
        lambda x: float(x) * x * x,
    ],
)
def test_a_body_that_needs_values_has_a_second_derivative(value):
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    f = function(
        forward=lambda x: jnp.asarray(value(x)),
        setup_context=saving(),
        backward=backward,
    ).apply
    np.testing.assert_allclose(jax.grad(jax.grad(f))(X), 12)
    np.testing.assert_allclose(jax.grad(f)(X), 12)


def test_forward_computes_once():
    runs = []

    def count(x):
        runs.append(x)
        return x

    def forward(ctx, x):
        y = jax.pure_callback(count, x, x)
        ctx.save_for_backward(x)
        return y**3

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    f = function(forward=forward, backward=backward).apply
    np.testing.assert_allclose(jax.grad(jax.grad(f))(X), 12)
    assert len(runs) == 1


def test_looking_again_keeps_nothing():
    def once():
        f = build("both", "combined", lambda x: x**3, saving(), rule, rule)
        jax.grad(jax.grad(f))(X)

    def rule(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g

    def objects():
        gc.collect()
        return len(gc.get_objects())

    once()
    before = objects()
    for _ in range(20):
        once()
    assert objects() - before < 200  # one Function and its rules are more than 10
