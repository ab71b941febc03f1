"""`jaxfn.partitioned` on eight devices: the rules of a Function on parts of arrays."""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxfn

MESHES = {"data": (8,), "data model": (4, 2)}
SPLITS = [  # mesh, how x is split
    ("data", P("data", None)),
    ("data model", P("model", None)),
    ("data model", P(("data", "model"), None)),
    ("data model", P("data", "model")),
    ("data", P()),
]
kinds = pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
splits = pytest.mark.parametrize(("axes", "split"), SPLITS, ids=str)


@pytest.fixture(autouse=True)
def contexts(monkeypatch):
    """Don't reuse MLIR contexts: XLA's partitioner lowers within another lowering."""
    from jax._src.interpreters import mlir

    make = mlir.make_ir_context
    monkeypatch.setattr(mlir, "make_ir_context", getattr(make, "__wrapped__", make))


def norm(x, w):
    return w * x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def norm_grads(x, w, grad):
    return jax.vjp(norm, x, w)[1](grad)


def twice(x, w, grad):  # wrong on purpose: which rule ran?
    return jax.tree.map(lambda g: 2 * g, norm_grads(x, w, grad))


forward = jaxfn.partitioned(norm, "b n, n -> b n", replicated=("n",))
backward = jaxfn.partitioned(
    twice, "b n, n, b n -> b n, n", replicated=("n",), summed=("b",)
)


class Norm(jaxfn.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return forward(x, w)

    @staticmethod
    def backward(ctx, grad):
        return backward(*ctx.saved_tensors, grad)


def placed(axes, split, kind, shape=(16, 4)):
    names = tuple(axes.split())
    mesh = jax.make_mesh(MESHES[axes], names, axis_types=(kind,) * len(names))
    x = jax.random.normal(jax.random.key(0), shape)
    x, w = jnp.asarray(x), jnp.arange(1.0, 1.0 + shape[-1])
    return jax.device_put(x, NamedSharding(mesh, split)), jax.device_put(
        w, NamedSharding(mesh, P())
    )


def loss(f):
    return lambda x, w: jnp.sin(f(x, w)).sum()


def collectives(f, *args):
    text = jax.jit(f).lower(*args).compile().as_text()
    names = r"(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)"
    return Counter(re.findall(rf"{names}(?:-start)?\(", text))


@kinds
@splits
def test_value_and_gradient(axes, split, kind):
    x, w = placed(axes, split, kind)
    np.testing.assert_allclose(jax.jit(Norm.apply)(x, w), norm(x, w), rtol=1e-5)
    got = jax.jit(jax.grad(loss(Norm.apply), (0, 1)))(x, w)
    expected = jax.grad(loss(norm), (0, 1))(np.asarray(x), np.asarray(w))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, 2 * b, rtol=1e-4, atol=1e-5)


@kinds
@pytest.mark.full
def test_batched(kind):
    x, w = placed("data", P("data"), kind, (8, 3, 4))
    orders = {
        "vmap of grad": lambda f: jax.vmap(jax.grad(loss(f), (0, 1)), (0, None)),
        "grad of vmap": lambda f: jax.grad(
            lambda x, w: jax.vmap(loss(f), (0, None))(x, w).sum(), (0, 1)
        ),
        "vmap of vmap": lambda f: jax.vmap(
            jax.vmap(lambda x, w: f(x[None], w)[0], (0, None)), (0, None)
        ),
    }
    for name, order in orders.items():
        factor = 1 if name == "vmap of vmap" else 2
        got = jax.tree.leaves(jax.jit(order(Norm.apply))(x, w))
        expected = jax.tree.leaves(order(norm)(np.asarray(x), np.asarray(w)))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, factor * b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("axes", "split"), SPLITS[:3], ids=str)
@pytest.mark.full
def test_no_collective_that_plain_jax_would_not_have(axes, split):
    x, w = placed(axes, split, AxisType.Auto)
    for transform in (lambda f: f, lambda f: jax.grad(loss(f), (0, 1))):
        plain = collectives(transform(norm), x, w)
        assert collectives(transform(Norm.apply), x, w) == plain
    # But the function without a rule would be gathered by a custom call's partitioner.
    xs, w = placed("data", P("data"), AxisType.Auto, (8, 3, 4))
    batched = jax.vmap(jax.grad(loss(Norm.apply), (0, 1)), (0, None))
    assert not collectives(batched, xs, w)


def test_results_stay_split():
    x, w = placed("data", P("data", None), AxisType.Auto)
    assert jax.jit(Norm.apply)(x, w).sharding.spec == x.sharding.spec


def test_a_sum_over_a_dimension_that_no_output_has():
    x, _ = placed("data", P("data", None), AxisType.Auto)
    total = jaxfn.partitioned(lambda x: x.sum(0), "b n -> n", summed=("b",))
    np.testing.assert_allclose(jax.jit(total)(x), np.asarray(x).sum(0), rtol=1e-5)
    assert collectives(total, x) == {"all-reduce": 1}


