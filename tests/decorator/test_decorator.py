"""`custom_function`: rules in JAX's terms and in torch's, alone and together."""

import copy
import functools
import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.interpreters import partial_eval as pe
from jax.extend.core import jaxpr_as_fun

import jaxfn
from jaxfn._core import internals
from tests import wrong
from tests.decorator.test_derived_jvp import sine
from tests.jaxprs import primitives
from tests.laws.leaks import checking_leaks
from tests.laws.test_every_order import (
    CORE,
    COS,
    FORWARD,
    HESSIANS,
    REVERSE,
    SIN,
    WRAPPERS,
    X,
    cells,
    scalar,
)

# ---- all three rules, each wrong by its own factor


def torch_style():
    @jaxfn.custom_function
    def f(x):
        return jnp.sin(x)

    @f.setup_context
    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @f.backward
    def backward(ctx, g):
        return wrong.BACKWARD * jnp.cos(ctx.saved_tensors[0]) * g

    @f.jvp
    def jvp(ctx, t):
        return wrong.JVP * jnp.cos(ctx.saved_tensors[0]) * t

    @f.vmap
    def vmap(info, in_dims, x):
        return jnp.sin(x) + wrong.BATCH, in_dims[0]

    return f


MADE = {
    "jax": lambda **how: sine("defjvp", "def_vmap", **how),
    "jax, bare math": lambda: MADE["jax"](through_itself=False),
    "jax, symbolic zeros": lambda: MADE["jax"](symbolic=True),
    "torch": torch_style,
    "derived": sine,
    "derived, bare math": lambda: sine(through_itself=False),
    "derived, symbolic zeros": lambda: sine(symbolic=True),
    "derived, batch rule": lambda: sine("def_vmap"),
}
NORMAL = "jax", "torch", "derived"
made = pytest.mark.parametrize("make", MADE)


def forward_factor(make):
    return wrong.BACKWARD if make.startswith("derived") else wrong.JVP


@pytest.mark.thinned(7)
@made
@cells(REVERSE, always=("grad",))
def test_reverse_mode_uses_the_reverse_rule(make, wrapper, mode):
    got = REVERSE[mode](WRAPPERS[wrapper](MADE[make]()))(scalar())
    np.testing.assert_allclose(got, wrong.BACKWARD * COS, rtol=1e-6)


@pytest.mark.thinned(7)
@made
@cells(FORWARD, always=("jacfwd",))
def test_forward_mode_uses_the_forward_rule(make, wrapper, mode):
    got = FORWARD[mode](WRAPPERS[wrapper](MADE[make]()))(scalar())
    np.testing.assert_allclose(got, forward_factor(make) * COS, rtol=1e-6)


@pytest.mark.thinned(7)
@pytest.mark.full(
    unless=lambda make, wrapper, **_: make in NORMAL or wrapper == "plain"
)
@made
@pytest.mark.parametrize("wrapper", CORE)
@pytest.mark.parametrize("order", HESSIANS)
def test_second_derivatives(make, order, wrapper):
    outer, inner = HESSIANS[order]
    got = outer(inner(WRAPPERS[wrapper](MADE[make]())))(scalar())
    factor = wrong.BACKWARD if inner is jax.jacrev else forward_factor(make)
    np.testing.assert_allclose(got, -factor * SIN, rtol=1e-6)


@made
def test_third_derivative(make):
    got = jax.grad(jax.grad(jax.grad(MADE[make]())))(scalar())
    np.testing.assert_allclose(got, -wrong.BACKWARD * COS, rtol=1e-6)


def second_derivative_through_scan_is_that_of_the_unrolled_loop(f, outer):
    def rolled(x):
        return jax.lax.scan(lambda c, k: (f(c * k), None), x, jnp.float32([1, 2, 3]))[0]

    got = outer(jax.grad(rolled))(scalar())
    expected = outer(jax.grad(lambda x: f(f(f(x) * 2) * 3)))(scalar())
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@made
@pytest.mark.parametrize("outer", [jax.grad, jax.jacfwd])
def test_rules_are_kept_in_a_scan(make, outer):
    second_derivative_through_scan_is_that_of_the_unrolled_loop(MADE[make](), outer)


