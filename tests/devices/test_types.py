"""On meshes, what a rule returns has the type of what it is the derivative of."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxfn
from jaxfn._core import internals
from tests.build import function, in_style, rules_of, saving
from tests.devices import layers
from tests.devices.layers import AXIS, numbers
from tests.devices.test_devices import DERIVED, checks, close, engines, refuses_forward
from tests.jaxprs import primitives

ROWS = (P(AXIS), P())
XS, WS = numbers(2, 8, 3), numbers(2, 3, 8, shift=0.4)


def meshes():
    return jax.make_mesh((2, 4), ("batch", AXIS), axis_types=(AxisType.Auto,) * 2)


@engines
@checks
def test_eager_shard_map(engine, vma):
    mesh = jax.make_mesh((4,), (AXIS,), axis_types=(AxisType.Auto,))
    f = layers.dense_function(engine)
    split = jax.shard_map(f, mesh=mesh, in_specs=ROWS, out_specs=P(AXIS), check_vma=vma)
    close(split(XS[0], WS[0]), layers.dense(XS[0], WS[0]))
    batched = jax.vmap(split, (0, None))(XS, WS[0])
    close(batched, jax.vmap(layers.dense, (0, None))(XS, WS[0]))


# ---- a batch that is split over a mesh axis of its own


# Not second gradients without the check: there built-in operations are wrong, too.
STACKS = {
    **{f"jit {what}": (True, jax.jit, what) for what in DERIVED},
    "eager gradient": (True, lambda f: f, "gradient"),
    "eager second gradient": (True, lambda f: f, "second gradient"),
    "no vma, gradient": (False, jax.jit, "gradient"),
    "no vma, tangent": (False, jax.jit, "tangent"),
}


@functools.cache
def on_one_device(what):
    return jax.jit(DERIVED[what](jax.vmap(layers.dense)))(XS, WS)


NORMAL = ("jit tangent", "jit second gradient", "eager gradient")


@pytest.mark.full(unless=lambda engine, stack: stack in NORMAL)
@engines
@pytest.mark.parametrize("stack", STACKS)
def test_vmap_of_shard_map_over_a_mesh_axis(engine, stack):
    vma, transform, what = STACKS[stack]
    split = jax.shard_map(
        layers.dense_function(engine),
        mesh=meshes(),
        in_specs=ROWS,
        out_specs=P(AXIS),
        check_vma=vma,
    )
    f = transform(DERIVED[what](jax.vmap(split, spmd_axis_name="batch")))
    if refuses_forward(engine, what, lambda: f(XS, WS)):
        return
    close(f(XS, WS), on_one_device(what))


# ---- a gradient that is summed over devices


def penalized(engine, backward):
    """Returns x * w and a penalty on w, which all devices share."""
    rules = rules_of(
        engine,
        lambda ctx, g, h: backward(*ctx.saved_tensors, g, h),
        lambda ctx, t, u: (
            t * ctx.saved_tensors[1] + u * ctx.saved_tensors[0],
            2 * u * ctx.saved_tensors[1],
        ),
    )
    rules |= in_style("combined", lambda x, w: (x * w, w * w), saving())
    return function(**rules).apply


def of_weight(f, *, uses_penalty=True):
    """The loss, as a function of w, of a Function that `penalized` makes."""
    mesh = jax.make_mesh((4,), (AXIS,), axis_types=(AxisType.Auto,))

    def local(x, w):
        y, z = f(x, w)
        total = lax.psum(y.sum(), AXIS)
        return total + 10 * z if uses_penalty else total

    split = jax.shard_map(local, mesh=mesh, in_specs=ROWS, out_specs=P())
    return functools.partial(split, jnp.arange(4.0))


def local(x):
    """The same value, as one that may differ between devices."""
    return lax.pcast(x, AXIS, to="varying")


WRONG = {
    "a sum": lambda x, w, g, h: (g * w, (g * x).sum() + h * 2 * w),
    "in jit": lambda x, w, g, h: (
        g * w,
        jax.jit(lambda a, b: a + 3 * b)((g * x).sum(), h * 2 * w / 3),
    ),
    "cast": lambda x, w, g, h: (
        g * w,
        (g * x).sum() + local(2 * h * w),
    ),
    "a product of casts": lambda x, w, g, h: (
        g * w,
        (g * x).sum() + local(2 * h) * local(w),
    ),
    "a product with a sum": lambda x, w, g, h: (
        g * w,
        (g * x).sum() + local(h) * local(lax.psum(x.sum(), AXIS)),
    ),
    "a sum in jit": lambda x, w, g, h: (
        g * w,
        jax.jit(lambda x, h: (h * x).sum() + h)(x, h),
    ),
    "alone": lambda x, w, g, h: (g * w, 0 * x.sum() + h * 2 * w),
}


@pytest.mark.parametrize("engine", ["backward", "both", "derived"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", WRONG)
def test_a_part_that_devices_share_is_not_counted_for_each(engine, wrap, name):
    loss = of_weight(penalized(engine, WRONG[name]))
    words = r"backward` returned a gradient for .*might count.*psum\(\.\.\., '"
    with pytest.raises(ValueError, match=words):
        wrap(jax.grad(loss))(3.0)


@pytest.mark.parametrize("engine", ["backward", "both", "derived"])
@pytest.mark.full
def test_what_is_the_own_of_each_device_is_summed(engine):
    def summed(x, w, g, h):
        return g * w, lax.psum((g * x).sum(), AXIS) + h * 2 * w

    assert jax.grad(of_weight(penalized(engine, summed)))(3.0) == 6 + 60


@pytest.mark.parametrize("sums", [False, True])
def test_a_gradient_of_what_devices_share_is_summed_in_backward(sums):
    def backward(ctx, h):
        x, _ = ctx.saved_tensors
        of_w = jnp.where(x > 1, h * x, 2 * h * x).sum()
        return h * jnp.cos(x), lax.psum(of_w, AXIS) if sums else of_w

    value = lambda x, w: lax.psum((x * w).sum(), AXIS)  # noqa: E731
    f = function(**in_style("combined", value, saving()), backward=backward).apply
    mesh = jax.make_mesh((4,), (AXIS,), axis_types=(AxisType.Auto,))
    split = jax.shard_map(f, mesh=mesh, in_specs=ROWS, out_specs=P())
    gradient = jax.grad(split, 1)
    if sums:
        assert gradient(jnp.arange(4.0), 3.0) == 2 * 1 + 2 + 3
    else:
        with pytest.raises(ValueError, match=r"In backward, sum the part that differs"):
            gradient(jnp.arange(4.0), 3.0)


def test_a_gradient_that_did_not_arrive_is_not_counted():
    # The penalty is not used: its gradient is zero, on all devices.
    f = penalized("backward", WRONG["a sum"])
    assert jax.grad(of_weight(f, uses_penalty=False))(3.0) == 6


# ---- a tangent that differs between devices


def total(engine, *, forgets):
    """The sum over the devices; a jvp may forget to talk to the others."""

    def jvp(ctx, t):
        return t.sum() if forgets else lax.psum(t.sum(), AXIS)

    rules = rules_of(engine, lambda ctx, g: jnp.full((2,), g), jvp)
    return function(forward=lambda ctx, x: lax.psum(x.sum(), AXIS), **rules).apply


def tangent(f):
    x = jnp.arange(8.0)
    mesh = jax.make_mesh((4,), (AXIS,), axis_types=(AxisType.Auto,))
    split = jax.shard_map(f, mesh=mesh, in_specs=P(AXIS), out_specs=P())
    return jax.jvp(split, (x,), (x,))[1]


@pytest.mark.parametrize("engine", ["jvp", "both"])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_tangent_that_differs_between_devices_is_refused(engine, transform):
    close(tangent(transform(total(engine, forgets=False))), 28.0)
    words = (
        r"jvp` returned a tangent that differs between devices for output 0.*\['d'\]"
    )
    with pytest.raises(TypeError, match=words):
        tangent(transform(total(engine, forgets=True)))


# ---- a mesh on which a type says its sharding


def resharding(engine):
    """Squares, with rules that return another sharding than they should."""
    rule = lambda ctx, g: jax.sharding.reshard(g, P(None, AXIS))  # noqa: E731
    return function(forward=lambda ctx, x: x * x, **rules_of(engine, rule, rule)).apply


@pytest.mark.parametrize(
    ("engine", "derivative", "words"),
    [
        ("backward", "grad", "backward` returned a gradient of another sharding"),
        ("both", "grad", "backward` returned a gradient of another sharding"),
        ("both", "jvp", "jvp` returned a tangent of another sharding for output 0"),
    ],
)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_another_sharding_is_refused(engine, derivative, words, transform):
    f = resharding(engine)
    of = {
        "grad": jax.grad(lambda x: f(x).sum()),
        "jvp": lambda x: jax.jvp(f, (x,), (x,))[1],
    }
    with jax.set_mesh(jax.make_mesh((8,), (AXIS,), axis_types=(AxisType.Explicit,))):
        x = jax.device_put(numbers(8, 8), P(AXIS))
        with pytest.raises(TypeError, match=words):
            transform(of[derivative])(x)


# ---- an output that ignores an argument, which its derivative depends on


def save_last(ctx, inputs, output):
    ctx.save_for_backward(inputs[-1])


def scaled(summed):
    """Returns x, with the gradient summed(s) * g: another for each s of a batch."""

    return function(
        **in_style("combined", lambda x, s: 1 * x, save_last),
        backward=lambda ctx, g: (g * summed(*ctx.saved_tensors), None),
    ).apply


def weighted(f, x, ss):
    """The gradient of a sum whose terms have the weights 1 and 10."""
    ws = jnp.array([1.0, 10.0])
    ys = lambda x: jax.vmap(f, (None, 0))(x, ss)  # noqa: E731
    return jax.grad(lambda x: (ys(x).sum(1) * ws).sum())(x)


IGNORES = {
    "shared input, split scale": (P(), P(None, AXIS)),
    "split input, shared scale": (P(AXIS), P()),
    "both split": (P(AXIS), P(None, AXIS)),
}


TYPES = ["explicit", "varying"]


def placed(types, names, *arrays):
    """Return how to call a function of arrays on a mesh with such types."""
    axis = AxisType.Explicit if types == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((4,), (AXIS,), axis_types=(axis,))
    if types == "varying":
        return lambda f: (
            lambda transform: transform(
                jax.shard_map(f, mesh=mesh, in_specs=names, out_specs=names[0])
            )(*arrays)
        )

    def call(f):
        def on_mesh(transform):
            with jax.set_mesh(mesh):
                return transform(f)(*map(jax.device_put, arrays, names))

        return on_mesh

    return call


def summed(types, split):
    """The sum of s over all devices; in a shard_map that is a psum."""
    if types == "varying" and split:
        return lambda s: lax.psum(s.sum(), AXIS)
    return lambda s: s.sum()


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("names", IGNORES.values(), ids=IGNORES)
def test_its_examples_have_their_own_gradients(types, names):
    f = scaled(summed(types, split=names[1] != P()))
    call = placed(types, names, numbers(4), jnp.arange(8.0).reshape(2, 4))
    got = call(lambda x, ss: weighted(f, x, ss))(jax.jit)
    close(got, jnp.full(4, 6 * 1.0 + 22 * 10.0))


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("names", IGNORES.values(), ids=IGNORES)
def test_it_is_tied_to_it_for_nothing(types, names):
    names = (names[0], P(*names[1][1:]))
    f = scaled(summed(types, split=names[1] != P()))
    call = placed(types, names, jnp.full(4, -0.0), jnp.arange(4.0))(f)
    # JAX can't join arrays that are split in other ways over an explicit mesh.
    if types == "varying" and not internals.SCAN_DROPS_JVP:
        jaxpr = call(lambda f: lambda *args: jax.make_jaxpr(f)(*args))
        assert not {"attach", "linear", "gate"} & set(primitives(jaxpr))
    text = call(lambda f: lambda *args: jax.jit(f).lower(*args).compile().as_text())
    assert "all-reduce" not in text
    assert "subtract" not in text
    for transform in (jax.jit, lambda f: f):
        assert jnp.signbit(call(transform)).all()


def test_outputs_that_vary_otherwise_stay_so():
    def backward(ctx, g, h):
        (s,) = ctx.saved_tensors
        return g * s.sum(), h * lax.psum(s.sum(), AXIS), None

    rules = in_style("combined", lambda x, y, s: (1 * x, 2 * y), save_last)
    f = function(backward=backward, **rules).apply
    mesh = jax.make_mesh((4,), (AXIS,), axis_types=(AxisType.Auto,))
    specs = (P(AXIS), P(), P(AXIS))
    split = jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=specs[:2])
    x = numbers(4)
    out = jax.vmap(split, (None, None, 0))(x, x, numbers(2, 4))
    close(out, (jnp.stack([x, x]), jnp.stack([2 * x, 2 * x])))


def test_it_is_left_as_it_is_where_a_sum_over_devices_is_due():
    def backward(ctx, g):
        raise NotImplementedError  # so that nothing is known of the derivative

    f = function(forward=lambda ctx, x, y: 1 * x, backward=backward).apply

    def g(x, w):
        return f(x, jnp.dot(x, w, out_sharding=P(None, unreduced={AXIS})))

    mesh = jax.make_mesh((4,), (AXIS,), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(numbers(2, 4), P(None, AXIS))
        close(jax.jit(g)(x, jax.device_put(numbers(4, 2), P(AXIS))), numbers(2, 4))


def test_it_has_a_second_derivative_there():
    def forward(ctx, x, y):
        ctx.save_for_backward(jnp.cos(x))
        return jnp.sin(x)

    f = function(
        forward=forward, backward=lambda ctx, g: (2 * g * ctx.saved_tensors[0], None)
    ).apply

    def g(x, w):
        return f(x, jnp.dot(x, w, out_sharding=P(None, unreduced={AXIS}))).sum()

    def second(x, w):
        return jax.grad(lambda x: jax.grad(g)(x, w).sum())(x)

    mesh = jax.make_mesh((4,), (AXIS,), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(numbers(2, 4), P(None, AXIS))
        w = jax.device_put(numbers(4, 2), P(AXIS))
        close(jax.jit(second)(x, w), -2 * jnp.sin(numbers(2, 4)))


@pytest.mark.parametrize("wrap", [jax.vmap, lambda f: jax.vmap(jax.jit(f))])
def test_a_vmap_on_an_explicit_mesh(wrap):
    f = wrap(
        function(
            **in_style("combined", lambda x, s: x * 2, save_last),
            backward=lambda ctx, g: (3 * g * ctx.saved_tensors[0].sum(), None),
        ).apply
    )
    mesh = jax.make_mesh((4,), (AXIS,), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x, s = jax.device_put((jnp.ones((2, 4)), jnp.ones((2, 4))), P(None, AXIS))
        for outer in (lambda f: f, jax.jit):
            assert outer(f)(x, s).sum() == 16
            assert outer(jax.grad(lambda x: f(x, s).sum()))(x).sum() == 96


# ---- check on arrays that are split


class Scale(jaxfn.Function):
    factor = 1

    @staticmethod
    def forward(ctx, x, s):
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        return g * s, Scale.factor * (g * x).sum(0)


def test_check_takes_arrays_that_are_split(monkeypatch):
    mesh = jax.make_mesh((4,), (AXIS,))
    x = jax.device_put(numbers(8, 4), jax.NamedSharding(mesh, P(AXIS)))
    s = jax.device_put(numbers(4), jax.NamedSharding(mesh, P()))
    report = jaxfn.check(Scale, x, s)
    assert report.ok, str(report)
    assert "raises" not in str(report)  # of JAX, which needs to know the mesh
    monkeypatch.setattr(Scale, "factor", 3)
    assert jaxfn.check(Scale, x, s).wrong_rules == ("backward",)
