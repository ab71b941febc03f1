"""What apply takes and what forward gives: arrays, pytrees, static values, kwargs."""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from tests.build import allclose, function, in_style, nothing, saving

S = jnp.float32(3)
X = jnp.float32([1, 2, 3])


# ---- static values

STATIC = [3, 2.5, "text", None, True, jnp.float32, np.dtype("int8"), len, object()]


@pytest.mark.parametrize(
    "value", [*STATIC, {1: 2, "a": 3}, [1, "b"], {7}, (), slice(3)]
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_static_values_pass_through_unchanged(value, wrap):
    seen = []

    def forward(ctx, x, value):
        seen.append(value)
        return 2 * x, value

    f = function(forward=forward, backward=lambda ctx, g, v: (g, None)).apply
    out = []

    def loss(x):
        y, back = f(x, value)
        out.append(back)
        return y

    allclose(wrap(jax.grad(loss))(S), 1)
    allclose(f(S, value)[0], 6)
    for got in [*seen, *out]:
        assert type(got) is type(value)
        assert got == value


def test_opaque_arguments_keep_their_identity():
    class Thing:
        pass

    thing, unsortable = Thing(), {1: 2, "a": 3}

    def forward(ctx, x, a, b):
        assert a is thing
        assert b is unsortable
        return x

    function(forward=forward).apply(S, thing, unsortable)


def test_a_static_output_that_differs_at_every_trace():
    f = function(
        forward=lambda ctx, x: (1 * x, object()), backward=lambda ctx, g, _: 2 * g
    )

    def body(c, _):
        y, made = f.apply(c)
        assert type(made) is object
        return y, None

    def loop(x):
        return jax.lax.scan(body, x, None, length=2)[0]

    allclose(jax.jit(jax.grad(loop))(S), 4)
    allclose(jax.vmap(jax.grad(loop))(X), [4, 4, 4])


# ---- pytrees


def _layer():
    def forward(ctx, params, x):
        ctx.save_for_backward(params["w"], x)
        return {"y": params["w"] * x + params["b"][0], "n": 3}

    def backward(ctx, grad):
        w, x = ctx.saved_tensors
        assert grad["n"] is None
        g = grad["y"]
        return {"w": 2 * g * x, "b": [g, None]}, 3 * g * w

    return function("Layer", forward=forward, backward=backward).apply


def test_pytrees_carry_gradients():
    params = {"w": S, "b": [S, jnp.float32(1)]}
    f = _layer()
    grads = jax.grad(lambda p, x: f(p, x)["y"], argnums=(0, 1))(params, jnp.float32(5))
    assert jax.tree.map(float, grads) == ({"w": 10.0, "b": [1.0, 0.0]}, 9.0)
    batched = jax.vmap(
        jax.grad(lambda p, x: f(p, x)["y"]), in_axes=({"w": None, "b": None}, 0)
    )(params, X)
    allclose(batched["w"], 2 * X)


def test_none_stands_for_any_part_of_a_gradient():
    f = function(
        forward=lambda ctx, p, x: p["a"]["b"] * p["c"] * x,
        backward=lambda ctx, g: ({"a": None, "c": 2 * g}, g),
    ).apply
    grads = jax.grad(f)({"a": {"b": S}, "c": S}, S)
    assert jax.tree.map(float, grads) == {"a": {"b": 0.0}, "c": 2.0}


def test_static_leaves_inside_a_pytree_argument():
    def forward(ctx, config):
        ctx.scale = config["scale"]
        assert config["name"] == "n"
        return config["scale"] * config["x"]

    f = function(
        forward=forward,
        backward=lambda ctx, g: {"scale": None, "name": None, "x": ctx.scale * g},
    ).apply

    def loss(x):
        return f({"scale": 4, "name": "n", "x": x})

    allclose(jax.jit(jax.grad(loss))(S), 4)


def test_a_registered_pytree_in_and_out():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Pair:
        a: jax.Array
        b: jax.Array

    f = function(
        forward=lambda ctx, p: Pair(2 * p.a, 3 * p.b),
        backward=lambda ctx, g: Pair(2 * g.a, 3 * g.b),
    ).apply
    got = jax.grad(lambda p: f(p).a + f(p).b)(Pair(S, S))
    assert (float(got.a), float(got.b)) == (2, 3)


@pytest.mark.parametrize("out", [(), None, [], {}])
def test_outputs_without_arrays(out):
    f = function(forward=lambda ctx, x: out).apply
    assert f(S) == out
    got = []
    jax.jit(lambda x: got.append(f(x)) or x)(S)
    assert got == [out]


# ---- kwargs and defaults


@pytest.mark.parametrize("name", ["cls", "args", "kwargs", "self", "func"])
def test_a_parameter_of_any_name(name):
    scope = {}
    exec(f"def forward(ctx, {name}): return 2 * {name}", scope)
    f = function(forward=scope["forward"], backward=lambda ctx, g: 3 * g).apply
    allclose(f(**{name: S}), 2 * S)
    allclose(jax.grad(lambda x: f(**{name: x}))(S), 3)


def passing(forward):
    """A decorator that adds nothing, and has no names of its own."""

    @functools.wraps(forward)
    def decorated(ctx, *args, **kwargs):
        return forward(ctx, *args, **kwargs)

    return decorated


def test_keywords_are_the_names_of_the_outermost_decorator_that_has_any():
    def forward(ctx, x, k):
        return k * x

    @functools.wraps(forward)
    def renaming(ctx, a, b):
        return forward(ctx, a, b)

    f = function(forward=passing(renaming), backward=lambda ctx, g: (g, None)).apply
    assert f(b=3, a=jnp.float32(2)) == 6
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'k'"):
        f(jnp.float32(2), k=3)


@pytest.mark.parametrize(
    "decorate",
    [passing, jaxfn.amp.custom_fwd(device_type="cpu"), functools.partial],
    ids=["wraps", "custom_fwd", "partial"],
)
def test_a_decorator_without_names_passes_them_on(decorate):
    def forward(ctx, x, k=2):
        ctx.k = k
        return k * x

    backward = staticmethod(lambda ctx, g: (ctx.k * g, None))
    f = function(forward=staticmethod(decorate(forward)), backward=backward).apply
    assert f(k=3, x=jnp.float32(2)) == 6
    assert jax.grad(lambda x: f(x, k=3))(2.0) == 3


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_signature_set_by_hand_changes_no_keyword(kind):
    def combined(ctx, x, k=2, *, plus=0):
        return k * x + plus

    def forward(cls, ctx, x, k=2, *, plus=0):
        return combined(ctx, x, k, plus=plus)

    forward = combined if kind is staticmethod else forward
    forward.__signature__ = inspect.signature(lambda ctx, x, scale: None)
    f = function(forward=kind(forward), backward=lambda ctx, g, *_: (g, None)).apply
    assert f(k=3, x=jnp.float32(2), plus=1) == 7
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'scale'"):
        f(jnp.float32(2), scale=3)


def test_a_forward_or_style_assigned_later_has_its_own_parameters():
    replaced = function(
        forward=lambda x, k=2: k * x,
        setup_context=nothing,
        backward=lambda ctx, g: (g, None),
    )
    allclose(replaced.apply(S), 2 * S)
    allclose(replaced.apply(x=S), 2 * S)
    replaced.forward = staticmethod(lambda y, k=3: k * y)
    allclose(replaced.apply(S), 3 * S)
    allclose(replaced.apply(y=S), 3 * S)
    # Without setup_context, the first parameter is ctx.
    replaced.setup_context = jaxfn.Function.setup_context
    replaced.forward = both = staticmethod(lambda a, b: b)
    allclose(replaced.apply(b=S), S)
    replaced.setup_context = staticmethod(nothing)
    replaced.forward = both
    allclose(replaced.apply(a=2 * S, b=S), S)


def test_a_forward_with_an_equality_of_its_own_is_not_compared_at_each_call():
    class Scale:
        __hash__ = None
        inspected = False

        def __call__(self, x):
            return 2 * x

        def __eq__(self, other):  # Python 3.11 compares it to find its signature
            assert not self.inspected
            return self is other

    f = function(
        forward=Scale(),
        setup_context=nothing,
        backward=lambda ctx, g: 3 * g,
    ).apply
    allclose(f(S), 2 * S)
    Scale.inspected = True
    allclose(f(S), 2 * S)
    allclose(jax.grad(f)(S), 3)


def test_an_omitted_default_before_a_keyword_is_filled_in():
    def forward(ctx, x, k=2, m=5):
        ctx.count = len(ctx.needs_input_grad)
        return k * m * x

    f = function(forward=forward, backward=lambda ctx, g: (g, None, None)).apply
    allclose(f(S, m=10), 60)
    allclose(jax.grad(lambda x: f(x, m=10))(S), 1)


@pytest.mark.parametrize("style", ["separate", "combined"])
def test_keyword_only_static_arguments(style):
    members = {"forward": lambda ctx, x, *, k=2: k * x}
    if style == "separate":
        members = {"forward": lambda x, *, k=2: k * x, "setup_context": nothing}
    f = function(**members, backward=lambda ctx, g: 2 * g).apply
    for call in (f, jax.jit(f), jax.vmap(lambda x: f(x))):
        allclose(call(X), 2 * X)
    allclose(f(S, k=5), 15)
    allclose(jax.grad(lambda x: f(x, k=5))(S), 2)


def test_keyword_only_with_a_vmap_rule():
    f = function(
        forward=lambda x, *, k=2: k * x,
        setup_context=nothing,
        vmap=lambda info, in_dims, x, *, k=2: (k * x + 0.5, 0),
    ).apply
    allclose(jax.vmap(lambda x: f(x, k=3))(X), 3 * X + 0.5)
    allclose(jax.vmap(f)(X), 2 * X + 0.5)


# ---- array kinds


def test_integer_and_bool_inputs_take_no_gradient():
    def forward(ctx, x, i, mask):
        assert ctx.needs_input_grad in ((True, False, False), (False,) * 3)
        ctx.save_for_backward(i, mask)
        return jnp.where(mask, x[i], 0)

    def backward(ctx, g):
        i, mask = ctx.saved_tensors
        return jnp.zeros(3).at[i].set(jnp.where(mask, 2 * g, 0)), g, g

    f = function(forward=forward, backward=backward).apply
    i, mask = jnp.int32(1), jnp.bool_(True)
    for call in (jax.grad(f), jax.jit(jax.grad(f)), jax.grad(jax.checkpoint(f))):
        allclose(call(X, i, mask), [0, 2, 0])
    batched = jax.vmap(jax.grad(f), in_axes=(None, 0, None))(X, jnp.arange(3), mask)
    allclose(batched, 2 * np.eye(3))


def test_integer_outputs_give_zeros_of_their_dtype_to_backward():
    grads = []

    def backward(ctx, g, gi, gb):
        grads.append((gi.dtype, gb.dtype))
        return g + gi

    f = function(
        forward=lambda ctx, x: (2 * x, jnp.argsort(x), x > 1), backward=backward
    ).apply
    for call in (
        jax.grad,
        lambda f: jax.jit(jax.grad(f)),
        lambda f: jax.grad(jax.jit(f)),
    ):
        allclose(call(lambda x: f(x)[0].sum())(X), 1)
    assert set(grads) == {(jnp.dtype("int32"), jnp.dtype("bool"))}


def test_prng_keys_in_out_saved_and_on_ctx():
    def forward(ctx, x, key):
        ctx.save_for_backward(key)
        ctx.key = key
        return x * jax.random.normal(key), jax.random.split(key)[0]

    def backward(ctx, g, g_key):
        assert g_key is None
        (key,) = ctx.saved_tensors
        assert jnp.all(key == ctx.key) is not False
        return 2 * g * jax.random.normal(ctx.key), None

    f = function(forward=forward, backward=backward).apply
    key = jax.random.key(0)
    expected = 2 * jax.random.normal(key)
    grad = jax.grad(lambda x, k: f(x, k)[0])
    for call in (
        grad,
        jax.jit(grad),
        jax.grad(jax.checkpoint(lambda x, k: f(x, k)[0])),
    ):
        allclose(call(S, key), expected)
    keys = jax.random.split(key, 3)
    allclose(jax.vmap(grad)(X, keys), 2 * jax.vmap(jax.random.normal)(keys))

    def loop(x):
        def body(c, k):
            y, k = f(c, k)
            return y, jax.random.normal(k)

        return jax.lax.scan(body, x, keys)[0]

    allclose(jax.grad(loop)(S), np.prod(2 * jax.vmap(jax.random.normal)(keys)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_gradients_are_cast_to_the_dtype_of_the_argument(dtype):
    f = function(
        forward=lambda ctx, x: 2 * x,
        backward=lambda ctx, g: 2 * g.astype(jnp.float32),
        jvp=lambda ctx, t: 3 * t.astype(jnp.float32),
    ).apply
    x = jnp.ones(2, dtype)
    assert jax.grad(lambda x: f(x).sum())(x).dtype == dtype
    assert jax.jvp(f, (x,), (x,))[1].dtype == dtype


def test_a_broadcast_gradient_is_summed_to_the_shape_of_the_argument():
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a

    members = in_style("combined", jnp.multiply, saving())
    f = function(**members, backward=backward).apply
    a, b = jnp.arange(4.0), jnp.arange(12.0).reshape(3, 4)
    grads = jax.grad(lambda a, b: f(a, b).sum(), (0, 1))(a, b)
    allclose(grads[0], b.sum(0))
    allclose(grads[1], jnp.broadcast_to(a, (3, 4)))
    column = jnp.ones((3, 1))
    got = jax.grad(lambda a, b: f(a, b).sum())(column, b)
    allclose(got, b.sum(1, keepdims=True))
    per_example = jax.vmap(jax.grad(lambda a, b: f(a, b).sum()))(
        jnp.ones((2, 1)), jnp.arange(10.0).reshape(2, 5)
    )
    allclose(per_example, [[10], [35]])


def test_complex_gradients_follow_torch():
    # torch's documentation: the gradient of z^2 is g conj(2z). JAX's grad of a real
    # function of z is the conjugate of torch's .grad, so the numbers are JAX's.
    square = function(
        **in_style("combined", lambda z: z * z, saving()),
        backward=lambda ctx, g: g * jnp.conj(2 * ctx.saved_tensors[0]),
    )
    derived = function(base=square, generate_jvp_rule=True)
    z = jnp.complex64(1 + 2j)
    expected = jax.grad(lambda z: (z * z).real)(z)
    for f in (square.apply, derived.apply):
        allclose(jax.grad(lambda z, f=f: f(z).real)(z), expected)
        allclose(
            jax.jit(jax.grad(lambda z, f=f: f(z).imag))(z),
            jax.grad(lambda z: (z * z).imag)(z),
        )
    t = jnp.complex64(3 - 1j)
    allclose(jax.jvp(derived.apply, (z,), (t,))[1], 2 * z * t)


def test_a_real_argument_of_a_complex_function():
    f = function(
        forward=lambda ctx, x: x * (1 + 2j), backward=lambda ctx, g: (g * (1 - 2j)).real
    ).apply
    allclose(jax.grad(lambda x: f(x).imag)(S), 2)


@pytest.mark.parametrize("make", [np.float32, lambda v: np.array(v, np.float32)])
def test_numpy_arguments_are_arrays(make):
    forward = in_style("combined", lambda x: x * x, saving())
    f = function(**forward, backward=lambda ctx, g: 3 * g).apply
    assert isinstance(f(make(2)), jax.Array)
    allclose(f(make(2)), 4)
    allclose(jax.grad(f)(make(2)), 3)


def test_numpy_arrays_that_jax_cannot_hold_are_static():
    names = np.array(["a", "b"])

    def forward(ctx, x, names):
        assert names.dtype.kind == "U"
        return x

    f = function(forward=forward, backward=lambda ctx, g: (g, None)).apply
    allclose(jax.jit(jax.grad(lambda x: f(x, names)))(S), 1)


def test_ints_only_need_no_rule():
    f = function(forward=lambda ctx, x: jnp.int32(3)).apply
    allclose(jax.grad(lambda x: x * f(x))(S), 3)


def test_a_marked_output_alone_needs_no_rule():
    def forward(ctx, x):
        out = 2 * x
        ctx.mark_non_differentiable(out)
        return out

    f = function(forward=forward).apply
    allclose(jax.grad(lambda x: x * f(x))(S), 6)
    allclose(jax.jit(jax.grad(lambda x: x * f(x)))(S), 6)


def test_forward_bound_in_any_way():
    class Undecorated(jaxfn.Function):
        def forward(ctx, x):  # noqa: N805
            ctx.k = 2
            return x

        def backward(ctx, g):  # noqa: N805
            return ctx.k * g

    class Classmethod(jaxfn.Function):
        K = 3

        @classmethod
        def forward(cls, ctx, x):
            ctx.k = cls.K
            return x

        @classmethod
        def backward(cls, ctx, g):
            return ctx.k * cls.K * g

    allclose(jax.grad(Undecorated.apply)(S), 2)
    allclose(jax.grad(lambda x: Undecorated.apply(x=x))(S), 2)
    allclose(jax.grad(Classmethod.apply)(S), 9)
    allclose(jax.grad(lambda x: Classmethod.apply(x=x))(S), 9)


def test_keywords_of_a_wrapped_class_method():
    def wrapped(rule):
        @functools.wraps(rule)
        def wrapper(*args):
            return rule(*args)

        return wrapper

    class Power(jaxfn.Function):
        @classmethod
        @wrapped
        def forward(cls, ctx, x, n=2):
            assert cls is Power
            ctx.n = n
            return x**n

        @classmethod
        @wrapped
        def backward(cls, ctx, g):
            return ctx.n * g, None

    allclose(jax.grad(lambda x: Power.apply(x=x))(S), 2)
    allclose(jax.grad(lambda x: Power.apply(x, n=5))(S), 5)
    with pytest.raises(TypeError, match="unexpected keyword argument 'ctx'"):
        Power.apply(S, ctx=1)


def test_one_function_is_static_and_a_class_method():
    def rule(first, second, third):
        return third

    def backward(ctx, g):
        return None, g

    # Static, `first` is ctx; bound to the class, `second` is.
    static = function(forward=staticmethod(rule), backward=backward)
    bound = function(forward=classmethod(rule), backward=lambda ctx, g: g)
    for _ in range(2):
        allclose(jax.grad(lambda x: static.apply(second=1, third=x))(S), 1)
        allclose(jax.grad(lambda x: bound.apply(third=x))(S), 1)


@pytest.mark.parametrize("rules", ["backward", "both", "once"])
def test_integers_beside_floats_through_every_transformation(rules):
    # JAX passes their tangents and cotangents as arrays of float0 in some of these.
    def forward(ctx, x, i):
        ctx.save_for_backward(i)
        ctx.save_for_forward(i)
        return x * i, i + 1

    def jvp(ctx, t, t_int):
        assert t_int is None
        return t * ctx.saved_tensors[0], None

    members = {"jvp": jvp} if rules == "both" else {}

    def backward(ctx, g, _):
        return g * ctx.saved_tensors[0], None

    if rules == "once":
        backward = jaxfn.once_differentiable(backward)
    f = function(forward=forward, backward=staticmethod(backward), **members).apply
    zero = np.zeros((), jax.dtypes.float0)

    def scan(x, i):
        return jax.lax.scan(lambda c, _: (f(*c), None), (x, i), None, length=3)[0]

    two, one = jnp.int32(2), jnp.float32(1)
    for g, factor in [
        (f, 2),
        (jax.jit(f), 2),
        (scan, 2 * 3 * 4),
        (jax.checkpoint(scan), 2 * 3 * 4),
    ]:
        (ct, ct_int) = jax.jit(lambda g=g: jax.vjp(g, S, two)[1]((one, zero)))()
        allclose(ct, factor)
        assert ct_int.dtype == jax.dtypes.float0
        if rules == "both":
            allclose(jax.jvp(g, (S, two), (one, zero))[1][0], factor)
            allclose(jax.linearize(g, S, two)[1](one, zero)[0], factor)


@pytest.mark.parametrize("rule", ["backward", "jvp"])
def test_a_python_number_that_is_differentiated_is_an_array_in_the_rules(rule):
    def shapes(ctx, t):
        (x,) = ctx.saved_tensors
        return 2 * t.reshape(t.shape) * x.astype(x.dtype)

    f = function(
        forward=lambda x: x.reshape(x.shape) ** 2,
        setup_context=saving(),
        **{rule: shapes},
    )
    assert jax.grad(f.apply)(3.0) == 6
    if rule == "jvp":
        assert jax.jvp(f.apply, (3.0,), (1.0,))[1] == 6
        assert jax.jvp(jax.grad(f.apply), (3.0,), (1.0,))[1] == 2


def test_saved_for_forward_is_what_jvp_finds_there():
    def forward(ctx, x):
        ctx.save_for_forward(x, 2 * x)
        ctx.save_for_backward(x)
        return x * x

    def jvp(ctx, t):
        x, twice = ctx.saved_for_forward
        return 3 * t * (x + twice)

    def backward(ctx, g):
        assert ctx.saved_for_forward == ()
        return 5 * g

    f = function(forward=forward, jvp=jvp, backward=backward).apply
    for run in (f, jax.jit(f), jax.checkpoint(f)):
        assert jax.jvp(run, (2.0,), (1.0,))[1] == 18
        assert jax.grad(run)(2.0) == 5
