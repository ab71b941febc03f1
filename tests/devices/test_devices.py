"""Eight devices in one process: every result equals that of one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.devices import layers
from tests.devices.layers import AXIS, numbers

engines = pytest.mark.parametrize("engine", layers.ENGINES)
reverse = pytest.mark.parametrize("engine", ["backward", "both", "derived"])
both_checks = pytest.mark.parametrize("vma", [True, False], ids=["vma", "no vma"])


def checks(test):
    """With JAX's check of what varies over the mesh, and without.

    A normal run leaves out what another engine does too: a derived jvp is the backward
    of another, transposed. Of the others, those with one rule run with the check, and
    that with both, which has the rules of these, without.
    """
    return pytest.mark.full(unless=is_normal)(both_checks(test))


def is_normal(engine, vma, **_):
    return engine != "derived" and vma == (engine != "both")


# In an eager shard_map each operation is a program of its own, so a normal run has it
# where a gradient is taken inside, and compiles the others.
compiled_too = pytest.mark.parametrize(
    "run",
    [
        pytest.param(jax.jit, id="jit"),
        pytest.param(lambda f: f, id="eager", marks=pytest.mark.full),
    ],
)

X, W, C = numbers(8, 3), numbers(3, 8, shift=0.4), numbers(8, 8, shift=1.0)
DX, DW = numbers(8, 3, shift=2.0), numbers(3, 8, shift=3.0)


def mesh(kind=AxisType.Auto):
    return jax.make_mesh((8,), (AXIS,), axis_types=(kind,))


def loss(f):
    """Weighted, and not linear in what `f` gives."""
    return lambda x, w: (C * f(x, w) ** 2).sum()


def close(got, expected):
    """Equal but for rounding: sums over devices are in another order."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        got,
        expected,
    )


def test_there_are_eight_devices():
    assert jax.device_count() == 8


# ---- jit with sharded inputs, automatic and explicit

PLACES = {
    "rows": (P(AXIS), P()),
    "columns of the weight": (P(), P(None, AXIS)),
    "both": (P(AXIS), P(None)),
    "replicated": (P(), P()),
}

DERIVED = {
    "value": lambda f: f,
    "gradient": lambda f: jax.grad(loss(f), (0, 1)),
    "tangent": lambda f: lambda x, w: jax.jvp(f, (x, w), (x * x, w * w))[1],
    "second gradient": lambda f: jax.grad(
        lambda x, w: (jax.grad(loss(f))(x, w) ** 2).sum(), (0, 1)
    ),
}


@functools.cache
def on_one_device(what):
    return jax.jit(DERIVED[what](layers.dense))(X, W)


def put(places, of_mesh):
    return [
        jax.device_put(x, NamedSharding(of_mesh, p))
        for x, p in zip((X, W), places, strict=True)
    ]


def shardings_agree(got, expected):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim), (a.sharding, b.sharding)


def refuses_forward(engine, what, call):
    """Is it forward mode of a backward alone? Then see that `call` raises."""
    if engine != "backward" or what != "tangent":
        return False
    with pytest.raises(TypeError, match="can't apply forward-mode autodiff"):
        call()
    return True


EVERYTHING = [("rows", what) for what in DERIVED] + [
    (places, "gradient") for places in PLACES if places != "rows"
]
everything = pytest.mark.parametrize(("places", "what"), EVERYTHING)


@engines
@everything
def test_automatic_sharding_is_that_of_a_built_in_op(engine, places, what):
    args = put(PLACES[places], mesh())
    f = jax.jit(DERIVED[what](layers.dense_function(engine)))
    if refuses_forward(engine, what, lambda: f(*args)):
        return
    got = f(*args)
    close(got, on_one_device(what))
    if what != "second gradient":  # XLA chooses there, and by the program
        shardings_agree(got, jax.jit(DERIVED[what](layers.dense))(*args))


# Under jit its types are those of the eager run, and XLA has its own test above.
@pytest.mark.full(
    unless=lambda engine, jit, **_: engine == ("both" if jit else "backward")
)
@engines
@everything
@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
def test_explicit_sharding_is_that_of_a_built_in_op(engine, places, jit, what):
    wrap = jax.jit if jit else lambda f: f
    here = mesh(AxisType.Explicit)
    with jax.set_mesh(here):
        args = put(PLACES[places], here)
        f = wrap(DERIVED[what](layers.dense_function(engine, explicit=True)))
        if refuses_forward(engine, what, lambda: f(*args)):
            return
        got = f(*args)
        expected = wrap(DERIVED[what](layers.dense))(*args)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            assert jax.typeof(a).sharding == jax.typeof(b).sharding
    close(got, on_one_device(what))