@pytest.mark.parametrize("define", ["defvjp", "defjvp", "defjvps"])
def test_a_rule_alone_is_kept_in_a_scan(define):
    f = jaxfn.custom_function(jnp.sin)
    if define == "defvjp":
        f.defvjp(lambda x: (f(x), x), lambda x, g: (3 * jnp.cos(x) * g,))
    elif define == "defjvp":
        f.defjvp(lambda p, t: (f(*p), 3 * jnp.cos(p[0]) * t[0]))
    else:
        f.defjvps(lambda t, out, x: 3 * jnp.cos(x) * t)
    second_derivative_through_scan_is_that_of_the_unrolled_loop(f, jax.grad)


@made
def test_vmap_uses_the_batch_rule(make):
    xs = jnp.stack([scalar(), scalar()])
    f = MADE[make]()
    if "derived" not in make or "batch rule" in make:
        np.testing.assert_allclose(jax.vmap(f)(xs), SIN + wrong.BATCH, rtol=1e-6)
    got = jax.vmap(jax.grad(f))(xs)
    np.testing.assert_allclose(got, wrong.BACKWARD * COS, rtol=1e-6)
    got = jax.grad(lambda xs: jax.vmap(f)(xs).sum())(xs)
    np.testing.assert_allclose(got, wrong.BACKWARD * COS, rtol=1e-6)
    got = jax.jvp(jax.vmap(f), (xs,), (jnp.ones(2),))[1]
    np.testing.assert_allclose(got, forward_factor(make) * COS, rtol=1e-6)


@pytest.mark.parametrize("rules", ["def_vmap", "defvjp", "defjvp"])
def test_a_body_that_needs_values_runs_eagerly_beside_a_batch_rule(rules):
    f = jaxfn.custom_function(lambda x: jnp.float32(2 * float(x)))
    f.def_vmap(lambda n, batched, x: (3 * x, batched[0]))
    if rules == "defvjp":
        f.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))
    if rules == "defjvp":
        f.defjvp(lambda x, t: (2 * x[0], 2 * t[0]))
    assert f(jnp.float32(4)) == 8


def test_a_value_that_calls_the_function_is_batched_by_the_rule_under_grad():
    f, xs = MADE["jax"](), jnp.stack([scalar(), scalar()])
    got, _ = jax.vmap(jax.value_and_grad(f))(xs)
    np.testing.assert_allclose(got, SIN + wrong.BATCH, rtol=1e-6)


@made
def test_no_tracer_leaks(make):
    with checking_leaks():
        jax.jit(jax.vmap(jax.grad(MADE[make]())))(jnp.ones(2))
        jax.jit(jax.jacfwd(jax.grad(MADE[make]())))(scalar())


# ---- a batch rule alone: JAX differentiates


def batch_only(style):
    @jaxfn.custom_function
    def f(x, y):
        return jnp.sin(x) * y, 2

    if style == "jax":

        @f.def_vmap
        def rule(axis_size, in_batched, x, y):
            assert (in_batched[0] and not in_batched[1]) or all(in_batched)
            return (1.5 * jnp.sin(x) * y, jnp.full(axis_size, 2)), (True, True)

    else:

        @f.vmap
        def rule(info, in_dims, x, y):
            return (1.5 * jnp.sin(x) * y, 2), (0, None)

    return lambda x, y=1.0: f(x, jnp.float32(y))[0]


@pytest.mark.parametrize("style", ["jax", "torch"])
def test_a_function_with_a_batch_rule_is_differentiated_to_any_order(style):
    f, xs = batch_only(style), jnp.stack([scalar(), scalar()])
    np.testing.assert_allclose(jax.grad(f)(scalar()), COS, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(jax.grad(f))(scalar()), -SIN, rtol=1e-6)
    forward = jax.jvp(jax.grad(f), (scalar(),), (scalar(),))[1]
    np.testing.assert_allclose(forward, -SIN * X, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(f))(xs), COS, rtol=1e-6)
    got = jax.vmap(jax.grad(jax.grad(f)))(xs)
    np.testing.assert_allclose(got, -SIN, rtol=1e-6)
    got = jax.grad(lambda xs: jax.vmap(f)(xs).sum())(xs)
    np.testing.assert_allclose(got, COS, rtol=1e-6)
    got = jax.jit(jax.grad(jax.jit(lambda xs: jax.vmap(f)(xs).sum())))(xs)
    np.testing.assert_allclose(got, COS, rtol=1e-6)
    got = jax.jvp(jax.vmap(f), (xs,), (jnp.ones(2),))[1]
    np.testing.assert_allclose(got, COS, rtol=1e-6)


