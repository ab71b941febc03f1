"""Programs of users that once failed: ordinary code that is easily broken again."""

import doctest
import functools
import gc
import pickle
import subprocess
import sys
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify, sparse

import jaxfn
from tests.build import function, in_style, saving

X = jnp.float32(3)
WRAPS = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])


def twice(ctx, g):
    return 2 * g * ctx.saved_tensors[0]


def square(backward=twice):
    """A new Function x -> x * x, which saves x."""
    rules = in_style("combined", lambda x: x * x, saving())
    return function(backward=backward, **rules)


# ---- a rule's closure may hold what it doesn't use


def test_a_backward_that_keeps_gradients_to_look_at_them():
    seen = []

    def backward(ctx, g):
        seen.append(g)
        return twice(ctx, g)

    f = square(backward).apply
    for _ in range(2):
        assert jax.jit(jax.grad(f))(X) == 6
        assert jax.grad(f)(X) == 6
        assert jax.hessian(f)(X) == 2
    assert len(seen) > 4


def test_a_kept_tracer_that_a_rule_uses_is_refused():
    seen = [jnp.float32(1)]

    def backward(ctx, g):
        seen.append(seen[-1] * g)
        return seen[-1]

    f = function(forward=lambda ctx, x: x, backward=backward).apply
    jax.jit(jax.grad(f))(X)
    with pytest.raises(Exception, match=r"F.backward.* over"):
        jax.grad(f)(X)


# ---- a second derivative that is not used (model-agnostic meta-learning)

host = jaxfn.host_function(lambda g, x: np.float32(2 * g * x))
TO_INT = jaxfn.autograd.graph.saved_tensors_hooks(
    lambda x: x.astype(int), lambda x: x.astype(jnp.float32)
)
UNUSED = {
    "once": square(jaxfn.once_differentiable(twice)),
    "host": square(lambda ctx, g: host(g, *ctx.saved_tensors)),
}


@WRAPS
@pytest.mark.parametrize("kind", [*UNUSED, "hooks"])
def test_a_step_that_is_not_differentiated(kind, wrap):
    f = UNUSED.get(kind, square()).apply

    def loss(x):
        step = jax.lax.stop_gradient(jax.grad(f)(x))
        return f(x - 0.1 * step)

    with TO_INT if kind == "hooks" else jaxfn.autograd.graph.save_on_cpu():
        expected = 2 * np.floor(2.4) if kind == "hooks" else 4.8
        np.testing.assert_allclose(wrap(jax.grad(loss))(X), expected, rtol=1e-6)
        np.testing.assert_allclose(jax.vmap(jax.grad(loss))(X[None]), [expected])


def test_a_host_jvp_whose_derivative_is_not_used():
    f = function(
        **in_style("combined", lambda x: x * x, saving()),
        jvp=lambda ctx, t: host(t, *ctx.saved_tensors),
    ).apply

    def along(x):
        return jax.jvp(f, (x,), (jnp.ones_like(x),))[1]

    # Without jit, JAX computes unused tangents, too.
    product = jax.jit(lambda x: x * jax.lax.stop_gradient(along(x)))
    assert jax.jvp(product, (X,), (X,)) == (18, 18)


@pytest.mark.parametrize("kind", UNUSED)
def test_where_it_is_used_it_is_refused(kind):
    f = UNUSED[kind].apply
    message = "once_differentiable" if kind == "once" else "host_function"
    with pytest.raises(Exception, match=message):
        jax.grad(jax.grad(f))(X)
    with pytest.raises(Exception, match=message):
        jax.jit(jax.grad(lambda x: f(x - 0.1 * jax.grad(f)(x))))(X)


# ---- rules on a function that has rules


def scaled(f, k):
    return jaxfn.custom_function(
        f,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        backward=lambda ctx, g: k * g,
    )


@WRAPS
def test_the_outer_rules_run(wrap):
    inner = scaled(lambda x: x * x, 5)
    inner(X)
    assert jax.grad(wrap(scaled(inner, 7)))(X) == 7
    assert jax.grad(wrap(inner))(X) == 5
    around = scaled(functools.wraps(inner)(lambda x: 3 * inner(x)), 7)
    assert wrap(around)(X) == 27
    assert jax.grad(wrap(around))(X) == 7


