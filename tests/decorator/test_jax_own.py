"""`custom_function` has what the installed JAX's own decorators have, by name."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from jaxfn import _jax_rules as jax_own
from tests import wrong

DECORATORS = (jax.custom_vjp, jax.custom_jvp, jax.custom_batching.custom_vmap)
NAMES = {
    (decorator, name)
    for decorator in DECORATORS
    for name in dir(decorator(lambda x: x))
    if not name.startswith("_")
}
"""All public methods and attributes, by decorator."""


def twice_sine(x):
    return 2 * jnp.sin(x)


def fwd(x):
    return twice_sine(x), x


def rem(res, x):
    return twice_sine(x), x


def bwd(x, g):
    return (wrong.BACKWARD * 2 * jnp.cos(x) * g,)


def logging_bwd(x, g):
    return bwd(x, g), {"g": g}


def accumulating_bwd(x, g, accumulator):
    accumulator.accum(*bwd(x, g))


RULES = {
    "defvjp": (fwd, bwd),
    "defvjp_with_logs": (fwd, logging_bwd),
    "defvjp_with_accums": (fwd, accumulating_bwd),
    "defremat": (fwd, rem, bwd),
    "defremat_with_logs": (fwd, rem, logging_bwd),
}
NEW = [
    pytest.param(
        method,
        marks=pytest.mark.skipif(
            not hasattr(jax.custom_vjp, method), reason="this JAX has no such method"
        ),
    )
    for method in RULES
    if method != "defvjp"
]
FLAGS = ("jax_custom_vjp3", "jax_remat3")
X = jnp.array([0.3, -1.0])


def defined(decorator, method, fun=twice_sine, rules=None, **options):
    f = decorator(fun, **options)
    getattr(f, method)(*(rules or RULES[method]))
    return f


@pytest.fixture
def _remat_rules():
    """The implementation that JAX wants for defremat."""
    before = {flag: jax.config.values[flag] for flag in FLAGS}
    for flag in FLAGS:
        jax.config.update(flag, True)
    yield
    for flag, value in before.items():
        jax.config.update(flag, value)


@pytest.fixture
def next_jax(monkeypatch):
    """A JAX whose decorators have one more method each."""

    def defnext(self, first, second):
        if isinstance(self, jax.custom_vjp):
            self.defvjp(first, second)
        elif isinstance(self, jax.custom_jvp):
            self.defjvp(first)
        else:
            self.def_vmap(first)
        self.next_attribute = second
        return first

    for decorator in DECORATORS:
        name = f"def_next_{decorator.__name__}"
        monkeypatch.setattr(decorator, name, defnext, raising=False)
        monkeypatch.setattr(decorator, "next_attribute", None, raising=False)
    jax_own.public_names.cache_clear()
    yield
    jax_own.public_names.cache_clear()


# ---- names


def test_no_name_is_missing():
    f = jaxfn.custom_function(twice_sine)
    missing = {name for _, name in NAMES if not hasattr(f, name)}
    assert not missing
    assert {name for _, name in NAMES} <= set(dir(f))
    assert {"defvjp", "defjvp", "defjvps", "def_vmap"} <= {name for _, name in NAMES}


@pytest.mark.parametrize(
    ("decorator", "method", "rules", "options"),
    [
        (jax.custom_vjp, "defvjp", (fwd, bwd), {"symbolic_zeros": True}),
        (jax.custom_vjp, "defvjp", (fwd, bwd), {"optimize_remat": True}),
        (jax.custom_jvp, "defjvp", (fwd,), {"symbolic_zeros": True}),
        (jax.custom_batching.custom_vmap, "def_vmap", (fwd,), {}),
    ],
    ids=["symbolic zeros", "optimize_remat", "custom_jvp", "custom_vmap"],
)
def test_attributes_say_what_those_of_jax_say(decorator, method, rules, options):
    nondiff = {} if method == "def_vmap" else {"nondiff_argnums": (1,)}

    def fun(x, n):
        return x

    pair = [make(fun, **nondiff) for make in (jaxfn.custom_function, decorator)]
    names = {name for d, name in NAMES if d is decorator and name[:3] != "def"}
    names -= {"jvp"}  # the decorator for a rule in torch's terms
    assert len(names) > 1
    for given in (False, True):
        if given:
            for f in pair:
                getattr(f, method)(*rules, **options)
        for name in names:
            ours, theirs = [getattr(f, name) for f in pair]
            assert ours == theirs, name


@pytest.mark.parametrize("name", ["no_such_name", "defnothing", "_private", "shape"])
def test_other_names_are_attribute_errors(name):
    f = jaxfn.custom_function(twice_sine)
    match = f"'custom_function' object has no attribute '{name}'"
    with pytest.raises(AttributeError, match=match) as caught:
        getattr(f, name)
    assert (caught.value.name, caught.value.obj) == (name, f)
    assert not hasattr(f, name)


# ---- the methods of the next JAX


@pytest.mark.usefixtures("next_jax")
def test_a_method_of_the_next_custom_vjp_works():
    f = jaxfn.custom_function(twice_sine)
    assert f.next_attribute is None
    assert f.def_next_custom_vjp(fwd, second=bwd) is fwd
    assert f.next_attribute is bwd
    assert f.fwd is fwd
    np.testing.assert_allclose(jax.grad(f)(1.0), bwd(1.0, 1.0)[0], rtol=1e-6)
    f.defvjp(fwd, lambda x, g: (g,))  # the last one counts
    assert jax.grad(f)(1.0) == 1


@pytest.mark.usefixtures("next_jax")
def test_methods_of_the_next_custom_jvp_and_custom_vmap_work():
    f = jaxfn.custom_function(twice_sine)
    f.def_next_custom_jvp(lambda p, t: (twice_sine(*p), wrong.JVP * t[0]), None)
    f.def_next_custom_vmap(lambda n, b, x: (twice_sine(x) + wrong.BATCH, b[0]), None)
    assert jax.jvp(f, (1.0,), (1.0,))[1] == wrong.JVP
    np.testing.assert_allclose(jax.vmap(f)(X), twice_sine(X) + wrong.BATCH, rtol=1e-6)


@pytest.mark.usefixtures("next_jax")
@pytest.mark.parametrize("new_first", [False, True])
@pytest.mark.parametrize(
    "methods",
    [("def_next_custom_vjp", "defjvps"), ("def_next_custom_jvp", "defvjp")],
    ids=["vjp", "jvp"],
)
def test_it_is_not_combined_with_a_rule_of_the_other_kind(methods, new_first):
    f = jaxfn.custom_function(twice_sine)
    first, second = methods if new_first else methods[::-1]
    getattr(f, first)(fwd, bwd)
    match = f"`twice_sine` got {second} and has {first}: expected, beside a rule of"
    with pytest.raises(RuntimeError, match=match):
        getattr(f, second)(fwd, bwd)
    assert len(f._definition.calls) == 1  # nothing was defined


@pytest.mark.usefixtures("next_jax")
def test_it_takes_declared_static_values_only():
    def scaled(x, how):
        return {"twice": 2}[how] * x

    f = jaxfn.custom_function(scaled, nondiff_argnums=(1,))
    f.def_next_custom_vjp(
        lambda x, how: (scaled(x, how), None), lambda how, _, g: (len(how) * g,)
    )
    assert jax.grad(f)(1.0, "twice") == 5

    f = jaxfn.custom_function(scaled)
    f.def_next_custom_vjp(lambda x, how: (scaled(x, how), None), lambda _, g: (g, None))
    with pytest.raises(TypeError, match="'twice' .* is not a valid JAX type"):
        jax.grad(f)(1.0, "twice")


@pytest.mark.usefixtures("next_jax")
def test_it_is_not_mixed_with_rules_in_torch_terms():
    f = jaxfn.custom_function(twice_sine, backward=lambda ctx, g: g)
    with pytest.raises(RuntimeError, match="`twice_sine` got def_next_custom_vjp in J"):
        f.def_next_custom_vjp(fwd, bwd)
    f = jaxfn.custom_function(twice_sine)
    f.def_next_custom_vjp(fwd, bwd)
    with pytest.raises(RuntimeError, match="and has def_next_custom_vjp in JAX's"):
        f.backward(bwd)


@pytest.mark.usefixtures("next_jax")
def test_explain_tells_of_it():
    f = jaxfn.custom_function(twice_sine)
    f.def_next_custom_vjp(fwd, bwd)
    text = str(jaxfn.explain(f, jnp.float32(1)))
    assert "jax.custom_vjp" in text
    assert "no derivative rule" not in text


# ---- the methods of this JAX

PROGRAMS = {
    "grad": lambda f: jax.grad(f)(1.0),
    "jit": lambda f: jax.jit(jax.grad(f))(1.0),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f))(X),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum())(X),
    "remat": lambda f: jax.grad(jax.checkpoint(f))(1.0),
    "jit of remat": lambda f: jax.jit(jax.grad(jax.checkpoint(f)))(1.0),
    "scan": lambda f: jax.grad(
        lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=2)[0]
    )(1.0),
    "second order": lambda f: jax.grad(jax.grad(f))(1.0),
    "value": lambda f: f(X),
}


@pytest.mark.usefixtures("_remat_rules")
@pytest.mark.parametrize("method", NEW)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_new_method_does_what_it_does_in_jax(method, program):
    run = PROGRAMS[program]
    ours = run(defined(jaxfn.custom_function, method))
    theirs = run(defined(jax.custom_vjp, method))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    if program == "grad":
        np.testing.assert_allclose(ours, bwd(1.0, 1.0)[0], rtol=1e-6)


@pytest.mark.usefixtures("_remat_rules")
@pytest.mark.parametrize("method", [m for m in NEW if m.values[0].endswith("logs")])
def test_logs_come_out(method):
    for f in (defined(d, method) for d in (jaxfn.custom_function, jax.custom_vjp)):
        _, pull = jax.vjp(f, 1.0)
        (x_bar,), logs = pull.with_logs(5.0)
        np.testing.assert_allclose(x_bar, bwd(1.0, 5.0)[0], rtol=1e-6)
        assert logs == {"g": 5.0}


@pytest.mark.usefixtures("_remat_rules")
@pytest.mark.parametrize("method", NEW)
def test_a_new_method_and_a_batch_rule(method):
    def batch(size, in_batched, x):
        return twice_sine(x) + wrong.BATCH, in_batched[0]

    def plain(fun):
        inner = jax.custom_batching.custom_vmap(fun)
        inner.def_vmap(batch)
        return jax.custom_vjp(inner)

    ours, theirs = defined(jaxfn.custom_function, method), defined(plain, method)
    ours.def_vmap(batch)
    np.testing.assert_allclose(jax.vmap(ours)(X), twice_sine(X) + wrong.BATCH)
    for run in (jax.vmap, jax.grad, lambda f: jax.vmap(jax.grad(f))):
        at = 1.0 if run is jax.grad else X
        np.testing.assert_allclose(run(ours)(at), run(theirs)(at), rtol=1e-6)


@pytest.mark.usefixtures("_remat_rules")
@pytest.mark.parametrize("method", NEW)
def test_a_new_method_beside_a_forward_rule_is_refused(method):
    f = defined(jaxfn.custom_function, method)
    with pytest.raises(RuntimeError, match=f"got defjvp and has {method}"):
        f.defjvp(lambda primals, tangents: (primals, tangents))


@pytest.mark.parametrize("method", NEW)
def test_wrong_arguments_are_refused_as_by_jax(method):
    f = jaxfn.custom_function(twice_sine)
    with pytest.raises(TypeError, match=f"{method}.* missing . required positional"):
        getattr(f, method)(fwd)
    with pytest.raises(jaxfn.NoRulesError):  # no rule was defined
        f(0.0)


@pytest.mark.skipif(
    not hasattr(jax.custom_vjp, "defremat"), reason="this JAX has no defremat"
)
def test_defremat_alone_wants_the_flag_that_jax_wants():
    for decorator in (jaxfn.custom_function, jax.custom_vjp):
        f = defined(decorator, "defremat")
        with pytest.raises(NotImplementedError, match="requires the jax_custom_vjp3"):
            jax.grad(f)(1.0)
        f.defvjp(fwd, bwd)
        np.testing.assert_allclose(jax.grad(f)(1.0), bwd(1.0, 1.0)[0], rtol=1e-6)


@pytest.mark.skipif(
    "generic_batching" not in dir(jax.custom_vjp(fwd)),
    reason="this JAX has no generic_batching",
)
def test_an_option_of_defvjp_that_only_jax_knows():
    def shared(x, w):
        return x * w, w

    def shared_bwd(w, cts):
        return cts[0] * w, cts[0] * 0 + cts[1]

    def gradient(decorator, **options):
        f = decorator(shared)
        f.defvjp(lambda x, w: (shared(x, w), w), shared_bwd, **options)

        def loss(w):
            y, same = jax.vmap(f, (0, None), (0, None))(X, w)
            return y.sum() + same

        return jax.grad(loss)(2.0)

    for decorator in (jaxfn.custom_function, jax.custom_vjp):
        assert gradient(decorator, generic_batching=True) == 1

    f = jaxfn.custom_function(twice_sine)
    f.defvjp(fwd, bwd, generic_batching=False)
    f.defjvp(fwd)
    match = r"got defvjp\(generic_batching=True\) and has defvjp, defjvp: expected"
    with pytest.raises(RuntimeError, match=match):
        f.defvjp(fwd, bwd, generic_batching=True)


def test_a_method_of_a_decorated_method():
    class Model:
        @functools.partial(jaxfn.custom_function, nondiff_argnums=(0,))
        def double(self, x):
            return 2 * x

        double.defvjp(lambda self, x: (2 * x, None), lambda self, _, g: (7 * g,))

    assert Model.double.symbolic_zeros is False
    assert jax.grad(Model().double)(1.0) == 7


@pytest.mark.parametrize("decorator", [jaxfn.custom_function, jax.custom_jvp])
def test_a_closed_over_tangent_is_refused_as_by_jax(decorator):
    def f(x):
        def g(y):
            return x + y

        def g_jvp(primals, tangents):
            return g(2 * primals[0]), 2 * tangents[0]

        ruled = decorator(g)
        ruled.defjvp(g_jvp)
        return ruled(1.0)

    with pytest.raises(jax.errors.UnexpectedTracerError, match="unexpected tracer"):
        jax.jvp(f, (3.0,), (1.0,))


@pytest.mark.parametrize("decorator", [jaxfn.custom_function, jax.custom_vjp])
def test_a_cotangent_of_another_shape_is_refused_as_by_jax(decorator):
    def first(x, y):
        return x

    ruled = decorator(first)
    ruled.defvjp(lambda x, y: (x, None), lambda _, g: (g, jnp.zeros(3)))
    with pytest.raises(ValueError, match=r"output\[1\] the bwd rule .*produced"):
        jax.grad(lambda x, y: ruled(x, y).sum(), 1)(jnp.ones(3), jnp.ones(4))


def test_a_jaxpr_and_an_error_have_the_names_of_the_users_rules():
    f = defined(jaxfn.custom_function, "defvjp")
    assert "bwd=bwd" in str(jax.make_jaxpr(f)(1.0))

    def wrong(primals, tangents):
        return 1.0

    f = jaxfn.custom_function(twice_sine)
    f.defjvp(wrong)
    said = "rule wrong for function twice_sine must produce a pair"
    with pytest.raises(TypeError, match=said):
        jax.jvp(f, (1.0,), (1.0,))