@kinds
def test_settings_of_the_caller_are_in_force_when_xla_traces_the_parts(kind):
    fraction = jaxfn.partitioned(lambda x: (x * 1e10 % 10).astype(jnp.int32), "b -> b")
    product = jaxfn.partitioned(jnp.matmul, "b n, n m -> b m", replicated=("n",))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    with jax.enable_x64(True), jax.set_mesh(mesh):
        x = jax.device_put(jnp.full(8, 1 + 3e-10), NamedSharding(mesh, P("data")))
        assert jax.jit(fraction)(x).tolist() == fraction(x).tolist() == [3] * 8
        x = jax.device_put(jnp.ones((8, 2)), NamedSharding(mesh, P("data")))
        with jax.default_matmul_precision("highest"):
            compiled = jax.jit(product).lower(x, jnp.ones((2, 2))).compile()
    assert "operand_precision={highest,highest}" in compiled.as_text()


@kinds
def test_several_dimensions_that_are_never_split(kind):
    """XLA wants their names in the order of the rule."""
    product = jaxfn.partitioned(jnp.matmul, "b n, n m -> b m", replicated=("m", "n"))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    x = jnp.arange(24.0).reshape(8, 3)
    w = jnp.arange(12.0).reshape(3, 4)
    with jax.set_mesh(mesh):
        split = jax.device_put(x, NamedSharding(mesh, P("data")))
        np.testing.assert_allclose(jax.jit(product)(split, w), x @ w)


def test_inside_shard_map_and_outside_of_jit():
    x, w = placed("data", P("data", None), AxisType.Auto)
    np.testing.assert_allclose(Norm.apply(x, w), norm(x, w), rtol=1e-5)
    mapped = jax.shard_map(
        lambda x, w: Norm.apply(x, w),
        mesh=x.sharding.mesh,
        in_specs=(P("data"), P()),
        out_specs=P("data"),
    )
    np.testing.assert_allclose(jax.jit(mapped)(x, w), norm(x, w), rtol=1e-5)