def test_a_rule_for_a_function_of_jax_that_has_one():
    f = jaxfn.custom_function(jax.nn.relu)

    @f.jvp
    def jvp(ctx, t):
        return 9 * t

    assert jax.jvp(f, (X,), (X,)) == (3, 27)


def test_a_class_made_of_the_parts_of_another():
    cls = square()
    cls.apply(X)
    parts = {**cls.__dict__, "backward": staticmethod(lambda ctx, g: 11 * g)}
    other = type("Other", cls.__bases__, parts)
    assert jax.grad(other.apply)(X) == 11
    assert jax.grad(cls.apply)(X) == 6


def test_explain_does_not_take_a_derivative_for_the_function():
    cls = square()
    with pytest.raises(TypeError, match="Pass the Function first"):
        jaxfn.explain(jax.grad(cls.apply), X)


# ---- what is added for batches shows nowhere


def ignoring(ctx, x, y):
    return 2 * x


def of_first(ctx, g):
    return 2 * g, None


IGNORES = function(forward=ignoring, backward=of_first).apply


def test_a_nan_is_reported_of_the_operation_of_the_user():
    def forward(ctx, x, y):
        return jnp.log(x)

    f = function(forward=forward, backward=of_first).apply
    checked = checkify.checkify(
        jax.jit(lambda x: f(x, jnp.ones(2))), errors=checkify.float_checks
    )
    assert "nan generated by primitive: log" in checked(-1.0)[0].get()


def with_both_rules():
    f = jaxfn.custom_function(lambda x: 2 * x)
    f.defvjp(lambda x: (2 * x, None), lambda _, g: (g,))
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    return f


def with_a_batch_rule():
    f = jaxfn.custom_function(lambda x: 2 * x)
    f.def_vmap(lambda n, batched, x: (2 * x, True))
    return f


WEAK = {
    "class": lambda: lambda w: IGNORES(w, jnp.ones(3)),
    "both": with_both_rules,
    "batch rule": with_a_batch_rule,
}


@pytest.mark.parametrize("kind", WEAK)
def test_a_weak_type_stays_weak(kind):
    f, w = WEAK[kind](), jnp.add(1.0, 2.0)

    def g(w):
        return f(w) * jnp.ones(2, jnp.bfloat16)

    for wrap in (lambda f: f, jax.jit, lambda f: lambda w: jax.vmap(f)(w[None])):
        assert wrap(g)(w).dtype == jnp.bfloat16
    scanned = jax.lax.scan(lambda c, _: (c, g(w)), 0, None, length=2)[1]
    assert scanned.dtype == jnp.bfloat16


def test_an_argument_in_the_memory_of_the_host():
    x = jax.device_put(jnp.ones(2), jax.memory.Space.Host)
    y = jnp.ones(2)
    assert jax.jit(lambda y: IGNORES(y, x))(y).tolist() == [2, 2]
    assert jax.jit(jax.grad(lambda y: IGNORES(y, x).sum()))(y).tolist() == [2, 2]


# ---- tools


def test_doctest_finds_no_examples_of_jaxfn_in_a_module_of_the_user():
    module = types.ModuleType("module")
    cls = square()
    cls.__module__, module.F = "module", cls
    cls.apply(X)
    finder = doctest.DocTestFinder(exclude_empty=False)
    found = [test.name for test in finder.find(module)]
    assert "module.F" in found
    assert not [name for name in found if "apply" in name.split(".")[2:]]


SENDER = """
import sys

import cloudpickle
import jaxfn


@jaxfn.custom_function
def square(x):
    return x * x


square.defvjp(lambda x: (x * x, x), lambda x, g: (5 * g * x,))
sys.stdout.buffer.write(cloudpickle.dumps(square))
"""


def test_a_decorated_function_of_a_notebook_can_be_sent_to_another_process():
    run = subprocess.run([sys.executable, "-c", SENDER], capture_output=True)
    assert run.returncode == 0, run.stderr
    assert jax.grad(pickle.loads(run.stdout))(X) == 15


