"""What ctx tells the rules, and carries to them, in every engine and everywhere."""

import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxfn
from tests import wrong
from tests.build import function, in_style, rules_of

XS, YS = jnp.float32([0.5, 2, 3]), jnp.float32([7, 1.5, 4])
KS = jnp.int32([1, 2, 3])
BACKWARD, JVP = 2, 3  # each rule is wrong by a factor of its own

engines = pytest.mark.parametrize("engine", wrong.ENGINES)
styles = pytest.mark.parametrize("style", wrong.STYLES)

# Each gives, of a function of three numbers, its sum over XS, YS, KS.
PLACES = {
    "eager": lambda f: lambda x, y: sum(map(f, x, y, KS)),
    "jit": lambda f: jax.jit(PLACES["eager"](f)),
    "vmap": lambda f: lambda x, y: jax.vmap(f)(x, y, KS).sum(),
    "checkpoint": lambda f: PLACES["eager"](jax.checkpoint(f)),
    "scan": lambda f: (
        lambda x, y: lax.scan(
            lambda c, xs: (c + f(*xs), None), jnp.float32(0), (x, y, KS)
        )[0]
    ),
}
places = pytest.mark.parametrize("place", PLACES)


def product(engine, style, *, materialize, seen, transposed=False):
    """x * y, with a marked, an unused, an integer and a static output beside it.

    Wherever a gradient or tangent is not what it should be, the rules raise or their
    result is off by thousands. A jvp that is backward `transposed` gives the tangents
    of all outputs, so backward is asked about the unused one too.
    """

    def value(x, y, k, label):
        return x * y, 7 * x, x - y, k + 1, label

    def save(ctx, inputs, output):
        ctx.set_materialize_grads(materialize)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])

    def backward(ctx, g, g_marked, g_unused, g_int, g_label):
        seen.append(ctx.needs_input_grad)
        assert g_label is None
        assert transposed or materialize == (g_unused is not None)
        if materialize:
            assert g_int.dtype == jnp.int32
            g = g + 1000 * (g_marked + g_unused + g_int)
        else:
            assert g_marked is None
            assert g_int is None
        x, y = ctx.saved_tensors
        need_x, need_y, need_k, need_label = ctx.needs_input_grad
        assert not need_k
        assert not need_label
        return (
            BACKWARD * g * y if need_x else None,
            BACKWARD * g * x if need_y else None,
            None,
            None,
        )

    def jvp(ctx, tx, ty, tk, t_label):
        seen.append(ctx.needs_input_grad)
        assert tk is None
        assert t_label is None
        x, y = ctx.saved_tensors
        if not materialize:
            assert ctx.needs_input_grad == (
                tx is not None,
                ty is not None,
                False,
                False,
            )
            tx, ty = 0 * x if tx is None else tx, 0 * y if ty is None else ty
        return JVP * (tx * y + ty * x), None, tx - ty, None, None

    members = in_style(style, value, save)
    f = function(**members, **rules_of(engine, backward, jvp)).apply

    def call(x, y, k):
        out, marked, _, integer, label = f(x, y, k, "label")
        assert label == "label"
        return out + 100 * marked + 100 * integer

    return call


def is_normal(style, place, materialize=True, **_):
    """Is a cell in a normal run?

    That has one style eagerly, the other elsewhere: they differ in how forward is
    called. It has the flag in two places, since it is the rules that read it.
    """
    in_turn = (style == "combined") == (place != "eager")
    return in_turn and (materialize or place in ("eager", "scan"))


in_one_style = pytest.mark.full(unless=is_normal)


@in_one_style
@places
@engines
@styles
@pytest.mark.parametrize("materialize", [True, False])
def test_flags_marks_and_integers_in_reverse_mode(place, engine, style, materialize):
    factor = JVP if engine == "jvp" else BACKWARD
    by_x, by_y = factor * np.asarray(YS), factor * np.asarray(XS)
    for argnums, needs, expected in [
        (0, (True, False), by_x),
        (1, (False, True), by_y),
        ((0, 1), (True, True), (by_x, by_y)),
    ]:
        seen = []
        f = PLACES[place](product(engine, style, materialize=materialize, seen=seen))
        got = jax.grad(f, argnums)(XS, YS)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), got, expected)
        assert set(seen) == {(*needs, False, False)}


@places
@pytest.mark.parametrize("engine", [e for e in wrong.ENGINES if e != "backward"])
@styles
@pytest.mark.parametrize("materialize", [True, False])
def test_flags_marks_and_integers_in_forward_mode(place, engine, style, materialize):
    factor = BACKWARD if engine == "derived" else JVP
    seen = []
    transposed = engine == "derived"
    f = PLACES[place](
        product(
            engine, style, materialize=materialize, seen=seen, transposed=transposed
        )
    )
    _, dot = jax.jvp(lambda x: f(x, YS), (XS,), (jnp.ones(3),))
    np.testing.assert_allclose(dot, factor * YS.sum(), rtol=1e-6)
    assert set(seen) == {(True, False, False, False)}