@pytest.mark.parametrize("style", ["jax", "torch"])
def test_each_example_gets_the_gradient_of_an_unbatched_argument(style):
    f, xs = batch_only(style), jnp.stack([scalar(), 2 * scalar()])
    got = jax.vmap(jax.grad(f, 1), (0, None))(xs, jnp.float32(3))
    np.testing.assert_allclose(got, np.sin([X, 2 * X]), rtol=1e-6)


# ---- rules of one kind are JAX's


@pytest.mark.parametrize("way", [lambda f: f, jax.jit, jax.grad, jax.vmap])
def test_without_rules_it_raises_as_in_jax(way):
    @jaxfn.custom_function
    def f(x, *, k=2):
        return x**k

    x = jnp.ones(2) if way is jax.vmap else 3.0
    for g in (f, jaxfn.custom_function(f.fun, generate_jvp_rule=True)):
        with pytest.raises(AttributeError, match="No rule defined for custom_functi"):
            way(g)(x)
    with pytest.raises(AttributeError, match="No VJP defined"):  # JAX's own words
        way(jax.custom_vjp(f.fun))(x)
    assert f.fun(2.0) == 4


def test_one_kind_of_rule_shows_jax_own_definition():
    def primitive(define):
        f = jaxfn.custom_function(lambda x: 2 * x)
        define(f)
        return str(jax.make_jaxpr(f)(1.0))

    assert "custom_vjp_call" in primitive(
        lambda f: f.defvjp(lambda x: (x, None), lambda _, g: (g,))
    )
    assert "custom_jvp_call" in primitive(lambda f: f.defjvps(lambda t, y, x: t))
    # JAX's own custom_vmap has no reverse mode, so a custom_jvp stands around it.
    with_batch_rule = primitive(lambda f: f.def_vmap(lambda n, b, x: (x, True)))
    assert "custom_jvp_call" in with_batch_rule
    assert "custom_vmap_call" in with_batch_rule


def test_defjvps_has_a_rule_for_each_argument():
    f = jaxfn.custom_function(lambda x, y: x * y)
    f.defjvps(lambda t, out, x, y: 5 * t, None)
    assert jax.grad(f, (0, 1))(2.0, 3.0) == (5, 0)
    f.defvjp(lambda x, y: (x * y, None), lambda _, g: (7 * g, None))
    assert jax.grad(f, (0, 1))(2.0, 3.0) == (7, 0)
    assert jax.jvp(f, (2.0, 3.0), (1.0, 1.0))[1] == 5


@pytest.mark.parametrize("both", [False, True])
def test_symbolic_zeros_tell_what_is_perturbed(both):
    seen = []
    f = jaxfn.custom_function(lambda x, y: (x * y, x + y))

    def fwd(x, y):
        seen.append((x.perturbed, y.perturbed))
        return (x.value * y.value, x.value + y.value), y.value

    def bwd(y, cts):
        zero = jax.custom_derivatives.SymbolicZero
        seen.append([type(ct) is zero for ct in cts])
        return cts[0] * y, None

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    if both:
        f.defjvp(lambda p, t: (f(*p), (p[1] * t[0], t[0])))
    assert jax.grad(lambda x, y: f(x, y)[0])(2.0, 3.0) == 3
    assert seen == [(True, False), [False, True]]


def test_complex_numbers_follow_the_style():
    z = jnp.complex64(1 + 2j)
    jax_like = jaxfn.custom_function(lambda z: z * (3 + 4j))
    jax_like.defvjp(lambda z: (z * (3 + 4j), None), lambda _, g: (g * (3 + 4j),))
    torch_like = jaxfn.custom_function(
        lambda z: z * (3 + 4j), backward=lambda ctx, g: g * jnp.conj(3 + 4j)
    )
    expected = jax.vjp(lambda z: z * (3 + 4j), z)[1](z)[0]
    for f in (jax_like, torch_like):
        np.testing.assert_allclose(jax.vjp(f, z)[1](z)[0], expected)
    jax_like.defjvp(lambda p, t: (jax_like(*p), t[0] * (3 + 4j)))
    np.testing.assert_allclose(jax.vjp(jax_like, z)[1](z)[0], expected)


# ---- arguments