def test_the_jaxpr_of_a_decorated_jvp_is_linear_in_its_outputs():
    def size(n):
        f = jaxfn.custom_function(lambda xs: [2 * x for x in xs])
        f.defjvp(lambda p, t: (f(*p), [3 * x for x in t[0]]))
        xs = [X] * n
        jaxpr = jax.make_jaxpr(lambda xs: jax.jvp(f, (xs,), (xs,)))(xs)
        return len(jaxpr.jaxpr.eqns), len(str(jaxpr))

    (few, short), (many, long) = size(20), size(80)
    assert many <= 5 * few
    assert long <= 6 * short


@pytest.mark.parametrize(
    "run", [lambda f: jax.grad(f)(X), lambda f: jax.jit(jax.grad(f))(X)]
)
def test_a_class_made_in_a_loop_is_freed(run):
    cls = square()
    run(cls.apply)
    alive = weakref.ref(cls)
    del cls
    gc.collect()
    jax.clear_caches()
    gc.collect()
    assert alive() is None


@WRAPS
def test_a_ufunc_of_numpy_is_forward(wrap):
    f = function(
        forward=jaxfn.host_function(np.square), setup_context=saving(), backward=twice
    ).apply
    assert wrap(f)(X) == 9
    assert wrap(jax.grad(f))(X) == 6


@jax.tree_util.register_pytree_node_class
class Switch:
    """A node that keeps what is no array beside its leaves."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def tree_flatten(self):
        if isinstance(self.y, jax.Array):
            return (self.x, self.y), None
        return (self.x,), self.y

    @classmethod
    def tree_unflatten(cls, y, leaves):
        return cls(*leaves) if y is None else cls(*leaves, y)


@WRAPS
def test_a_node_that_looks_at_its_leaves(wrap):
    cls = function(
        forward=lambda ctx, node: node.x * 2,
        backward=lambda ctx, g: Switch(3 * g, jnp.zeros_like(g)),
    )
    node = Switch(X, jnp.float32(1))
    assert wrap(jax.grad(cls.apply))(node).x == 3
    assert "n" in str(jaxfn.explain(cls, node))


def test_check_of_a_sparse_matrix():
    def backward(ctx, g):
        matrix, x = ctx.saved_tensors
        (_, *rest), tree = jax.tree.flatten(matrix)
        entries = g[matrix.indices[:, 0]] * x[matrix.indices[:, 1]]
        return jax.tree.unflatten(tree, [entries, *rest]), matrix.T @ g

    rules = in_style("combined", lambda matrix, x: matrix @ x, saving())
    product = function(backward=backward, **rules)
    matrix = sparse.BCOO.fromdense(jnp.float32([[1, 0, 2], [0, 3, 0], [4, 0, 0]]))
    report = jaxfn.check(product, matrix, jnp.arange(3.0))
    assert report.ok
    assert {r.check: r.status for r in report.results}["vmap"] == "ok"


def test_check_of_a_key_whose_draws_differ_under_vmap():
    def forward(ctx, x, key):
        mask = jax.random.bernoulli(key, 0.5, x.shape)
        ctx.save_for_backward(mask)
        return x * mask

    dropout = function(
        forward=forward, backward=lambda ctx, g: (g * ctx.saved_tensors[0], None)
    )
    for impl, status in (("rbg", "skipped"), ("threefry2x32", "ok")):
        report = jaxfn.check(dropout, jnp.ones(3), jax.random.key(0, impl=impl))
        assert report.ok
        assert {r.check: r.status for r in report.results}["vmap"] == status


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.grad])
def test_a_constant_argument_may_be_marked_dirty(wrap):
    def forward(ctx, a, b):
        ctx.mark_dirty(a)
        return a * b

    f = function(forward=forward, backward=lambda ctx, g: (None, None)).apply
    ones, five = jnp.ones(()), jnp.float32(5)
    assert wrap(lambda x: f(ones, five) * x)(X) in (5, 15)
