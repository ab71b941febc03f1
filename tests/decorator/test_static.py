"""Arguments that JAX can't hold, of functions with rules in JAX's terms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxfn
from tests import wrong

SymbolicZero = jax.custom_derivatives.SymbolicZero


@jax.tree_util.register_pytree_node_class
class Node:
    """A pytree with an array and a static leaf."""

    def __init__(self, x, how):
        self.x, self.how = x, how

    def tree_flatten(self):
        return (self.x, self.how), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)


class Hostile:
    """Has no hash, and can't be compared."""

    __hash__ = None

    def __len__(self):
        return 3

    def __eq__(self, other):
        raise ValueError


WHOLE = {
    "dict": (lambda x, how: {"x": x, "how": how}, lambda t: (t["x"], t["how"])),
    "list": (lambda x, how: [how, x], lambda t: (t[1], t[0])),
    "node": (Node, lambda t: (t.x, t.how)),
}
HOWS = {"string": "abc", "lambda": lambda: 3, "hostile": Hostile()}


def number(how):
    return how() if callable(how) else len(how)


def value(x):
    """The number in what a rule gets with symbolic_zeros."""
    return 0.0 if isinstance(x, SymbolicZero) else getattr(x, "value", x)


def function(rules, make, parts, *, symbolic=False):
    """`sin(x) * number(how) * number(inner) * y`, rules wrong by their factors."""

    @jaxfn.custom_function
    def f(tree, how, y):
        x, inner = parts(tree)
        return jnp.sin(x) * number(how) * number(inner) * y

    def fwd(tree, how, y):
        x, inner = parts(tree)
        x, y = value(x), value(y)
        return f(make(x, inner), how, y), ({"x": x, "all": (how, inner)}, y, "saved")

    def bwd(saved, ct):
        held, y, word = saved
        assert word == "saved"
        by_y = jnp.sin(held["x"]) * number(held["all"][0]) * number(held["all"][1]) * ct
        return make(by_y * y / jnp.tan(held["x"]) * wrong.BACKWARD, None), None, by_y

    def jvp(primals, tangents):
        (tree, how, y), (t_tree, t_how, t_y) = primals, tangents
        (x, inner), (t, t_inner) = parts(tree), parts(t_tree)
        assert t_how is None
        assert t_inner is None
        n = number(how) * number(inner)
        by_x, by_y = wrong.JVP * jnp.cos(x) * y * n, jnp.sin(x) * n
        return f(tree, how, y), by_x * value(t) + by_y * value(t_y)

    def by_tree(t, out, tree, how, y):
        assert parts(t)[1] is None
        x, inner = parts(tree)
        return wrong.JVP * jnp.cos(x) * y * number(how) * number(inner) * parts(t)[0]

    if "defvjp" in rules:
        f.defvjp(fwd, bwd, symbolic_zeros=symbolic)
    if "defjvp" in rules:
        f.defjvp(jvp, symbolic_zeros=symbolic)
    if "defjvps" in rules:
        f.defjvps(by_tree, None, lambda t, out, tree, how, y: t * out / y)
    if "def_vmap" in rules:

        @f.def_vmap
        def batch(size, batched, tree, how, y):
            assert batched[1] is False
            (x_batched, inner_batched) = parts(batched[0])
            assert inner_batched is False
            return f.fun(tree, how, y) + wrong.BATCH, x_batched or batched[2]

    return f


RULES = {
    "reverse": ("defvjp",),
    "forward": ("defjvp",),
    "defjvps": ("defjvps",),
    "both": ("defvjp", "defjvp"),
    "reverse, batch": ("defvjp", "def_vmap"),
    "both, batch": ("defvjp", "defjvps", "def_vmap"),
    "batch": ("def_vmap",),
}
X, Y, N = 0.5, 2.0, 6
SIN, COS = np.sin(X), np.cos(X)


def called(rules, *, whole="dict", how="string", symbolic=False):
    """A function of `x` and `y` alone, and the factor of its gradient."""
    make, parts = WHOLE[whole]
    f = function(RULES[rules], make, parts, symbolic=symbolic)
    factor = 1.0 if rules == "batch" else wrong.JVP
    factor = wrong.BACKWARD if "defvjp" in RULES[rules] else factor
    return lambda x, y=Y: f(make(x, "ab"), HOWS[how], y), N * factor


def check(f, factor):
    x, y = jnp.float32(X), jnp.float32(Y)
    assert np.allclose(f(X), SIN * Y * N)
    assert np.allclose(jax.grad(f)(X), factor * COS * Y)
    assert np.allclose(jax.grad(jax.jit(f), (0, 1))(x, y), (factor * COS * Y, N * SIN))
    assert np.allclose(jax.jit(jax.grad(f, 1))(x, y), N * SIN)
    assert np.allclose(jax.grad(jax.checkpoint(f))(x), factor * COS * Y)
    assert np.allclose(jax.vmap(jax.grad(f))(jnp.stack([x, x])), factor * COS * Y)
    assert np.allclose(jax.grad(jax.grad(f))(x), -factor * SIN * Y)
    assert np.allclose(jax.grad(jax.jit(jax.grad(f)))(x), -factor * SIN * Y)

    def twice(x):
        return lax.scan(lambda c, _: (f(c), None), x, length=2)[0]

    expected = jax.grad(lambda x: f(f(x)))(x)
    assert np.allclose(jax.grad(twice)(x), expected, rtol=1e-5)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("how", HOWS)