@pytest.mark.parametrize("rules", ["reverse", "both", "derived"])
def test_nondiff_argnums_come_first_in_the_rules(rules):
    @jaxfn.custom_function(nondiff_argnums=(1,), generate_jvp_rule=rules == "derived")
    def f(x, g, y):
        return g(x) * y

    f.defvjp(
        lambda x, g, y: (f(x, g, y), (x, y)),
        lambda g, res, ct: (ct * g(res[1]), 5 * ct),
    )
    if rules == "both":
        f.defjvp(lambda g, p, t: (f(p[0], g, p[1]), 7 * t[0] + g(t[1])))
    for wrap in (lambda f: f, jax.jit, jax.checkpoint):
        called = wrap(lambda x, y: f(x, jnp.square, y))
        assert called(2.0, 3.0) == 12
        assert jax.grad(called, (0, 1))(2.0, 3.0) == (9, 5)
        if rules != "reverse":
            tangent = jax.jvp(called, (2.0, 3.0), (1.0, 10.0))[1]
            assert tangent == {"both": 7 + 100, "derived": 9 + 50}[rules]


def test_nondiff_argnames():
    f = jaxfn.custom_function(lambda x, g: g(x), nondiff_argnames="g")
    f.defjvp(lambda g, p, t: (f(*p, g), 3 * t[0]))
    assert jax.grad(f)(2.0, g=jnp.square) == 3
    with pytest.raises(ValueError, match="nondiff_argnames \\['h'\\].*expected names"):
        jaxfn.custom_function(lambda x: x, nondiff_argnames="h")


def test_a_batch_rule_with_nondiff_argnums():
    f = jaxfn.custom_function(lambda g, x: g(x), nondiff_argnums=0)
    f.def_vmap(lambda n, b, g, x: (g(x) + 10 * (b == [False, True]), b[1]))
    got = jax.vmap(lambda x: f(jnp.square, x))(jnp.arange(2.0))
    assert got.tolist() == [10, 11]


def test_keywords_and_defaults_are_positions_in_the_rules():
    f = jaxfn.custom_function(lambda x, k=2.0: k * x)
    f.defvjp(lambda x, k: (f(x, k), k), lambda k, g: (g * k, None))
    assert jax.grad(f)(1.0) == 2
    assert jax.grad(lambda x: f(k=3.0, x=x))(1.0) == 3


def test_keyword_only_arguments_of_jax_style_rules_are_refused():
    f = jaxfn.custom_function(lambda x, *, k=2.0: k * x)
    f.defvjp(lambda x: (f(x), None), lambda _, g: (2 * g,))
    assert jax.grad(f)(1.0) == 2
    with pytest.raises(TypeError, match="could not be resolved to positions: k"):
        f(1.0, k=3.0)


class Scaled:
    def __init__(self, k):
        self.k = k

    @jaxfn.custom_function
    def jax_like(self, x):
        return self.k * x

    jax_like.defvjp(
        lambda self, x: (self.k * x, self), lambda self, g: (None, 10 * self.k * g)
    )

    @jaxfn.custom_function
    def torch_like(self, x):
        return self.k * x

    @torch_like.setup_context
    def _(ctx, inputs, output):  # noqa: N805
        ctx.owner = inputs[0]

    @torch_like.backward
    def _(ctx, g):  # noqa: N805
        return None, 10 * ctx.owner.k * g


def test_methods():
    scaled = Scaled(3)
    for method in (scaled.jax_like, scaled.torch_like):
        assert method(2.0) == 6
        assert jax.jit(jax.grad(method))(2.0) == 30
    assert Scaled.jax_like is Scaled.__dict__["jax_like"]


@jaxfn.custom_function
def module_level(x):
    """Its docstring."""
    return x


def test_it_looks_like_the_function_and_pickles_by_reference():
    assert module_level.__name__ == "module_level"
    assert module_level.__doc__ == "Its docstring."
    assert module_level.__wrapped__ is module_level.fun
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert copy.deepcopy(module_level) is module_level
    partial = jaxfn.custom_function(functools.partial(jnp.multiply, 2))
    assert copy.deepcopy([partial]) == [partial]
    assert repr(module_level) == "<custom_function module_level>"


# ---- torch-style rules


def test_torch_style_rules_as_keywords():
    f = jaxfn.custom_function(
        lambda x, n: x**n,
        setup_context=lambda ctx, inputs, output: vars(ctx).update(
            x=inputs[0], n=inputs[1]
        ),
        backward=lambda ctx, g: (7 * g * ctx.n * ctx.x, None),
        generate_jvp_rule=True,
    )
    assert jax.grad(f)(2.0, 2) == 28
    assert jax.jvp(lambda x: f(x, n=2), (2.0,), (1.0,))[1] == 28


