"""The transposable linear primitive, by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning

import jaxfn
from jaxfn._engine.linear import linear
from tests import wrong
from tests.build import function
from tests.jaxprs import primitives

R = jnp.float32([1, 2, 3])
T = jnp.float32([4, 5, 6])


def scaled(r, t, factor=10.0):
    """The map t -> r t, whose transpose is off by a factor that tells which ran."""

    def push(res, ts):
        return [res[0] * ts[0]]

    def pull(res, cts):
        return [None if cts[0] is None else factor * res[0] * cts[0]]

    (out,) = linear(push, pull, [r], [t], [jax.typeof(t)], name="scaled")
    return out


# ---- what walks jaxprs sees what is inside


def of_class(rule):
    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    return function(
        forward=lambda x: x**2,
        setup_context=save,
        backward=lambda ctx, g: 2 * g * ctx.saved_tensors[0],
        jvp=lambda ctx, t: rule(2 * t * ctx.saved_tensors[0]),
    ).apply


def decorated(rule):
    f = jaxfn.custom_function(lambda x: x**2)
    f.defvjp(lambda x: (f(x), x), lambda x, g: (2 * g * x,))
    f.defjvp(lambda p, t: (f(*p), rule(2 * t[0] * p[0])))
    return f


def inspected(seen):
    def rule(t):
        jax.debug.inspect_array_sharding(t, callback=seen.append)
        return t

    return rule


@custom_partitioning
def partitioned(t):
    return 1 * t


partitioned.def_partition(
    infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding,
    partition=lambda mesh, args, result: (
        mesh,
        lambda t: 1 * t,
        result.sharding,
        [args[0].sharding],
    ),
    sharding_rule="i -> i",
)
PROGRAMS = {
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[1],
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x),
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "hessian": lambda f: (
        lambda x: jax.jvp(jax.grad(lambda x: f(x).sum()), (x,), (x,))[1]
    ),
}


@pytest.mark.parametrize("make", [of_class, decorated])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("operation", ["inspect", "partition"])
def test_an_operation_that_needs_devices_may_stand_in_a_jvp(operation, program, make):
    seen = []
    f = make(inspected(seen) if operation == "inspect" else partitioned)
    got = jax.jit(PROGRAMS[program](f))(R)
    expected = PROGRAMS[program](lambda x: x**2)(R)
    np.testing.assert_allclose(got, expected)
    if operation == "inspect" and program in ("jvp", "linearize"):
        assert len(seen) == 1


def allclose(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_evaluate(wrap):
    allclose(wrap(scaled)(R, T), R * T)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_transpose(wrap):
    (got,) = jax.linear_transpose(lambda t: wrap(scaled)(R, t), T)(T)
    allclose(got, 10 * R * T)
    allclose(jax.grad(lambda t: wrap(scaled)(R, t).sum())(T), 10 * R)


def test_jvp_is_linear_in_the_tangents_and_true_in_the_residuals():
    def f(r, t):
        return scaled(r, t)

    allclose(jax.jvp(f, (R, T), (T, R))[1], T * T + R * R)
    allclose(jax.jvp(lambda t: f(R, t), (T,), (R,))[1], R * R)
    allclose(jax.jvp(lambda r: f(r, T), (R,), (R,))[1], R * T)
    allclose(jax.grad(lambda r: f(r, T).sum())(R), T)


@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0), (1, 1), (1, None)])
def test_batch(in_axes):
    rows = jnp.stack([R, 2 * R])
    columns = {0: rows, 1: rows.T, None: R}
    r, t = columns[in_axes[0]], columns[in_axes[1]]
    allclose(
        jax.vmap(scaled, in_axes=in_axes)(r, t),
        jax.vmap(jnp.multiply, in_axes=in_axes)(r, t),
    )

    def loss(f):
        return lambda t: (jax.vmap(f, in_axes=in_axes)(r, t) ** 1 * rows).sum()

    allclose(jax.grad(loss(scaled))(t), 10 * jax.grad(loss(jnp.multiply))(t))
    allclose(jax.jit(jax.grad(loss(scaled)))(t), 10 * jax.grad(loss(jnp.multiply))(t))


def test_nested_batches():
    got = jax.vmap(jax.vmap(scaled, (None, 0)), (0, None))(jnp.stack([R, R]), T[None])
    allclose(got, jnp.broadcast_to(R * T, (2, 1, 3)))


def test_lowering_leaves_nothing_of_it():
    def f(r, t):
        return scaled(r, t)

    assert "linear" in primitives(jax.make_jaxpr(f)(R, T))
    assert "linear" not in jax.jit(f).lower(R, T).as_text()


def test_zero_cotangents_do_not_run_the_transpose():
    def refuse(res, cts):
        raise AssertionError

    def f(t):
        a, _ = linear(
            lambda res, ts: [ts[0], 2 * ts[0]],
            refuse,
            [],
            [t],
            [jax.typeof(t)] * 2,
            name="f",
        )
        return jax.lax.stop_gradient(a)

    allclose(jax.grad(lambda t: f(t).sum() + t.sum())(T), 1)


def test_an_unused_output_arrives_as_none():
    seen = []

    def pull(res, cts):
        seen.append([ct is None for ct in cts])
        return [cts[0]]

    def f(t):
        return linear(
            lambda res, ts: [ts[0], 2 * ts[0]],
            pull,
            [],
            [t],
            [jax.typeof(t)] * 2,
            name="f",
        )[0]

    allclose(jax.grad(lambda t: f(t).sum())(T), 1)
    assert seen == [[False, True]]


@pytest.mark.full
def test_a_scan_and_its_second_derivative():
    def loop(f):
        return lambda r: jax.lax.scan(lambda c, _: (f(r, c), None), T, None, 3)[0].sum()

    exact = lambda r, t: scaled(r, t, factor=1.0)  # noqa: E731
    for first in (jax.grad, jax.jacfwd):
        for second in (jax.jacrev, jax.jacfwd):
            allclose(
                second(first(loop(exact)))(R), second(first(loop(jnp.multiply)))(R)
            )


# ---- transposing a call


@pytest.mark.parametrize("engine", ["jvp", "both", "derived"])
@pytest.mark.parametrize("style", wrong.STYLES)
def test_a_linear_call_is_transposed_as_jax_transposes_a_custom_jvp(engine, style):
    """By what forward computes: the rules, which are for sin, have no part in it."""
    base = wrong.function(engine, style)
    separate = staticmethod(lambda x: 3 * x)
    combined = staticmethod(lambda ctx, x: 3 * x)
    forward = separate if style == "separate" else combined
    f = type("Triple", (base,), {"forward": forward}).apply
    x = jnp.float32([1, 2])
    for transpose in (jax.linear_transpose(f, x), jax.linear_transpose(jax.jit(f), x)):
        (ct,) = transpose(x)
        np.testing.assert_array_equal(ct, 3 * x)
    got = jax.grad(lambda x: jax.linear_transpose(f, x)(x**2)[0].sum())(x)
    np.testing.assert_array_equal(got, 6 * x)