@kinds
@pytest.mark.parametrize("run", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_pallas_kernel_is_not_gathered(kind, run):
    def double(x_ref, out_ref):
        out_ref[...] = 2 * x_ref[...]

    def launch(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(double, out_shape=shape, interpret=True)(x)

    x, _ = placed("data", P("data", None), kind)
    split = jaxfn.partitioned(launch, "b n -> b n")
    y = run(split)(x)
    np.testing.assert_allclose(y, 2 * np.asarray(x))
    assert y.sharding.is_equivalent_to(x.sharding, 2)
    assert not collectives(split, x)


def test_a_pallas_kernel_that_sums_and_is_batched_on_jaxs_default_mesh():
    def add(x_ref, out_ref):
        out_ref[...] = x_ref[...].sum(0)

    def launch(x):
        shape = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
        return pl.pallas_call(add, out_shape=shape, interpret=True)(x)

    mesh = jax.make_mesh((4, 2), ("data", "model"))  # JAX's default axes are explicit
    x = jax.random.normal(jax.random.key(0), (8, 6))
    split = jax.device_put(x, NamedSharding(mesh, P("data", "model")))
    for rule in ({"summed": ("b",)}, {"replicated": ("b",)}):
        total = jaxfn.partitioned(launch, "b n -> n", **rule)
        got = jax.jit(total)(split)
        np.testing.assert_allclose(got, x.sum(0), rtol=1e-5)
        assert got.sharding.spec == P("model")
    many = jax.device_put(jnp.stack([x, 2 * x]), NamedSharding(mesh, P(None, "data")))
    batched = jax.jit(jax.vmap(jaxfn.partitioned(launch, "b n -> n", summed=("b",))))
    np.testing.assert_allclose(batched(many), many.sum(1), rtol=1e-5)


def test_an_argument_that_is_not_on_the_mesh():
    """As with JAX's own operations, a bias need not be put on the mesh first."""
    mesh = jax.make_mesh((8,), ("data",))
    x = jnp.arange(64.0).reshape(16, 4)
    split, w = jax.device_put(x, NamedSharding(mesh, P("data"))), jnp.arange(4.0)
    both = jaxfn.partitioned(
        lambda x, w, g: (g * w, (g * x).sum(0)), "b n, n, b n -> b n, n", summed=("b",)
    )
    got = jax.jit(both)(split, w, split)
    np.testing.assert_allclose(got[1], (x * x).sum(0), rtol=1e-5)
    for argnum in (0, 1):
        got = jax.jit(jax.grad(loss(Norm.apply), argnum))(split, w)
        want = 2 * jax.grad(loss(norm), argnum)(x, w)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_rule_that_is_no_text():
    with pytest.raises(TypeError, match="got tuple as its rule: expected a text"):
        jaxfn.partitioned(lambda x: x, (P("data"),))


def test_on_one_device():
    x, w = jnp.ones((3, 4)), jnp.arange(4.0)
    got = jax.grad(loss(Norm.apply))(x, w)
    np.testing.assert_allclose(got, 2 * jax.grad(loss(norm))(x, w), rtol=1e-5)


def test_a_derivative_is_refused():
    x, w = jnp.ones((3, 4)), jnp.arange(4.0)
    with pytest.raises(TypeError, match="`norm` was differentiated, and partitioned"):
        jax.grad(loss(forward))(x, w)
    with pytest.raises(TypeError, match="`twice` was differentiated"):
        jax.jacrev(jax.grad(loss(Norm.apply)))(x, w)
    with pytest.raises(TypeError, match="`twice` was differentiated"):
        jax.hessian(loss(Norm.apply))(x, w)


@pytest.mark.parametrize(
    ("rule", "replicated", "message"),
    [
        ("b n, n", (), "expected one arrow"),
        ("b n, n -> b n", "n", "expected one arrow"),
        ("b n, n -> b m", (), "a name that no argument has must be replicated"),
        ("b b, b -> b", (), "expected each name once in an array"),
        ("b n, n -> b n", ("m",), "a name that no argument has"),
        ("b n -> b n", (), "has arguments of shapes (3, 4), (4,)"),
        ("b n, b -> b n", (), "has arguments of shapes (3, 4), (4,)"),
        ("b n, n -> n b", (), "has outputs of shapes (3, 4)"),
        ("b n, n -> b n, b n", (), "has outputs of shapes (3, 4)"),
        ("b n, n -> n", (), "an output lacks ['b']"),
        ("bn, n -> b n", (), "because `bn` is one"),
        ("b n, m -> b m", (), "an output lacks"),
    ],
)
def test_a_rule_that_does_not_fit(rule, replicated, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        jaxfn.partitioned(norm, rule, replicated=replicated)(
            jnp.ones((3, 4)), jnp.ones(4)
        )


def test_a_sum_must_be_said():
    # A mean or a maximum over parts would be wrong, and looks the same.
    with pytest.raises(
        ValueError, match="is a sum over this dimension, name it in summ"
    ):
        jaxfn.partitioned(lambda x: x.mean(0), "b n -> n")
    x, _ = placed("data", P("data", None), AxisType.Auto)
    mean = jaxfn.partitioned(lambda x: x.mean(0), "b n -> n", replicated=("b",))
    np.testing.assert_allclose(jax.jit(mean)(x), np.asarray(x).mean(0), rtol=1e-5)
    with pytest.raises(ValueError, match=r"every output has \['b'\].*Leave it out"):
        jaxfn.partitioned(jnp.sin, "b n -> b n", summed=("b",))


def test_a_dimension_of_size_one():
    shapes = jnp.ones((3, 4)), jnp.ones((1, 4))
    with pytest.raises(ValueError, match="size 1 that fn broadcasts needs a name of"):
        jaxfn.partitioned(jnp.multiply, "b n, b n -> b n")(*shapes)
    right = jaxfn.partitioned(jnp.multiply, "b n, o n -> b n", replicated=("o",))
    assert right(*shapes).shape == (3, 4)


def test_something_else_than_arrays():
    with pytest.raises(TypeError, match="returned dict: partitioned expected an array"):
        jaxfn.partitioned(lambda x: {"a": x}, "b -> b")(jnp.ones(3))


@pytest.mark.parametrize("other", [np.arange(4.0), jnp.float32(2)])
def test_an_array_that_is_no_argument_is_refused(other):
    def scaled(x):
        return x * other

    fn = jaxfn.partitioned(scaled, "b n -> b n", replicated=("n",))
    for run in (fn, jax.jit(fn)):
        with pytest.raises(ValueError, match="`scaled` uses arrays that are not among"):
            run(jnp.ones((8, 4)))
    # A number is no array.
    doubled = jaxfn.partitioned(lambda x: x * 2.0, "b n -> b n", replicated=("n",))
    assert doubled(jnp.ones((8, 4))).sum() == 64


def test_something_else_than_a_function():
    with pytest.raises(TypeError, match="partitioned got int: expected a function"):
        jaxfn.partitioned(3, "b -> b")


def test_jaxs_own_custom_partitioning_has_no_rules():
    # The page of measurements says so.
    split = custom_partitioning(jnp.sin)
    split.def_partition(lambda *_: None, sharding_rule="n -> n")
    x = jnp.ones((2, 3))
    for f in (jax.vmap(split), jax.grad(lambda x: split(x).sum())):
        with pytest.raises(NotImplementedError, match="rule for 'custom_partitioning'"):
            f(x)


def test_what_does_not_divide_is_not_split():
    # XLA would pad such an array, and a sum would count the padding.
    from jaxfn._partitioned import _Rule

    x, _ = placed("data", P("data", None), AxisType.Auto)
    rule = _Rule.parse("f", "b n -> n", (), ("b",))
    uneven = jax.ShapeDtypeStruct((12, 4), x.dtype, sharding=x.sharding)
    assert rule.axes(x.sharding.mesh, [x], rule.arguments) == {"b": ("data",)}
    assert rule.axes(x.sharding.mesh, [uneven], rule.arguments) == {}