# ---- shard_map: rows of x, the same weight everywhere


def split(f, in_specs, out_specs, vma):
    return jax.shard_map(
        f, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=vma
    )


ROWS = (P(AXIS), P())


def gradients_inside(f, vma):
    def local(x, w, c):
        dx, dw = jax.grad(lambda x, w: (c * f(x, w) ** 2).sum(), (0, 1))(x, w)
        # With the check, JAX sums the gradient of what is the same everywhere.
        return dx, dw if vma else lax.psum(dw, AXIS)

    return split(local, (*ROWS, P(AXIS)), ROWS, vma)(X, W, C)


@engines
@checks
def test_gradient_inside_shard_map(engine, vma):
    got = gradients_inside(layers.dense_function(engine), vma)
    close(got, on_one_device("gradient"))


@engines
@checks
@pytest.mark.parametrize("what", DERIVED)
def test_transformations_outside_shard_map(engine, vma, what):
    f = jax.jit(DERIVED[what](split(layers.dense_function(engine), ROWS, P(AXIS), vma)))
    if not refuses_forward(engine, what, lambda: f(X, W)):
        close(f(X, W), on_one_device(what))


@pytest.mark.parametrize("engine", ["jvp", "both", "derived"])
@checks
@compiled_too
def test_tangent_inside_shard_map_is_not_too_big(engine, vma, run):
    f = layers.dense_function(engine)

    def local(x, w, dx, dw):
        return jax.jvp(f, (x, w), (dx, dw))

    tangents = run(split(local, (*ROWS, *ROWS), (P(AXIS), P(AXIS)), vma))
    got = tangents(X, W, DX, DW)
    close(got, jax.jvp(layers.dense, (X, W), (DX, DW)))


@engines
@checks
@compiled_too
def test_second_gradient_inside_shard_map(engine, vma, run):
    f = layers.dense_function(engine)

    def local(x, w, c):
        def norm(x):
            dx = jax.grad(lambda x: (c * f(x, w) ** 2).sum())(x)
            return (dx**2).sum()

        return jax.grad(norm)(x)

    got = run(split(local, (*ROWS, P(AXIS)), P(AXIS), vma))(X, W, C)
    close(got, on_one_device("second gradient")[0])


@engines
@checks
@compiled_too
def test_all_replicated_in_shard_map(engine, vma, run):
    f = layers.dense_function(engine)
    local = jax.grad(loss(f), (0, 1))
    got = run(split(local, (P(), P()), (P(), P()), vma))(X, W)
    close(got, on_one_device("gradient"))


@both_checks
def test_a_plain_custom_vjp_refuses_where_the_weight_is_replicated(vma):
    """What JAX does by itself; a Function sums the gradient instead."""

    @jax.custom_vjp
    def f(x, w):
        return layers.dense(x, w)

    def backward(saved, g):
        x, w = saved
        return g @ w.T * jnp.cos(x), jnp.sin(x).T @ g

    f.defvjp(lambda x, w: (f(x, w), (x, w)), backward)
    if vma:
        with pytest.raises(ValueError, match="must produce an output with the same"):
            gradients_inside(f, vma)
    else:
        close(gradients_inside(f, vma), on_one_device("gradient"))


# ---- collectives in forward and backward

A, B = numbers(3, 16, shift=0.1), numbers(16, 2, shift=0.2)
ARGS = (X, A, B)
MLP = (P(), P(None, AXIS), P(AXIS))


def mlp_loss(f):
    return lambda x, a, b: (f(x, a, b) ** 2 * numbers(8, 2, shift=0.9)).sum()


@functools.cache
def gradients_of_mlp():
    return jax.jit(jax.grad(mlp_loss(layers.mlp), (0, 1, 2)))(*ARGS)


def parallel_mlp(engine, vma):
    copy, reduce = layers.copy_function(engine, vma), layers.reduce_function(engine)
    return lambda x, a, b: layers.mlp(x, a, b, copy, reduce)


@reverse
@checks
@compiled_too
def test_tensor_parallel_pair_with_the_gradient_inside(engine, vma, run):
    local = jax.grad(mlp_loss(parallel_mlp(engine, vma)), (0, 1, 2))
    got = run(split(local, MLP, MLP, vma))(*ARGS)
    close(got, gradients_of_mlp())