def test_static_values_of_all_kinds(rules, how):
    check(*called(rules, how=how))


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("whole", WHOLE)
def test_static_values_inside_of_pytrees(rules, whole):
    check(*called(rules, whole=whole))


@pytest.mark.parametrize("rules", ["reverse", "forward", "both", "reverse, batch"])
def test_static_values_and_symbolic_zeros(rules):
    check(*called(rules, symbolic=True))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("rules", ["forward", "both", "both, batch", "defjvps"])
def test_forward_mode_and_the_hessian(rules):
    f, _ = called(rules)
    for wrap in (lambda f: f, jax.jit, jax.checkpoint):
        got = jax.jvp(wrap(f), (X, Y), (1.0, 1.0))[1]
        assert np.allclose(got, N * (wrong.JVP * COS * Y + SIN))
    assert np.allclose(jax.hessian(f)(X), jax.jacfwd(jax.grad(f))(X))


@pytest.mark.parametrize("rules", ["batch", "reverse, batch", "both, batch"])
def test_the_batch_rule_is_told_that_static_values_are_not_batched(rules):
    f, _ = called(rules)
    xs = jnp.float32([X, X])
    assert np.allclose(jax.vmap(f)(xs), SIN * Y * N + wrong.BATCH)
    assert np.allclose(jax.vmap(f, (None, 0))(X, xs), SIN * X * N + wrong.BATCH)


@pytest.mark.parametrize("rules", ["defvjp", "defjvp", "both", "def_vmap", "all"])
def test_static_values_beside_nondiff_argnums(rules):
    f = jaxfn.custom_function(
        lambda g, x, how, y: g(x) * len(how) * y, nondiff_argnums=0
    )
    if rules in ("defvjp", "both", "all"):
        f.defvjp(
            lambda g, x, how, y: (f(g, x, how, y), (x, how, y, g)),
            lambda g, s, ct: (5 * g(s[0]) * ct * len(s[1]), None, ct * s[3](s[0])),
        )
    if rules in ("defjvp", "both", "all"):
        f.defjvp(lambda g, p, t: (f(g, *p), 7 * t[0] * g(p[0]) * len(p[1]) + t[2]))
    if rules in ("def_vmap", "all"):
        f.def_vmap(
            lambda n, batched, g, x, how, y: (
                g(x) * len(how) * y + 100 * (batched == [False, True, False, False]),
                True,
            )
        )

    def called(x, y=Y):
        return f(jnp.sin, x, "abc", y)

    xs = jnp.float32([X, X])
    assert np.allclose(called(X), 6 * SIN)
    expected = 6 * SIN + 100 * (rules in ("def_vmap", "all"))
    assert np.allclose(jax.vmap(called)(xs), expected)
    gradient = {"def_vmap": (6 * COS, 3 * SIN), "defjvp": (21 * SIN, 1)}
    expected = gradient.get(rules, (15 * SIN, SIN))
    assert np.allclose(jax.jit(jax.grad(called, (0, 1)))(X, Y), expected)
    if rules in ("defjvp", "both", "all"):
        assert np.allclose(jax.jvp(called, (X, Y), (1.0, 1.0))[1], 21 * SIN + 1)


@pytest.mark.parametrize("rules", ["reverse", "forward", "both", "batch"])
def test_jit_keeps_the_values_of_one_call_site_apart(rules):
    make, parts = WHOLE["dict"]
    f = function(RULES[rules], make, parts)
    compiled = jax.jit(lambda x, how: f(make(x, "a"), how, 1.0), static_argnums=1)
    factor = called(rules)[1] / N
    words = ("a", "abc", "a", "abcd")
    got = [jax.grad(compiled)(X, word) for word in words]
    assert np.allclose(got, [factor * COS * len(word) for word in words])
    assert np.allclose(
        [compiled(X, word) for word in words], [SIN * n for n in (1, 3, 1, 4)]
    )
    by_loop = [jax.grad(lambda x, w=w: f(make(x, "a"), w, 1.0))(X) for w in words]
    assert np.allclose(got, by_loop)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", ["string", "function"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_each_derivative_of_a_call_has_its_own_static_residuals(
    symbolic, both, kind, wrap
):
    # JAX keeps one structure of residuals for a call, that of the last trace of fwd.
    traces = iter(range(1, 100))
    numbers = []

    @jaxfn.custom_function
    def product(x, y, how):
        return x * y

    def fwd(x, y, how):
        n = next(traces)
        numbers.append(n)
        x, y = value(x), value(y)
        saved = n * "a" if kind == "string" else lambda: n
        return x * y, (x, y, saved)

    def bwd(saved, ct):
        x, y, how = saved
        return y * ct * number(how), x * ct * number(how), None

    product.defvjp(fwd, bwd, symbolic_zeros=symbolic)
    if both:
        product.defjvp(lambda p, t: (p[0] * p[1], t[0] * p[1] + p[0] * t[1]))
    f = wrap(lambda x, y: product(x, y, "how"))
    first = jax.vjp(lambda x: f(x, 3.0), 2.0)[1]
    second = jax.vjp(lambda y: f(2.0, y), 3.0)[1]
    of_second = numbers[-1]
    assert of_second > 1
    got = first(1.0)[0] / 3, second(1.0)[0] / 2
    assert got[1] == of_second
    assert got[0] != got[1]