def test_rules_may_be_changed():
    f = jaxfn.custom_function(lambda x: x, backward=lambda ctx, g: 2 * g)
    assert jax.grad(f)(1.0) == 2
    f.backward(lambda ctx, g: 3 * g)
    assert jax.grad(f)(1.0) == 3


# ---- errors


def test_rules_in_both_terms_are_refused():
    f = jaxfn.custom_function(lambda x: x)
    f.defjvps(lambda t, y, x: t)
    with pytest.raises(RuntimeError, match="backward in torch's terms and has defjvp"):
        f.backward(lambda ctx, g: g)
    f = jaxfn.custom_function(lambda x: x, backward=lambda ctx, g: g)
    with pytest.raises(RuntimeError, match="defvjp in JAX's terms and has backward"):
        f.defvjp(lambda x: (x, None), lambda _, g: (g,))


@pytest.mark.parametrize(
    ("fwd", "bwd", "message"),
    [
        (lambda x: x, None, "fwd rule <lambda> for function .* must produce a pair"),
        (None, lambda _, g: g, "must produce a tuple of length equal to the number"),
        (
            None,
            lambda _, g: (g, g),
            r"expected 1 cotangent .*got \(f32\[\], f32\[\]\)\.",
        ),
        (None, lambda _, g: ([g],), "same container \\(pytree\\) structure as the"),
        (None, lambda _, g: (g[None],), "expected f32\\[\\], got f32\\[1\\]"),
    ],
)
def test_rules_that_break_their_contract(fwd, bwd, message):
    f = jaxfn.custom_function(lambda x: 2 * x)
    f.defvjp(fwd or (lambda x: (f(x), None)), bwd or (lambda _, g: (g,)))
    f.defjvp(lambda p, t: (f(*p), t[0]))
    with pytest.raises((TypeError, ValueError), match=message):
        jax.grad(f)(jnp.float32(1))


COTANGENTS = {
    "one too few": (
        lambda n, _, g: (g,),
        r"expected 2 cotangents .*, got \(f32\[3\],\)\..*of nondiff_argnums have none",
    ),
    "not summed": (
        lambda n, _, g: (g, g),
        r"for index 2 \(`y`\) expected f32\[\], got f32\[3\]\. Sum it over the axes",
    ),
    "summed": (
        lambda n, _, g: (g.sum(), g.sum()),
        r"for index 1 \(`x`\) expected f32\[3\], got f32\[\]\.",
    ),
    "text": (
        lambda n, _, g: ("abc", g.sum()),
        r"for index 1 \(`x`\) expected f32\[3\], got 'abc'",
    ),
}


@pytest.mark.parametrize("mode", [jax.grad, jax.jacfwd])
@pytest.mark.parametrize("kind", COTANGENTS)
def test_a_message_on_a_cotangent_names_the_argument_and_the_line(kind, mode):
    bwd, message = COTANGENTS[kind]

    def scale(n, x, y):
        return x * y

    f = jaxfn.custom_function(scale, 0, generate_jvp_rule=True)
    f.defvjp(lambda n, x, y: (x * y, None), bwd)
    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(jaxfn.RuleError, match=message) as error:
            mode(wrap(lambda y: f(2, jnp.ones(3), y).sum()))(jnp.float32(2))
        assert "bwd rule <lambda> for function scale must" in str(error.value)
        line = bwd.__code__.co_firstlineno
        assert f"(`scale.bwd` is at {__file__}:{line}.)" in str(error.value)


def test_a_cotangent_of_an_element_names_its_argument():
    f = jaxfn.custom_function(lambda *xs: xs[0] + xs[1]["a"])
    f.defvjp(lambda *xs: (f(*xs), None), lambda _, g: (g, {"a": g, "b": g[None]}))
    f.defjvp(lambda p, t: (f(*p), t[0]))
    with pytest.raises(ValueError, match=r"for index 1 expected f32\[\], got f32\[1"):
        jax.grad(f)(jnp.float32(1), {"a": jnp.float32(1), "b": jnp.float32(1)})


def _sum_of(f):
    return lambda x: f(x).sum()


