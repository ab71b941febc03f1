"""Which rule runs under which transformation, told by rules that are wrong on
purpose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests import wrong
from tests.jaxprs import primitives
from tests.laws.leaks import checking_leaks
from tests.sizes import only

# The others of its many cells run with --full.

X = 0.7
SIN, COS = np.sin(X), np.cos(X)

engines = pytest.mark.parametrize("engine", wrong.ENGINES)
styles = pytest.mark.parametrize("style", wrong.STYLES)


def scalar():
    return jnp.float32(X)


def scan(f, x):
    return lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]


def cond(f, x):
    return lax.cond(x > 0, f, lambda x: 100 * x, x)


def switch(f, x):
    return lax.switch(1, [lambda x: 100 * x, f], x)


def fori(f, x):
    return lax.fori_loop(0, 1, lambda _, c: f(c), x)


def while_loop(f, x):
    return lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]


def batched(f, x):
    return jax.vmap(f)(jnp.stack([x, x])).sum() / 2


WRAPPERS = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "jit of checkpoint": lambda f: jax.jit(jax.checkpoint(f)),
    "checkpoint of jit": lambda f: jax.checkpoint(jax.jit(f)),
    "scan": lambda f: lambda x: scan(f, x),
    "cond": lambda f: lambda x: cond(f, x),
    "switch": lambda f: lambda x: switch(f, x),
    "fori_loop": lambda f: lambda x: fori(f, x),
    "map": lambda f: lambda x: lax.map(f, x[None])[0],
    "vmap": lambda f: lambda x: batched(f, x),
    "scan of vmap": lambda f: lambda x: scan(lambda c: batched(f, c), x),
    "vmap of scan": lambda f: lambda x: batched(lambda c: scan(f, c), x),
    "scan of checkpoint": lambda f: lambda x: scan(jax.checkpoint(f), x),
}

REVERSE = {
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "value_and_grad": lambda f: lambda x: jax.value_and_grad(f)(x)[1],
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](jnp.float32(1))[0],
    "jacrev": jax.jacrev,
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(x[None])[0],
}

FORWARD = {
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.float32(1),))[1],
    "jit of jvp": lambda f: jax.jit(FORWARD["jvp"](f)),
    "jacfwd": jax.jacfwd,
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](jnp.float32(1)),
    "vmap of jvp": lambda f: lambda x: jax.vmap(FORWARD["jvp"](f))(x[None])[0],
}

CORE = ("plain", "jit", "scan", "checkpoint", "vmap")
core = pytest.mark.parametrize("wrapper", CORE)
anywhere = pytest.mark.parametrize(
    ("style", "wrapper"),
    [("separate", w) for w in CORE] + [("combined", w) for w in ("plain", "scan")],
)


def cells(modes, always):
    """Every wrapper with the modes in `always`, the core ones with all modes."""
    return pytest.mark.parametrize(
        ("wrapper", "mode"),
        [(w, m) for w in WRAPPERS for m in modes if m in always or w == "plain"],
    )


@engines
@styles
@cells(REVERSE, always=("grad",))
def test_reverse_mode_uses_the_reverse_rule(engine, style, wrapper, mode):
    f = WRAPPERS[wrapper](wrong.function(engine, style).apply)
    got = REVERSE[mode](f)(scalar())
    np.testing.assert_allclose(got, wrong.REVERSE[engine] * COS, rtol=1e-6)


@engines
@styles
@cells(FORWARD, always=("jvp",))
def test_forward_mode_uses_the_forward_rule(engine, style, wrapper, mode):
    f = WRAPPERS[wrapper](wrong.function(engine, style).apply)
    factor = wrong.FORWARD[engine]
    if factor is None:
        with pytest.raises(TypeError, match="can't apply forward-mode"):
            FORWARD[mode](f)(scalar())
    else:
        np.testing.assert_allclose(FORWARD[mode](f)(scalar()), factor * COS, rtol=1e-6)


@engines
@pytest.mark.parametrize("mode", FORWARD)
def test_while_loop_runs_forward_only(engine, mode):
    f = wrong.function(engine).apply
    np.testing.assert_allclose(while_loop(f, scalar()), SIN, rtol=1e-6)
    if wrong.FORWARD[engine] is not None:
        got = FORWARD[mode](lambda x: while_loop(f, x))(scalar())
        np.testing.assert_allclose(got, wrong.FORWARD[engine] * COS, rtol=1e-6)


# ---- second and third derivatives
#
# The outer derivative differentiates the rule that the inner one ran: its factor is
# that of the inner mode. -sin is the derivative of cos.

HESSIANS = {
    "reverse over reverse": (jax.jacrev, jax.jacrev),
    "forward over reverse": (jax.jacfwd, jax.jacrev),
    "reverse over forward": (jax.jacrev, jax.jacfwd),
    "forward over forward": (jax.jacfwd, jax.jacfwd),
}


@pytest.mark.full(
    unless=lambda style, wrapper, **_: style == "separate" or wrapper == "scan"
)
@engines
@anywhere
@pytest.mark.parametrize("order", HESSIANS)
def test_second_derivative_differentiates_the_inner_rule(engine, style, wrapper, order):
    outer, inner = HESSIANS[order]
    f = outer(inner(WRAPPERS[wrapper](wrong.function(engine, style).apply)))
    factor = wrong.REVERSE[engine] if inner is jax.jacrev else wrong.FORWARD[engine]
    if factor is None:
        with pytest.raises(TypeError, match="can't apply forward-mode"):
            f(scalar())
    else:
        np.testing.assert_allclose(f(scalar()), -factor * SIN, rtol=1e-6)


# Engines of both styles share all but how forward is called: in a normal run one style
# alone has what is compiled at length.
in_one_style = pytest.mark.full(
    unless=lambda style, wrapper="", **_: style == "separate" or wrapper == "plain"
)


@in_one_style
@engines
@styles
@core
def test_third_derivative(engine, style, wrapper):
    f = WRAPPERS[wrapper](wrong.function(engine, style).apply)
    got = jax.grad(jax.grad(jax.grad(f)))(scalar())
    np.testing.assert_allclose(got, -wrong.REVERSE[engine] * COS, rtol=1e-6)


# The value of a Function that an outer derivative meets carries the rule too: the
# derivative of f(x)^2 / 2 is f f', and that of f f' needs f' again, from the rule.
@in_one_style
@engines
@styles
@core
@pytest.mark.parametrize("outer", ["grad", "jacfwd"])
def test_the_value_keeps_its_rule_at_second_order(engine, style, wrapper, outer):
    f = WRAPPERS[wrapper](wrong.function(engine, style).apply)
    square = jax.grad(lambda x: f(x) ** 2 / 2)
    got = {"grad": jax.grad, "jacfwd": jax.jacfwd}[outer](square)(scalar())
    inner = wrong.REVERSE[engine]
    # Forward mode inside a reverse rule: the value's own tangent.
    value = inner if outer == "grad" or engine != "both" else wrong.JVP
    np.testing.assert_allclose(
        got, inner * value * COS * COS - inner * SIN * SIN, rtol=1e-6
    )


@in_one_style
@engines
@styles
@pytest.mark.parametrize("outer", ["grad", "jacfwd", "jit grad"])
def test_second_derivative_through_scan_is_that_of_the_unrolled_loop(
    engine, style, outer
):
    f = wrong.function(engine, style).apply
    derivative = {
        "grad": lambda g: jax.grad(jax.grad(g)),
        "jacfwd": lambda g: jax.jacfwd(jax.grad(g)),
        "jit grad": lambda g: jax.jit(jax.grad(jax.grad(g))),
    }[outer]

    def rolled(x):
        return lax.scan(lambda c, k: (f(c * k), f(c)), x, jnp.float32([1, 2, 3]))[0]

    def unrolled(x):
        for k in (1, 2, 3):
            x = f(x * k)
        return x

    got, expected = derivative(rolled)(scalar()), derivative(unrolled)(scalar())
    np.testing.assert_allclose(got, expected, rtol=1e-5)


# What is not perturbed in the inner derivative is in the half of the scan that JAX
# knows; before 0.12 it lost the rule of a custom_jvp there.
@engines
@styles
def test_scan_keeps_the_rule_in_the_half_that_is_known(engine, style):
    f = wrong.function(engine, style).apply

    def rolled(a, b):
        return lax.scan(lambda c, _: (f(a) * c * c, None), b, None, length=2)[0]

    def unrolled(a, b):
        return f(a) * (f(a) * b * b) ** 2

    def cross(g):
        return jax.grad(jax.grad(g, 1), 0)(scalar(), jnp.float32(1.3))

    np.testing.assert_allclose(cross(rolled), cross(unrolled), rtol=1e-5)


# ---- batching


@engines
@pytest.mark.parametrize("wrapper", ["plain", "jit", "scan", "checkpoint"])
def test_vmap_uses_the_vmap_rule(engine, wrapper):
    f = WRAPPERS[wrapper](wrong.function(engine, batch=True).apply)
    x = jnp.float32([X, 2 * X])
    np.testing.assert_allclose(jax.vmap(f)(x), np.sin(x) + wrong.BATCH, rtol=1e-6)
    np.testing.assert_allclose(f(x[0]), SIN, rtol=1e-6)


@engines
@pytest.mark.parametrize(
    "order", ["vmap of grad", "grad of vmap", "vmap of jvp", "jvp of vmap"]
)
def test_vmap_and_derivatives_use_both_rules(engine, order):
    f = wrong.function(engine, batch=True).apply
    x = jnp.float32([X, 2 * X])
    one = jnp.ones_like(x)
    factor = wrong.FORWARD[engine] if "jvp" in order else wrong.REVERSE[engine]
    run = {
        "vmap of grad": lambda: jax.vmap(jax.value_and_grad(f))(x),
        "grad of vmap": lambda: (
            jax.vmap(f)(x),
            jax.grad(lambda x: jax.vmap(f)(x).sum())(x),
        ),
        "vmap of jvp": lambda: jax.vmap(lambda x, t: jax.jvp(f, (x,), (t,)))(x, one),
        "jvp of vmap": lambda: jax.jvp(jax.vmap(f), (x,), (one,)),
    }[order]
    if factor is None:
        with pytest.raises(TypeError, match="can't apply forward-mode"):
            run()
        return
    value, dot = run()
    np.testing.assert_allclose(value, np.sin(x) + wrong.BATCH, rtol=1e-6)
    np.testing.assert_allclose(dot, factor * np.cos(x), rtol=1e-6)


# ---- leaks


# In a normal run each engine in one place, and each place; the check is slow.
LEAKS = [
    (engine, *place)
    for engine in wrong.ENGINES
    for place in [
        ("separate", "scan"),
        ("combined", "plain"),
        ("combined", "checkpoint"),
    ]
]


@pytest.mark.parametrize(
    ("engine", "style", "wrapper"),
    only(LEAKS, lambda cell: LEAKS.index(cell) in (0, 4, 8, 10)),
)
def test_no_tracer_leaks(engine, style, wrapper):
    f = WRAPPERS[wrapper](wrong.function(engine, style).apply)
    with checking_leaks():
        jax.grad(jax.grad(f))(scalar())
        jax.jit(jax.grad(f))(scalar())
        jax.vmap(jax.grad(f))(scalar()[None])
        if wrong.FORWARD[engine] is not None:
            jax.jacfwd(jax.jacfwd(f))(scalar())
            jax.jit(jax.jacrev(jax.jacfwd(f)))(scalar())


# ---- what JAX sees


@engines
@styles
def test_jaxpr_shows_the_definition_of_the_engine(engine, style):
    f = wrong.function(engine, style).apply
    text = str(jax.make_jaxpr(f)(scalar()))
    name = "custom_vjp_call" if engine == "backward" else "custom_jvp_call"
    other = "custom_jvp_call" if engine == "backward" else "custom_vjp_call"
    assert name in text
    assert other not in text
    assert "custom_vmap_call" not in text


@engines
def test_jaxpr_shows_custom_vmap_inside_the_derivative(engine):
    f = wrong.function(engine, batch=True).apply
    text = str(jax.make_jaxpr(f)(scalar()))
    outer = "custom_vjp_call" if engine == "backward" else "custom_jvp_call"
    assert 0 <= text.index(outer) < text.index("custom_vmap_call")


@engines
@styles
def test_only_two_engines_use_the_linear_primitive(engine, style):
    f = wrong.function(engine, style).apply
    x = scalar()
    used = primitives(jax.make_jaxpr(f)(x))
    used |= primitives(jax.make_jaxpr(jax.grad(jax.grad(f)))(x))
    if engine != "backward":
        used |= primitives(jax.make_jaxpr(lambda x: jax.jvp(f, (x,), (x,)))(x))
    assert ("linear" in used) == (engine in ("both", "derived"))