def test_residuals_may_hold_other_arrays_for_each_set_of_perturbed_arguments():
    @jaxfn.custom_function
    def product(x, y, how):
        return x * y

    def fwd(x, y, how):
        return x.value * y.value, ("x", y.value) if x.perturbed else ("y", x.value)

    def bwd(saved, ct):
        by, other = saved
        return (ct * other, None, None) if by == "x" else (None, ct * other, None)

    product.defvjp(fwd, bwd, symbolic_zeros=True)
    f = jax.jit(lambda x, y: product(x, y, "how"))
    first = jax.vjp(lambda x: f(x, 3.0), 2.0)[1]
    second = jax.vjp(lambda y: f(2.0, y), 3.0)[1]
    assert (first(1.0)[0], second(1.0)[0]) == (3, 2)


# ---- errors


def test_a_primal_with_symbolic_zeros_is_no_residual():
    f = jaxfn.custom_function(lambda x, how: 2 * x)
    f.defvjp(lambda x, how: (x.value, x), lambda x, g: (g, None), symbolic_zeros=True)
    with pytest.raises(TypeError, match="CustomVJPPrimal"):
        jax.grad(f)(1.0, "how")


@pytest.mark.parametrize(
    ("cts", "match"),
    [
        (lambda g: g, "must produce a tuple of length equal .* expected 2 cotangents"),
        (lambda g: (g,), "expected 2 cotangents \\(None for zero\\)"),
        (
            lambda g: ([g, None], None),
            "same container .* expected PyTreeDef\\(\\({'how",
        ),
        (lambda g: ({"x": g[None], "how": None}, None), "shape"),
    ],
)
@pytest.mark.parametrize("both", [False, True])
def test_cotangents_that_do_not_fit_arguments_with_static_values(cts, match, both):
    f = jaxfn.custom_function(lambda tree, how: tree["x"])
    f.defvjp(lambda tree, how: (tree["x"], None), lambda _, g: cts(g))
    if both:
        f.defjvp(lambda p, t: (f(*p), t[0]["x"]))
    with pytest.raises((TypeError, ValueError), match=match):
        jax.grad(lambda x: f({"x": x, "how": "a"}, "b"))(jnp.float32(1))


def test_a_tracer_in_nondiff_argnums_is_refused_as_in_jax():
    for decorator, how in ((jax.custom_vjp, 1.0), (jaxfn.custom_function, "how")):

        @functools.partial(decorator, nondiff_argnums=(0,))
        def f(n, x, how):
            return n * x

        f.defvjp(lambda n, x, how: (n * x, None), lambda n, _, g: (n * g, None))
        with pytest.raises(jax.errors.UnexpectedTracerError, match="nondiff_argnums"):
            jax.jit(f, static_argnums=2 if how == "how" else ())(2.0, 3.0, how)


@pytest.mark.parametrize("decorator", [jax.custom_jvp, jaxfn.custom_function])
def test_a_forward_rule_takes_a_tracer_in_nondiff_argnums_as_constant(decorator):
    f = decorator(lambda n, x: n * x, nondiff_argnums=(0,))
    f.defjvp(lambda n, p, t: (f(n, *p), 7 * n * t[0]))
    assert jax.jit(jax.grad(f, (0, 1)))(2.0, 3.0) == (0, 14)


def test_defjvps_is_refused_beside_nondiff_argnums_as_in_jax():
    for decorator in (jax.custom_jvp, jaxfn.custom_function):
        f = decorator(lambda n, x: n * x, nondiff_argnums=(0,))
        with pytest.raises(TypeError, match="Can't use ``defjvps`` with ``nondiff_a"):
            f.defjvps(None, lambda t, out, n, x: t)


@pytest.mark.parametrize("position", [2, -3])
def test_a_position_that_the_function_does_not_have(position):
    with pytest.raises(
        ValueError, match=rf"nondiff_argnums \[{position}\].*takes 2 ar"
    ):
        jaxfn.custom_function(lambda x, k: x, nondiff_argnums=position)
    jaxfn.custom_function(lambda *xs: xs, nondiff_argnums=5)
