"""Functions with a batch rule; alone, their derivative is that of the function."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxfn
from jaxfn._core.messages import ClosedOverError
from tests.build import SCALE, function, saving, scale

X = jnp.ones(8)


def squares(kind, factor=lambda: SCALE[-1]):
    """x -> x * x, with a batch rule that multiplies by a factor; and its runs."""
    f = jaxfn.custom_function(lambda x: x * x)
    runs = []

    def rule(x):
        runs.append(1)
        return x * x * factor()

    if kind == "def_vmap":
        f.def_vmap(lambda size, batched, x: (rule(x), True))
    else:
        f.vmap(lambda info, in_dims, x: (rule(x), 0))
    return f, runs


kinds = pytest.mark.parametrize("kind", ["def_vmap", "vmap"])
wraps = pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit], ids=["eager", "compiled"]
)


def pulled(f):
    def run(x):
        y, pull = jax.vjp(f, x)
        return y, pull(X)[0]

    return run


def linear(f):
    def run(x):
        y, push = jax.linearize(f, x)
        return y, push(X)

    return run


def each(derivative):
    """The derivative of an example, in a vmap."""
    return lambda f: jax.vmap(derivative(f))


def of_example(f):
    return lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))


PROGRAMS = {
    "vjp": lambda f: pulled(jax.vmap(f)),
    "vjp of jit": lambda f: pulled(jax.vmap(jax.jit(f))),
    "linearize": lambda f: linear(jax.vmap(f)),
    "jvp": lambda f: of_example(jax.vmap(f)),
    "jvp of jit": lambda f: of_example(jax.vmap(jax.jit(f))),
    "vmap of jvp": each(of_example),
    "vmap of jit of jvp": each(lambda f: jax.jit(of_example(f))),
    "vmap of grad": each(jax.value_and_grad),
    "vmap of jit of grad": each(lambda f: jax.jit(jax.value_and_grad(f))),
    "vmap of scan": lambda f: pulled(
        jax.vmap(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0])
    ),
    "vmap of checkpoint": lambda f: of_example(jax.vmap(jax.checkpoint(f))),
}


@kinds
@wraps
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_value_is_that_of_the_rule_and_a_derivative_that_of_the_function(
    program, wrap, kind
):
    f, runs = squares(kind, lambda: 7)
    value, derivative = wrap(PROGRAMS[program](f))(X)
    assert value.tolist() == [7] * 8
    assert derivative.tolist() == [2] * 8
    assert runs


@kinds
@wraps
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_value_and_its_derivative_are_of_one_run_of_the_function(
    program, wrap, kind
):
    rng, runs = np.random.default_rng(0), []

    def fun(x):
        runs.append(1)
        return x * x * jnp.float32(rng.random())

    f = jaxfn.custom_function(fun)
    if kind == "def_vmap":
        f.def_vmap(lambda size, batched, x: (0 * x, True))
    else:
        f.vmap(lambda info, in_dims, x: (0 * x, 0))
    if program.startswith("vmap of"):
        # The rule gave the value; what the function drew is in the derivative.
        _, derivative = wrap(PROGRAMS[program](f))(X)
        assert len(set(derivative.tolist())) == 1
    value, pull = wrap(lambda x: (f(x), jax.grad(f)(x)))(2.0)
    assert value > 0
    assert pull > 0
    runs.clear()
    value, pull = wrap(jax.value_and_grad(f))(jnp.float32(2))
    np.testing.assert_allclose(pull, value, rtol=1e-6)
    assert len(runs) == 1


@kinds
@wraps
def test_a_rule_belongs_to_the_contexts_of_the_call(wrap, kind):
    f, _ = squares(kind)
    with scale(3.0):
        value, pull = jax.vjp(wrap(jax.vmap(f)), X)
    assert value.tolist() == [3] * 8
    assert pull(X)[0].tolist() == [2] * 8


def test_a_rule_with_an_effect_has_it_once():
    seen = []
    f = jaxfn.custom_function(lambda x: x * x)

    @f.def_vmap
    def _(size, batched, x):
        jax.debug.callback(lambda: seen.append(1))
        return x * x, True

    for wrap in (lambda f: f, jax.jit):
        seen.clear()
        jax.block_until_ready(wrap(pulled(jax.vmap(f)))(X))
        jax.effects_barrier()
        assert seen == [1]


MISTAKES = {
    "structure": (lambda x: ([x], [True]), r"structure PyTreeDef\(\*\), got \[f32\["),
    "a tuple": (lambda x: ((x,), True), r"structure PyTreeDef\(\*\), got \(f32\[8,3"),
    "flags": (lambda x: (x, (True,)), r"True or False for each.*\(\*\), got \(True,"),
    "no flags": (lambda x: x, r"a pair.* got f32\[8,3\]\."),
    # The vmap of a class returns an axis; def_vmap returns whether there is one.
    "axis 0": (lambda x: (x, 0), r"along axis 0: expected True or False, got 0\."),
    "axis 1": (lambda x: (x, 1), r"along axis 0: expected True or False, got 1\."),
    "no axis": (lambda x: (x, None), r"True or False for each.*got None\."),
    "axis behind": (
        lambda x: (x.T, True),
        r"output 0 expected f32\[8,3\] \(batch axis in front\), got f32\[3,8\]",
    ),
    "not batched": (
        lambda x: (x, False),
        r"output 0 expected f32\[3\] \(not batched: .*got f32\[8,3\].*Return True",
    ),
    "one example": (lambda x: (x[0], True), r"expected f32\[8,3\] .*got f32\[3\]"),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("derivative", [False, True], ids=["alone", "defvjp"])
@wraps
def test_a_rule_that_returns_something_else_is_told(mistake, derivative, wrap):
    result, message = MISTAKES[mistake]

    @jaxfn.custom_function
    def square(x):
        return x * x

    def rule(size, batched, x):
        return result(x)

    square.def_vmap(rule)
    if derivative:
        square.defvjp(lambda x: (square(x), x), lambda x, g: (2 * g * x,))
    with pytest.raises(jaxfn.RuleError, match=message) as error:
        wrap(jax.vmap(square))(jnp.ones((8, 3)))
    assert "custom vmap rule (rule) for function square" in str(error.value)
    line = rule.__code__.co_firstlineno
    assert f"(`square.def_vmap` is at {__file__}:{line}.)" in str(error.value)
    assert isinstance(error.value, (TypeError, ValueError))


def test_the_wrong_one_of_several_outputs_is_named():
    f = jaxfn.custom_function(lambda x, n: {"a": x, "b": (x.sum(), n)})
    f.def_vmap(
        lambda size, b, x, n: (
            {"a": x, "b": (x.sum(), n)},
            {"a": True, "b": (True, False)},
        )
    )
    with pytest.raises(ValueError, match=r"output 1 expected f32\[8\].*got f32\[\]"):
        jax.vmap(f, (0, None))(jnp.ones((8, 3)), 2)


def test_an_unbatched_output_of_a_batch_rule():
    f = jaxfn.custom_function(lambda x, n: (x, 2 * n))
    f.def_vmap(lambda size, batched, x, n: ((7 * x, 3 * n), (True, False)))
    x, n = jax.vmap(f, (0, None))(jnp.ones((8, 3)), jnp.ones(2))
    assert (x[0].tolist(), n.tolist()) == ([7] * 3, [[3, 3]] * 8)
    x, n = jax.vmap(jax.vmap(f, (1, None)), (0, None))(jnp.ones((5, 3, 8)), 1.0)
    assert (x.shape, x[0, 0, 0], n[0, 0]) == ((5, 8, 3), 7, 3)


def closing(rules, w):
    """x -> x * w, with these rules, which say nothing of w."""
    f = jaxfn.custom_function(lambda x: x * w)
    if rules == "vmap":
        f.vmap(lambda info, in_dims, x: (3 * x, 0))
    else:
        f.def_vmap(lambda n, batched, x: (3 * x, batched[0]))
    if rules == "def_vmap and defvjp":
        f.defvjp(lambda x: (x, None), lambda _, g: (g,))
    return f


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("rules", "inside"),
    [
        *itertools.product(
            ["def_vmap", "vmap", "def_vmap and defvjp"], [lambda f: f, jax.jit]
        ),
        # But with defvjp its rules alone make the gradient.
        *itertools.product(["def_vmap", "vmap"], [jax.grad]),
    ],
)
def test_a_batched_value_that_is_closed_over_is_refused(rules, inside):
    for wrap in (lambda f: f, jax.jit):
        for x, axis in ((X, 0), (1.0, None)):
            mapped = jax.vmap(lambda x, w: inside(closing(rules, w))(x), (axis, 0))
            with pytest.raises(
                ClosedOverError, match="closes over a traced value that JAX batches"
            ):
                wrap(mapped)(x, X)


@kinds
def test_so_is_one_that_is_differentiated(kind):
    with pytest.raises(ClosedOverError, match="used a traced value that was not"):
        jax.jvp(lambda w: jax.jit(closing(kind, w))(1.0), (1.0,), (1.0,))


@pytest.mark.parametrize("rules", ["def_vmap", "def_vmap and defvjp", "in a dict"])
def test_a_function_with_a_batch_rule_is_given_arrays(rules):
    key = "x" if rules == "in a dict" else 0

    def held(x):
        return {"x": x} if rules == "in a dict" else [x]

    f = jaxfn.custom_function(lambda xs: xs[key].at[...].set(1).astype(jnp.float16))
    f.def_vmap(lambda size, batched, xs: (xs[key].astype(jnp.float16), True))
    if rules == "def_vmap and defvjp":
        f.defvjp(lambda xs: (f(xs), None), lambda _, g: (held(g),))
    for x in (2.0, 2, np.float32(2), np.zeros(2, np.float32), np.zeros(2)):
        got = f(held(x))
        assert got.dtype == jnp.float16
        np.testing.assert_array_equal(got, np.ones(np.shape(x)))


CONSTANTS = {
    "made inside": lambda x, _: x * jnp.array([1.0, 2.0]),
    "NumPy": lambda x, _: x * np.array([1.0, 2.0], np.float32),
    "closed over": lambda x, w: x * w,
    "two": lambda x, w: jnp.sin(x * w)[..., np.array([1, 0])] * jnp.array([1.0, 2.0]),
}
AROUND = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, 2)[0],
    "cond": lambda f: lambda x: lax.cond(x[0] > 0, f, jnp.sin, x),
}


@pytest.mark.parametrize("kind", CONSTANTS)
@pytest.mark.parametrize("place", AROUND)
@pytest.mark.parametrize("traced", [False, True], ids=["known", "traced"])
def test_reverse_mode_of_a_function_with_a_batch_rule_that_uses_a_constant(
    kind, place, traced
):
    def derivatives(wrap, x, w):
        f = AROUND[place](wrap(lambda x: CONSTANTS[kind](x, w)))
        gradient = jax.grad(lambda x: (f(x) ** 2).sum())
        return (
            gradient(x),
            jax.grad(lambda x: gradient(x).sum())(x),
            jax.jvp(f, (x,), (x,))[1],
        )

    def with_rule(body):
        f = jaxfn.custom_function(body)
        f.def_vmap(lambda n, batched, x: (3 * body(x), batched[0]))
        return f

    x, w = jnp.array([0.5, 2.0]), jnp.array([2.0, 3.0])
    wrap = jax.jit if traced else lambda f: f
    found = wrap(lambda x, w: derivatives(with_rule, x, w))(x, w)
    expected = derivatives(lambda body: body, x, w)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("place", ["jit", "checkpoint", "scan"])
def test_a_batched_gradient_of_one_is_that_of_the_function(place):
    @jaxfn.custom_function
    def f(x):
        return x * jnp.array([1.0, 2.0])

    f.def_vmap(lambda n, batched, x: (3 * x * jnp.array([1.0, 2.0]), batched[0]))
    g = AROUND[place](f)
    gradients = jax.jit(jax.vmap(jax.grad(lambda x: g(x).sum())))(jnp.ones((2, 2)))
    one = np.array([1.0, 2.0]) ** (2 if place == "scan" else 1)
    assert gradients.tolist() == [one.tolist()] * 2


def scaled(x):
    return jnp.sin(x) * jnp.array([1.0, 2.0])


def scaled_by_the_rule(x):
    return jnp.sin(x) * jnp.array([3.0, 6.0])


def decorated(*kinds):
    f = jaxfn.custom_function(scaled)
    f.def_vmap(lambda n, batched, x: (scaled_by_the_rule(x), batched[0]))
    if "vjp" in kinds:
        f.defvjp(lambda x: (f(x), x), lambda x, g: (5 * g * jnp.cos(x),))
    if "jvp" in kinds:
        f.defjvp(lambda p, t: (f(*p), 5 * t[0] * jnp.cos(*p)))
    return f


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_constant_may_stand_in_a_branch_of_which_examples_take_both(wrap):
    f = decorated()

    def either(x):
        return lax.cond(x[0] > 0, f, jnp.cos, x)

    x = jnp.array([[0.5, 1.0], [-0.5, 1.0]])
    sums = lambda x: either(x).sum()  # noqa: E731
    three, table = np.array([3.0, 6.0]), np.array([1.0, 2.0])
    for map_, expected in (
        (either, np.stack([np.sin(x[0]) * three, np.cos(x[1])])),
        (jax.grad(sums), np.stack([np.cos(x[0]) * table, -np.sin(x[1])])),
        (
            lambda x: jax.jvp(either, (x,), (x,))[1],
            np.stack([np.cos(x[0]) * table, -np.sin(x[1])]) * x,
        ),
        (
            jax.grad(lambda x: jax.grad(sums)(x).sum()),
            np.stack([-np.sin(x[0]) * table, -np.cos(x[1])]),
        ),
    ):
        found = wrap(jax.vmap(map_))(x)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def a_class(**more):
    return function(
        forward=scaled,
        setup_context=saving(),
        backward=lambda ctx, g: 5 * g * jnp.cos(ctx.saved_tensors[0]),
        vmap=lambda info, in_dims, x: (scaled_by_the_rule(x), 0),
        **more,
    ).apply


WITH_DERIVATIVES = {
    "vjp": lambda: decorated("vjp"),
    "jvp": lambda: decorated("jvp"),
    "both": lambda: decorated("vjp", "jvp"),
    "class": a_class,
    "class, derived": lambda: a_class(generate_jvp_rule=True),
}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("make", WITH_DERIVATIVES.values(), ids=WITH_DERIVATIVES)
def test_so_may_one_beside_derivative_rules(make, wrap):
    f = make()

    def either(x):
        return lax.cond(x[0] > 0, f, jnp.cos, x)

    x = jnp.array([[0.5, 1.0], [-0.5, 1.0]])
    values = np.stack([np.sin(x[0]) * [3, 6], np.cos(x[1])])
    np.testing.assert_allclose(wrap(jax.vmap(either))(x), values, rtol=1e-5)
    gradients = wrap(jax.vmap(jax.grad(lambda x: either(x).sum())))(x)
    expected = np.stack([5 * np.cos(x[0]), -np.sin(x[1])])
    np.testing.assert_allclose(gradients, expected, rtol=1e-5)


def tripled(w):
    f = jaxfn.custom_function(lambda x: jnp.sin(x) * w)
    f.def_vmap(lambda n, batched, x: (3 * jnp.sin(x) * w, batched[0]))
    return f


def tripled_class(w):
    return function(
        forward=lambda x: jnp.sin(x) * w,
        setup_context=saving(),
        backward=lambda ctx, g: 5 * g * jnp.cos(ctx.saved_tensors[0]),
        vmap=lambda info, in_dims, x: (3 * jnp.sin(x) * w, 0),
    ).apply


@pytest.mark.parametrize("make", [tripled, tripled_class])
def test_so_may_one_that_is_made_in_the_body_of_a_jit(make):
    table, x = np.array([1.0, 2.0]), jnp.array([[0.5, 1.0], [-0.5, 1.0]])

    @jax.jit
    def either(x):
        f = make(jnp.asarray(table))  # a tracer, which stands for the table
        return jax.vmap(lambda x: lax.cond(x[0] > 0, f, jnp.cos, x))(x)

    values = np.stack([3 * np.sin(x[0]) * table, np.cos(x[1])])
    np.testing.assert_allclose(either(x), values, rtol=1e-5)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_so_may_one_with_arguments_that_all_examples_share(wrap):
    @jaxfn.custom_function
    def f(x):
        return jnp.sin(x) * jnp.array([1.0, 2.0])

    def rule(n, batched, x):
        raise AssertionError("nothing is batched")

    f.def_vmap(rule)

    def either(x):
        # Made inside of the branch, as an argument that JAX sees.
        return lax.cond(x[0] > 0, lambda _: f(jnp.arange(2.0)), jnp.cos, x)

    x = jnp.array([[0.5, 1.0], [-0.5, 1.0]])
    expected = [[0, 2 * np.sin(1)], np.cos(x[1])]
    np.testing.assert_allclose(wrap(jax.vmap(either))(x), expected, rtol=1e-6)


def test_a_batch_rule_may_not_close_over_what_is_differentiated():
    def h(x):
        w = 3 * x
        f = jaxfn.custom_function(lambda a: a * w)
        f.def_vmap(lambda n, batched, a: (a * w, batched[0]))
        along = lambda a: jax.jvp(f, (a,), (x,))[1]  # noqa: E731
        return jax.vmap(along)(jnp.array([1.0, 2.0])).sum()

    with pytest.raises(ClosedOverError, match="`<lambda>` used a traced value"):
        jax.grad(h)(jnp.float32(0.5))


def test_a_bwd_that_is_marked_once_differentiable():
    sine = jaxfn.custom_function(jnp.sin)
    bwd = jaxfn.once_differentiable(lambda x, g: (3 * g * jnp.cos(x),))
    sine.defvjp(lambda x: (jnp.sin(x), x), bwd)
    assert jax.grad(sine)(0.0) == 3
    with pytest.raises(RuntimeError, match="once_differentiable"):
        jax.grad(jax.grad(sine))(0.0)
