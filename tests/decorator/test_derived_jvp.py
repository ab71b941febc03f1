"""`custom_function` with generate_jvp_rule: forward mode by the transpose of bwd."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from jaxfn._core import messages as errors
from tests import wrong
from tests.jaxprs import primitives
from tests.laws.test_every_order import scalar


def sine(*others, through_itself=True, symbolic=False):
    """With defvjp and the other rules, each wrong by its own factor.

    Args:
        others: "defjvp", without which it is derived, and "def_vmap".
        through_itself: do fwd and jvp call the function itself, or do the math?
        symbolic: has bwd symbolic zeros?
    """

    @jaxfn.custom_function(generate_jvp_rule="defjvp" not in others)
    def f(x):
        return jnp.sin(x)

    value = f if through_itself else jnp.sin

    def fwd(x):
        x = x.value if symbolic else x
        return value(x), x

    def bwd(x, g):
        return (wrong.BACKWARD * jnp.cos(x) * g,)

    if "defjvp" in others:
        f.defjvp(lambda p, t: (value(*p), wrong.JVP * jnp.cos(*p) * t[0]))
    if "def_vmap" in others:
        f.def_vmap(lambda n, batched, x: (jnp.sin(x) + wrong.BATCH, batched[0]))
    f.defvjp(fwd, bwd, symbolic_zeros=symbolic)
    return f


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_static_arguments_and_pytrees(wrap):
    @jaxfn.custom_function(generate_jvp_rule=True)
    def f(x, mode):
        return x["a"] * len(mode) * x["b"]

    def bwd(res, g):
        x, mode = res
        return {"a": 5 * g * len(mode) * x["b"], "b": None}, None

    f.defvjp(lambda x, mode: (f(x, mode), (x, mode)), bwd)
    g = wrap(lambda a: f({"a": a, "b": 2.0}, "abc"))
    assert g(2.0) == 12
    assert jax.grad(g)(2.0) == 30
    assert jax.jvp(g, (2.0,), (1.0,))[1] == 30
    assert jax.vmap(jax.jacfwd(g))(jnp.ones(2)).tolist() == [30, 30]
    only_b = wrap(lambda b: f({"a": 2.0, "b": b}, "abc"))
    assert jax.jvp(only_b, (2.0,), (1.0,)) == (12, 0)  # bwd says None


def test_an_array_may_be_a_nondiff_argument():
    @jaxfn.custom_function(nondiff_argnums=(0,), generate_jvp_rule=True)
    def f(scale, x):
        return scale * x

    f.defvjp(lambda s, x: (f(s, x), None), lambda s, _, g: (3 * s * g,))
    assert jax.jacfwd(f, 1)(jnp.float32(2), 1.0) == 6
    assert jax.jit(jax.jacfwd(f, 1))(jnp.float32(2), 1.0) == 6
    with pytest.raises(Exception, match="traced value that was not passed"):
        jax.jacfwd(f, 0)(2.0, 1.0)


def test_integers_have_no_tangent():
    @jaxfn.custom_function(generate_jvp_rule=True)
    def take(x, i):
        return x[i], i + 1

    def bwd(res, cts):
        n, i = res
        return jnp.zeros(n).at[i].add(3 * cts[0]), None

    take.defvjp(lambda x, i: (take(x, i), (x.shape[0], i)), bwd)
    x, t = jnp.arange(4.0), jnp.array([1.0, 10.0, 100.0, 1000.0])
    (value, index), (tangent, zero) = jax.jvp(
        lambda x: take(x, jnp.array(2)), (x,), (t,)
    )
    assert (value, index, tangent) == (2, 3, 300)
    assert zero.dtype == jax.dtypes.float0
    assert jax.jacfwd(lambda x: take(x, 1)[0])(x).tolist() == [0, 3, 0, 0]


def test_a_complex_function_has_the_jvp_of_jax():
    k = 3 + 4j

    @jaxfn.custom_function(generate_jvp_rule=True)
    def f(z):
        return k * z * z

    f.defvjp(lambda z: (f(z), z), lambda z, g: (2 * k * z * g,))  # JAX's convention
    z, t = jnp.complex64(1 + 2j), jnp.complex64(0.5 - 1j)
    expected = jax.jvp(lambda z: k * z * z, (z,), (t,))
    np.testing.assert_allclose(jax.jvp(f, (z,), (t,)), expected, rtol=1e-6)
    got = jax.vjp(f, z)[1](t)[0]
    np.testing.assert_allclose(got, jax.vjp(lambda z: k * z * z, z)[1](t)[0], rtol=1e-6)


DTYPES = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float64",
    "float64": "float32",
    "complex64": "float32",
}


def product(x_dtype, ct_dtype):
    """x * y of which bwd gives cotangents of a chosen dtype; and arguments."""

    @jaxfn.custom_function(generate_jvp_rule=True)
    def f(x, y):
        return (x * y).real.astype(jnp.float32)

    def bwd(res, g):
        x, y = res
        return (3 * g * y).astype(ct_dtype), (5 * g * x.real).astype(ct_dtype)

    f.defvjp(lambda x, y: (f(x, y), (x, y)), bwd)
    return f, jnp.array([1.0, 4.0], x_dtype), jnp.array([2.0, 2.0], jnp.float32)


@pytest.mark.parametrize("argument", DTYPES)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_cotangent_may_have_another_dtype_than_its_argument(argument, wrap):
    with jax.enable_x64(True):
        f, x, y = product(argument, DTYPES[argument])
        push = wrap(lambda x, y: jax.jvp(f, (x, y), (x, y))[1])
        assert push(x, y).tolist() == [16, 64]
        assert jax.vmap(push)(x, y).tolist() == [16, 64]
        along = wrap(lambda y: f(x, y).sum())
        assert jax.jacfwd(along)(y).tolist() == [5, 20]
        pull = wrap(jax.grad(along))
        assert pull(y).tolist() == [5, 20]
        if argument != "complex64":
            gradient = jax.jacfwd(lambda x: f(x, y).sum())(x)
            assert (gradient.tolist(), gradient.dtype) == ([6, 6], "float32")


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("ct_dtype", ["float64", "float16"])
def test_a_hessian_of_cotangents_of_another_dtype(ct_dtype, wrap):
    with jax.enable_x64(True):
        f, x, y = product("float32", ct_dtype)
        found = wrap(jax.hessian(lambda y: f(x, y).sum() ** 2))(y)
        # The gradient of the sum is 5 x in both modes.
        assert found.tolist() == [[50, 200], [200, 800]]


def test_a_loop_and_an_implicit_solver_get_forward_derivatives():
    f = sine()

    def solved(a):
        def step(x):
            return x - f(a * x) / 8 - (x - 1) / 4

        return jax.lax.custom_root(
            lambda x: f(a * x) / 8 + (x - 1) / 4,
            jnp.float32(0.5),
            lambda _, x: jax.lax.fori_loop(0, 60, lambda _, x: step(x), x),
            lambda g, y: y / g(jnp.ones_like(y)),
        )

    a = scalar()
    x = solved(a)
    slope = wrong.BACKWARD * np.cos(a * x) / 8  # of the residual, by f
    expected = -slope * x / (slope * a + 0.25)
    np.testing.assert_allclose(jax.grad(solved)(a), expected, rtol=1e-4)
    np.testing.assert_allclose(jax.jacfwd(solved)(a), expected, rtol=1e-4)


def test_the_jaxpr_has_no_custom_vjp():
    found = primitives(jax.make_jaxpr(sine())(scalar()))
    assert "custom_jvp_call" in found
    assert "custom_vjp_call" not in found


@pytest.mark.full
def test_check_and_explain_call_the_jvp_sine():
    report = jaxfn.check(sine(), jnp.arange(1.0, 3.0))
    assert report.wrong_rules == ("backward",)
    right = jaxfn.custom_function(jnp.sin, generate_jvp_rule=True)
    right.defvjp(lambda x: (right(x), x), lambda x, g: (jnp.cos(x) * g,))
    report = jaxfn.check(right, jnp.arange(1.0, 3.0))
    assert report.ok, str(report)
    rules = {r.check: r.rule for r in report.results}
    assert rules["jvp"] == "backward"
    text = str(jaxfn.explain(right, scalar()))
    assert "bwd of defvjp, transposed" in text


# ---- what is refused


def test_forward_mode_of_defvjp_alone_names_the_way_out():
    f = jaxfn.custom_function(jnp.sin)
    f.defvjp(lambda x: (f(x), x), lambda x, g: (jnp.cos(x) * g,))
    with pytest.raises(TypeError, match="can't apply forward-mode") as caught:
        jax.hessian(lambda x: f(x) ** 2)(1.0)
    assert "`sin` has no forward rule" in caught.value.__notes__[0]
    assert "generate_jvp_rule=True" in caught.value.__notes__[0]


@pytest.mark.parametrize("define", ["defjvp", "defjvps"])
def test_a_forward_rule_beside_it_is_refused(define):
    f = sine()
    with pytest.raises(
        errors.RuleError, match=f"`f` has generate_jvp_rule=True .*{define}"
    ):
        getattr(f, define)(lambda *args: None)
    assert jax.jacfwd(f)(scalar()) == jax.grad(f)(scalar())  # nothing has changed


def test_a_guarded_bwd_is_transposed():
    f = jaxfn.custom_function(jnp.sin, generate_jvp_rule=True)
    f.defvjp(lambda x: (f(x), x), lambda x, g: (7 * jnp.cos(x) * jnp.nan_to_num(g),))
    assert jax.grad(f)(0.0) == 7
    assert jax.jacfwd(f)(0.0) == 7


def test_a_bwd_that_has_no_transpose_is_refused():
    f = jaxfn.custom_function(jnp.sin, generate_jvp_rule=True)
    f.defvjp(
        lambda x: (f(x), x),
        lambda x, g: (jax.lax.while_loop(lambda _: False, jnp.negative, g),),
    )
    assert jax.grad(f)(0.0) == 1
    with pytest.raises(
        ValueError, match="can't be transposed to get a jvp.*Define `sin.defjvp`"
    ):
        jax.jacfwd(f)(0.0)


def test_a_complex_cotangent_of_a_real_argument_is_refused_in_forward_mode():
    f = jaxfn.custom_function(lambda x: 2 * x, generate_jvp_rule=True)
    f.defvjp(lambda x: (f(x), None), lambda _, g: (2 * g.astype(jnp.complex64),))
    with pytest.raises(ValueError, match="can't be transposed"):
        jax.jvp(f, (1.0,), (1.0,))


def test_an_option_that_only_jax_knows_is_refused_beside_it():
    f = jaxfn.custom_function(jnp.sin, generate_jvp_rule=True)
    expected = r"`sin` got defvjp\(foo=True\) and has generate_jvp_rule"
    with pytest.raises(errors.RuleError, match=expected):
        f.defvjp(lambda x: (f(x), x), lambda x, g: (g,), foo=True)


def test_methods_and_batch_rules_with_static_arguments():
    class Scaled:
        def __init__(self, k):
            self.k = k

        @jaxfn.custom_function(generate_jvp_rule=True)
        def product(self, x, y):
            return self.k * x * y

        product.defvjp(
            lambda self, x, y: (self.k * x * y, (self.k, x, y)),
            lambda res, g: (None, 3 * res[0] * g * res[2], 5 * res[0] * g * res[1]),
        )

    f = Scaled(2.0).product
    assert jax.grad(f, (0, 1))(1.0, 2.0) == (12, 10)
    assert jax.jvp(f, (1.0, 2.0), (1.0, 10.0)) == (4, 112)

    @jaxfn.custom_function(nondiff_argnums=(0,), generate_jvp_rule=True)
    def power(n, x):
        return x**n

    power.defvjp(
        lambda n, x: (power(n, x), x), lambda n, x, g: (7 * n * x ** (n - 1) * g,)
    )
    power.def_vmap(lambda size, batched, n, x: (x**n + 100, batched[1]))
    xs, cube = jnp.ones(2), functools.partial(power, 3)
    values, tangents = jax.jvp(jax.vmap(cube), (xs,), (xs,))
    assert (values.tolist(), tangents.tolist()) == ([101, 101], [21, 21])
    assert jax.vmap(jax.jacfwd(cube))(xs).tolist() == [21, 21]
    assert jax.vmap(jax.grad(cube))(xs).tolist() == [21, 21]


def test_rules_in_torch_terms_are_not_mixed_with_it():
    f = sine()
    with pytest.raises(errors.RuleError, match="same terms"):
        f.backward(lambda ctx, g: g)
    g = jaxfn.custom_function(jnp.sin, generate_jvp_rule=True)
    g.backward(lambda ctx, g: 3 * g)
    assert jax.jacfwd(g)(1.0) == 3


# ---- the decorator with options alone


def test_options_alone_make_a_decorator():
    @jaxfn.custom_function(nondiff_argnums=(1,))
    def f(x, k=3):
        "A docstring."
        return k * x

    assert isinstance(f, jaxfn.custom_function)
    assert (f.__name__, f.__doc__) == ("f", "A docstring.")
    f.defjvp(lambda k, primals, ts: (f(primals[0], k), k * ts[0]))
    assert f(2.0) == 6
    partial = functools.partial(jaxfn.custom_function, nondiff_argnums=(1,))
    assert type(partial(f.fun)) is type(f)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nondiff'"):
        jaxfn.custom_function(nondiff=(1,))(jnp.sin)