@reverse
def test_tensor_parallel_pair_with_the_gradient_outside(engine):
    """With the check only: without it, JAX divides the cotangent of an output that is
    the same everywhere by the devices, and expects psum to be its own transpose."""
    f = split(parallel_mlp(engine, vma=True), MLP, P(), True)
    close(
        jax.jit(jax.grad(mlp_loss(f), (0, 1, 2)))(*ARGS),
        gradients_of_mlp(),
    )


@pytest.mark.parametrize("engine", ["jvp", "both", "derived"])
@compiled_too
def test_tensor_parallel_pair_in_forward_mode(engine, run):
    f = run(split(parallel_mlp(engine, vma=True), MLP, P(), True))
    tangents = tuple(x * x for x in ARGS)
    close(
        jax.jvp(f, ARGS, tangents),
        jax.jit(lambda: jax.jvp(layers.mlp, ARGS, tangents))(),
    )


def sequence_layer(engine):
    gather, scatter = layers.gather_function(engine), layers.scatter_function(engine)

    def layer(x, a, b):
        return scatter(jnp.sin(gather(x) @ a) @ b)

    return layer


SEQUENCE = (P(AXIS), P(None, AXIS), P(AXIS))


@reverse
@checks
def test_sequence_parallel_pair_with_the_gradient_outside(engine, vma):
    f = split(sequence_layer(engine), SEQUENCE, P(AXIS), vma)
    close(
        jax.jit(jax.grad(mlp_loss(f), (0, 1, 2)))(*ARGS),
        gradients_of_mlp(),
    )


@reverse
@checks
@compiled_too
def test_sequence_parallel_pair_with_the_gradient_inside(engine, vma, run):
    f = sequence_layer(engine)

    def local(x, a, b, c):
        return jax.grad(lambda *args: (f(*args) ** 2 * c).sum(), (0, 1, 2))(x, a, b)

    gradients = run(split(local, (*SEQUENCE, P(AXIS)), SEQUENCE, vma))
    got = gradients(*ARGS, numbers(8, 2, shift=0.9))
    close(got, gradients_of_mlp())


@pytest.mark.parametrize("engine", ["jvp", "both", "derived"])
@checks
@compiled_too
def test_sequence_parallel_pair_in_forward_mode(engine, vma, run):
    f = run(split(sequence_layer(engine), SEQUENCE, P(AXIS), vma))
    tangents = tuple(x * x for x in ARGS)
    close(
        jax.jvp(f, ARGS, tangents),
        jax.jit(lambda: jax.jvp(layers.mlp, ARGS, tangents))(),
    )


BATCH = (numbers(16, 2), 1 + numbers(2) / 2, numbers(2, shift=0.5))
BATCH_SPECS = (P(AXIS), P(), P())
WEIGHTS = numbers(16, 2, shift=0.8)


def batch_loss(f):
    return lambda *args: (f(*args) ** 2 * WEIGHTS).sum()


@functools.cache
def gradients_of_batch_norm():
    f = batch_loss(layers.batch_norm)
    return jax.jit(jax.value_and_grad(f, (0, 1, 2)))(*BATCH)


@reverse
@checks
def test_synchronised_batch_norm_with_the_gradient_outside(engine, vma):
    f = split(layers.batch_norm_function(engine), BATCH_SPECS, P(AXIS), vma)
    close(
        jax.jit(jax.value_and_grad(batch_loss(f), (0, 1, 2)))(*BATCH),
        gradients_of_batch_norm(),
    )


@reverse
@checks
@compiled_too
def test_synchronised_batch_norm_with_the_gradient_inside(engine, vma, run):
    f = layers.batch_norm_function(engine)

    def local(x, gamma, beta, c):
        dx, *rest = jax.grad(lambda *args: (f(*args) ** 2 * c).sum(), (0, 1, 2))(
            x, gamma, beta
        )
        return dx, *(rest if vma else lax.psum(rest, AXIS))

    gradients = run(split(local, (*BATCH_SPECS, P(AXIS)), BATCH_SPECS, vma))
    got = gradients(*BATCH, WEIGHTS)
    close(got, gradients_of_batch_norm()[1])


@pytest.mark.parametrize("engine", ["jvp", "both", "derived"])
@checks
@compiled_too
def test_synchronised_batch_norm_in_forward_mode(engine, vma, run):
    f = run(split(layers.batch_norm_function(engine), BATCH_SPECS, P(AXIS), vma))
    tangents = tuple(jnp.cos(x) for x in BATCH)
    close(
        jax.jvp(f, BATCH, tangents),
        jax.jit(lambda: jax.jvp(layers.batch_norm, BATCH, tangents))(),
    )