IN_ANOTHER_DTYPE = {
    "grad": lambda f: jax.grad(_sum_of(f)),
    "jit of grad": lambda f: jax.jit(jax.grad(_sum_of(f))),
    "grad of jit": lambda f: jax.grad(_sum_of(jax.jit(f))),
    "grad of vmap": lambda f: jax.grad(_sum_of(jax.vmap(f))),
    "checkpoint": lambda f: jax.grad(_sum_of(jax.checkpoint(f))),
    "scan": lambda f: jax.grad(
        lambda x: jax.lax.scan(lambda c, x: (c + f(x), None), jnp.float32(0), x)[0]
    ),
    "grad of grad": lambda f: jax.grad(
        lambda x: jax.grad(_sum_of(f))(x).sum().real.astype(jnp.float32)
    ),
}


@pytest.mark.parametrize("place", IN_ANOTHER_DTYPE)
@pytest.mark.parametrize(
    ("dtype", "of_bwd"),
    [("bfloat16", "float32"), ("float32", "bfloat16"), ("float32", "complex64")],
)
def test_a_cotangent_may_have_another_dtype_as_in_jax(place, dtype, of_bwd):
    def ruled(f):
        f.defvjp(
            lambda x: (f(x), x),
            lambda x, g: (3 * g.astype(of_bwd) * x.astype(of_bwd),),
        )
        return f

    def body(x):
        return x.astype(jnp.float32) ** 2

    f = ruled(jaxfn.custom_function(body))
    f.defjvp(lambda p, t: (f(*p), 5 * t[0].astype(jnp.float32)))
    x = jnp.arange(3).astype(dtype)
    got = IN_ANOTHER_DTYPE[place](f)(x)
    expected = IN_ANOTHER_DTYPE[place](ruled(jax.custom_vjp(body)))(x)
    assert got.dtype == expected.dtype
    assert got.tolist() == expected.tolist()


OTHER_OUTPUTS = {
    "shape": lambda x: x.sum(),
    "dtype": lambda x: (2 * x).astype(jnp.bfloat16),
    "a tuple": lambda x: (2 * x,),
    "more": lambda x: (2 * x, x),
    "none": lambda x: (),
}


@pytest.mark.parametrize("kinds", [["defvjp"], ["defvjp", "defjvp"]])
@pytest.mark.parametrize("other", OTHER_OUTPUTS)
def test_in_a_trace_fwd_must_return_what_the_function_does(other, kinds):
    @jaxfn.custom_function
    def double(x):
        return 2 * x

    def fwd_of_double(x):
        return OTHER_OUTPUTS[other](x), None

    double.defvjp(fwd_of_double, lambda _, g: (2 * g,))
    if "defjvp" in kinds:
        double.defjvp(lambda xs, ts: (2 * xs[0], 2 * ts[0]))
    match = "fwd rule fwd_of_double for function double must produce a pair"
    for transform in (jax.jit, jax.checkpoint):
        with pytest.raises(TypeError, match=match):
            jax.grad(_sum_of(transform(double)))(jnp.ones(3))


def test_a_jvp_rule_that_breaks_its_contract_gets_jax_own_message():
    f = jaxfn.custom_function(lambda x: 2 * x)
    f.defvjp(lambda x: (f(x), None), lambda _, g: (g,))
    f.defjvp(lambda p, t: t[0])
    with pytest.raises(TypeError, match="must produce a pair"):
        jax.jvp(f, (1.0,), (1.0,))


def test_a_closed_over_tracer_is_no_silent_zero():
    def loss(w):
        f = jaxfn.custom_function(lambda x: w * x)
        f.defvjp(lambda x: (w * x, None), lambda _, g: (g,))
        f.defjvp(lambda p, t: (f(*p), t[0]))
        return f(2.0)

    with pytest.raises(RuntimeError, match="closed over"):
        jax.grad(loss)(3.0)