@places
@engines
def test_none_from_backward_is_zero_and_from_jvp_an_error(place, engine):
    f = function(
        forward=lambda ctx, x, y, k: x * y,
        **rules_of(
            engine,
            backward=lambda ctx, g: (None, BACKWARD * g, None),
            jvp=lambda ctx, tx, ty, tk: None,
        ),
    ).apply
    place = PLACES[place](f)
    if engine in ("jvp", "both"):  # a missing tangent is no zero: it raises
        with pytest.raises(jaxfn.RuleError, match="jvp` returned None: expected"):
            jax.jvp(place, (XS, YS), (XS, YS))
    if engine == "jvp":
        return
    gx, gy = jax.grad(place, (0, 1))(XS, YS)
    np.testing.assert_array_equal(gx, np.zeros(3))
    np.testing.assert_array_equal(gy, np.full(3, BACKWARD))
    if engine == "derived":
        one = jnp.ones(3)
        _, dot = jax.jvp(place, (XS, YS), (one, one))
        assert float(dot) == 3 * BACKWARD


# ---- ctx carries anything


class Unhashable:
    """Can't be hashed, and refuses to be compared."""

    __hash__ = None

    def __init__(self, k):
        self.k = k

    def __eq__(self, other):
        raise AssertionError("compared")


class Module:
    """Has parameters of its own, and layers."""

    def __init__(self, k):
        self.layers = [np.float32(k)]

    def __call__(self, x):
        return self.layers[0] * x


def _uniform(key):
    return jax.random.uniform(key) + 1


# What is put on ctx, and the factor that backward makes of it. Some of it is another
# object at every trace.
CARGO = {
    "arrays in a dict": (lambda x, k: {"a": x, 3: [k * x]}, lambda v: v["a"] * v[3][0]),
    "arrays in a list": (lambda x, k: [x, None, (k, "s")], lambda v: v[0] * v[2][0]),
    "closure": (lambda x, k: lambda g: k * g, lambda v: v(2)),
    "partial": (lambda x, k: jax.tree_util.Partial(jnp.multiply, x), lambda v: v(5)),
    "unhashable": (lambda x, k: Unhashable(k), lambda v: v.k),
    "namespace": (lambda x, k: types.SimpleNamespace(x=x, k=k), lambda v: v.x * v.k),
    "Python module": (lambda x, k: [math, k], lambda v: v[0].sqrt(v[1])),
    "module": (lambda x, k: Module(k), lambda v: v(2)),
    "PRNG key": (lambda x, k: jax.random.key(k), _uniform),
    "set of strings": (lambda x, k: {"a", str(k)}, lambda v: len(v) + 1),
}


@pytest.mark.full(unless=lambda engine, **_: engine in ("backward", "both"))
@pytest.mark.parametrize("kind", CARGO)
@engines
def test_ctx_carries_anything_twice_through_one_scan(kind, engine):
    put, use = CARGO[kind]

    def forward(ctx, x, k):
        ctx.cargo = put(x, k)
        return 1 * x

    f = function(
        forward=forward,
        **rules_of(
            engine,
            backward=lambda ctx, g: (g * use(ctx.cargo), None),
            jvp=lambda ctx, t, _: t * use(ctx.cargo),
        ),
    ).apply

    def loop(x):
        return lax.scan(lambda c, _: (f(f(c, 2), 3), None), x, None, length=2)[0]

    x = jnp.float32(1.5)
    # The value never changes: each use has the same factor each time.
    expected = (use(put(x, 2)) * use(put(x, 3))) ** 2
    np.testing.assert_allclose(jax.jit(jax.grad(loop))(x), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(jax.checkpoint(loop))(x), expected, rtol=1e-6)
    batched = jax.jit(jax.vmap(jax.grad(loop)))(x[None])[0]
    np.testing.assert_allclose(batched, expected, rtol=1e-6)


# ---- what JAX can't differentiate


@pytest.mark.full(unless=lambda engine, **_: engine in ("backward", "both"))
@in_one_style
@places
@engines
@pytest.mark.parametrize("style", ["combined", "separate"])
def test_a_host_callback_in_forward_has_second_derivatives(place, engine, style):
    """As only inputs and outputs are saved: through the callback there are none."""

    def host(x, y, k):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        body = lambda x, y: np.exp(x) * y  # noqa: E731
        return jax.pure_callback(body, shape, x, y, vmap_method="expand_dims")

    def save(ctx, inputs, out):
        ctx.save_for_backward(*inputs[:2], out)
        ctx.save_for_forward(*inputs[:2], out)

    def backward(ctx, g):
        _, y, out = ctx.saved_tensors
        return g * out, g * out / y, None

    def jvp(ctx, tx, ty, _):
        _, y, out = ctx.saved_tensors
        return tx * out + ty * out / y

    members = in_style(style, host, save)
    f = function(**members, **rules_of(engine, backward, jvp)).apply

    def hessian(g):
        first = jax.grad(PLACES[place](g), (0, 1))
        return jax.jacrev(lambda x, y: jax.tree.map(jnp.sum, first(x, y)), (0, 1))

    got = hessian(f)(XS, YS)
    expected = hessian(lambda x, y, k: jnp.exp(x) * y)(XS, YS)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        got,
        expected,
    )