@pytest.mark.parametrize("rule_calls_it", [False, True])
def test_what_all_examples_share_is_differentiated_under_jit(rule_calls_it):
    @jaxfn.custom_function
    def f(x, y):
        return jnp.sin(y), x * y, jnp.argmax(y)

    @f.defjvp
    def f_jvp(primals, tangents):
        (x, y), (tx, ty) = primals, tangents
        out = f(x, y) if rule_calls_it else (jnp.sin(y), x * y, jnp.argmax(y))
        none = np.zeros((), jax.dtypes.float0)
        return out, (ty * jnp.cos(y), 3 * tx * y + x * ty, none)

    def g(x, y):
        return jax.vmap(lambda x: f(x, y)[:2])(x)

    x, y = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1.0, 2.0])
    outs, dots = jax.jvp(jax.jit(g), (x, y), (x, jnp.ones(2)))
    assert np.allclose(outs[0], np.sin([[1, 2], [1, 2]]))
    assert np.allclose(outs[1], [[1, 4], [3, 8]])
    assert np.allclose(dots[0], np.cos([[1, 2], [1, 2]]))
    assert np.allclose(dots[1], 3 * x * y + x)
    total = jax.grad(lambda y: sum(map(jnp.sum, jax.jit(g)(x, y))))(y)
    assert np.allclose(total, 2 * np.cos(y) + x.sum(0))


# ---- an output that nobody uses


@pytest.mark.parametrize("wrap", [lambda f: f, jax.vmap], ids=["alone", "vmap"])
@pytest.mark.parametrize("k", [0, 1])
def test_what_nobody_uses_is_left_out_and_the_rest_keeps_its_rule(wrap, k):
    f = jaxfn.custom_function(lambda x, y: (jnp.sin(x), x + jnp.cos(y)))
    f.defjvp(lambda p, t: (f(*p), (20 * t[0], 3 * t[0] + 5 * t[1])))
    x, y = jnp.ones(2), jnp.zeros(2)
    used = [i == k for i in range(2)]
    jaxpr, _ = pe.dce_jaxpr(jax.make_jaxpr(wrap(f))(x, y).jaxpr, used)
    evaluated = [jaxpr]
    if not internals.SCAN_DROPS_JVP:
        assert primitives(jaxpr).isdisjoint({"cos"} if k == 0 else {"sin"})
    else:  # the value inside has the rule too, and is one operation
        evaluated.append(jaxpr.eqns[0].params["call_jaxpr"].jaxpr)
    for found in evaluated:

        def one(x, y, found=found):
            return jaxpr_as_fun(pe.close_jaxpr(found))(x, y)[0]

        np.testing.assert_allclose(one(x, y), f(x, y)[k], rtol=1e-6)
        dx, dy = (jax.jvp(one, (x, y), ts)[1] for ts in ((x, y), (y, x)))
        assert (dx == (20, 3)[k]).all()
        assert (dy == (0, 5)[k]).all()


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("rules", ["defvjp", "both"])
def test_a_derivative_taken_under_x64_and_used_without(wrap, rules):
    f = jaxfn.custom_function(jnp.sin)
    # Without x64 these are numbers of 32 bits.
    f.defvjp(lambda x: (f(x), x), lambda x, g: (3 * jnp.float32(g),))
    if rules == "both":
        f.defjvp(lambda p, t: (f(*p), 5 * t[0]))
    with jax.enable_x64(True):
        _, pull = jax.vjp(wrap(f), np.float64(0.3))
        one = jnp.float64(1)
    (got,) = pull(one)
    assert got == 3
    assert got.dtype == jnp.float32


LEAKS = {
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "jvp of jit": lambda f: lambda x: jax.jvp(jax.jit(f), (x,), (x,)),
    "grad of scan": lambda f: jax.grad(
        lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]
    ),
    "hessian of jit": lambda f: jax.hessian(jax.jit(f)),
    "linearize": lambda f: lambda x: jax.linearize(jax.jit(f), x)[1](x),
}


BACKWARD_ALONE = "grad of jit", "jit of grad", "grad of scan"


@pytest.mark.parametrize(
    ("rules", "program"),
    [
        *[("defvjp", program) for program in BACKWARD_ALONE],
        *itertools.product(["defjvp", "both", "defjvp def_vmap"], LEAKS),
    ],
)
def test_no_tracer_outlives_its_trace(rules, program):
    f = jaxfn.custom_function(lambda x: jnp.sin(x))
    if rules != "defvjp":
        f.defjvp(lambda p, t: (f(*p), jnp.cos(p[0]) * t[0]))
    if rules in ("defvjp", "both"):
        f.defvjp(lambda x: (f(x), x), lambda x, g: (g * jnp.cos(x),))
    if "def_vmap" in rules:
        f.def_vmap(lambda n, batched, x: (jnp.sin(x), batched[0]))
    with checking_leaks():
        LEAKS[program](f)(jnp.float32(0.5))
