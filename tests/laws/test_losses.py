"""What would be lost in silence, and is right or refused instead."""

import collections
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import jaxfn
from tests.build import SCALE, function, in_style, nothing, rules_of, saving, scale

X, ONE = jnp.float32(0.5), jnp.float32(1)
PRODUCT = in_style("combined", lambda x, w: x * w, saving())


# ---- NumPy values have no derivative

REFUSED = r"`F\.\w+` was differentiated again, and can't be traced"


@pytest.mark.parametrize(
    "saved",
    [lambda x, y: y, lambda x, y: np.cos(np.asarray(x)), lambda x, y: np.asarray(x)],
)
@pytest.mark.parametrize(
    "second",
    [
        lambda f: jax.grad(jax.grad(f)),
        jax.hessian,
        lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (ONE,)),
    ],
)
def test_the_second_derivative_of_a_saved_numpy_value_is_refused(saved, second):
    f = function(
        "F",
        **in_style(
            "combined",
            lambda x: np.exp(np.asarray(x)),
            lambda ctx, inputs, y: ctx.save_for_backward(saved(*inputs, y)),
        ),
        backward=lambda ctx, g: g * ctx.saved_tensors[0],
    ).apply
    with pytest.raises(NotImplementedError, match=REFUSED):
        second(f)(X)
    expected = saved(np.asarray(X), np.exp(0.5))
    np.testing.assert_allclose(jax.grad(f)(X), expected, rtol=1e-6)


def test_a_numpy_constant_of_a_jax_body_has_no_derivative():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.scale = np.float32(3)
        return ctx.scale * x**2

    f = function(
        forward=forward,
        backward=lambda ctx, g: 2 * ctx.scale * ctx.saved_tensors[0] * g,
    ).apply
    assert jax.grad(jax.grad(f))(X) == 6


# ---- a body that needs values can't be traced to see which array is which


@pytest.mark.parametrize("positive", [lambda x: x > 0, lambda x: float(x) > 0])
def test_a_mark_that_may_mean_two_outputs_is_refused(positive):
    def forward(ctx, x):
        y = jnp.sin(x) if positive(x) else 2 * x
        z = lax.stop_gradient(y)
        ctx.mark_non_differentiable(z)
        return y, z

    f = function("F", forward=forward, backward=lambda ctx, g, _: g).apply
    with pytest.raises(ValueError, match=r"`F\.forward` marked an output that is the"):
        jax.grad(lambda x: f(x)[0])(X)


def test_a_detached_array_that_can_not_be_told_apart_is_refused():
    def forward(ctx, x):
        ctx.save_for_backward(lax.stop_gradient(x))
        return x**3 if x > 0 else x

    backward = lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g  # noqa: E731
    f = function("F", forward=forward, backward=backward).apply
    assert jax.grad(f)(X) == 0.75
    with pytest.raises(
        NotImplementedError, match=r"`F\.forward` was differentiated ag"
    ):
        jax.grad(jax.grad(f))(X)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_a_mark_of_neither_of_two_outputs_is_refused(transform):
    def forward(ctx, x):
        y = 2 * x
        ctx.mark_non_differentiable(lax.stop_gradient(y))
        return y, y

    f = function(forward=forward, backward=lambda ctx, g, h: 2 * (g + h)).apply
    with pytest.raises(ValueError, match="a value that is not an output"):
        transform(jax.grad(lambda x: f(x)[0]))(X)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.complex64])
def test_a_saved_intermediate_of_any_dtype_has_its_own_derivative(dtype):
    def forward(ctx, x):
        m = 3 * x
        ctx.save_for_backward(m)
        return m * x

    f = function(
        forward=forward, backward=lambda ctx, g: 2 * ctx.saved_tensors[0].conj() * g
    ).apply
    x = jnp.asarray(0.5, dtype)
    gradient = jax.grad(lambda x: f(x).real)
    assert gradient(x) == 3
    assert jax.grad(lambda x: gradient(x).real)(x) == 6


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_an_intermediate_and_the_same_detached(transform):
    def forward(ctx, x):
        m = jnp.cos(x)
        ctx.save_for_backward(m, lax.stop_gradient(m))
        return jnp.sin(x)

    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * (a + 3 * b) / 4

    f = function(forward=forward, backward=backward).apply
    got = transform(jax.grad(jax.grad(f)))(X)
    np.testing.assert_allclose(got, -np.sin(0.5) / 4, rtol=1e-6)


# ---- what a rule does to an attribute is local


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: [2.0, 3.0, 5.0], lambda s: s.pop(0)),
        (lambda: {"a": [2.0, 3.0]}, lambda s: s["a"].pop(0)),
        (lambda: ([2.0, 3.0], "text"), lambda s: s[0].pop(0)),
        (
            lambda: types.SimpleNamespace(scale=2.0),
            lambda s: (s.scale, setattr(s, "scale", 7.0))[0],
        ),
    ],
)
@pytest.mark.parametrize("rules", ["backward", "both", "derived"])
def test_a_rule_that_writes_to_an_attribute_is_not_seen_again(make, change, rules):
    def forward(ctx, x):
        ctx.state = make()
        return 2 * x

    rule = lambda ctx, g: change(ctx.state) * g  # noqa: E731
    f = function(forward=forward, **rules_of(rules, rule, rule)).apply
    pull = jax.vjp(f, X)[1]
    assert pull(ONE) == pull(ONE) == (2,)
    branch = jax.grad(lambda x: lax.cond(x > 0, f, lambda x: x, x))
    assert branch(X) == jax.jit(jax.grad(f))(X) == 2
    if rules != "backward":
        assert jax.jvp(f, (X,), (ONE,))[1] == jax.jvp(branch, (X,), (ONE,))[0] == 2


# ---- arrays in containers that are no pytrees

HOLDERS = {
    "deque": lambda x: collections.deque([x]),
    "values": lambda x: {"a": x}.values(),
    "proxy": lambda x: types.MappingProxyType({"a": x}),
    "iterator": lambda x: iter([x]),
    "zip": lambda x: zip([x], [1], strict=True),
    "in a deque": lambda x: collections.deque([types.MappingProxyType({"a": [x]})]),
}


# JAX warns of some of them, that it will refuse them too
@pytest.mark.filterwarnings("ignore:Python iterable type:DeprecationWarning")
@pytest.mark.parametrize("holder", HOLDERS)
def test_an_array_in_any_container_is_found(holder):
    hold = HOLDERS[holder]

    def forward(ctx, x):
        ctx.held = hold(jnp.cos(x))
        return jnp.sin(x)

    f = function("F", forward=forward, backward=lambda ctx, g: g).apply
    for second in (jax.grad(jax.grad(f)), jax.jit(jax.grad(f))):
        with pytest.raises(TypeError, match=r"ctx\.held holds a traced value inside"):
            second(X)
    returns = function(
        "G", forward=lambda ctx, x: hold(3 * x), backward=lambda ctx, g: 3 * g
    ).apply
    with pytest.raises(TypeError, match=r"`G\.forward` returned an array inside"):
        jax.grad(lambda x: next(iter(returns(x))))(X)


def test_an_array_of_objects_is_looked_into():
    def forward(ctx, x):
        ctx.held = np.empty(1, object)
        ctx.held[0] = jnp.cos(x)
        return jnp.sin(x)

    f = function("F", forward=forward, backward=lambda ctx, g: g * ctx.held[0]).apply
    np.testing.assert_allclose(jax.grad(f)(X), np.cos(0.5), rtol=1e-6)
    with pytest.raises(TypeError, match=r"ctx\.held holds a traced value inside"):
        jax.grad(jax.grad(f))(X)


# ---- forward is a function


def test_random_numbers_of_numpy_in_forward_are_drawn_once():
    random = np.random.default_rng(0)

    def forward(ctx, x):
        mask = 2 * jnp.asarray(random.random(64) > 0.5, x.dtype) * x
        ctx.save_for_backward(mask)
        return mask * x

    backward = lambda ctx, g: g * ctx.saved_tensors[0]  # noqa: E731
    f = function("F", forward=forward, backward=backward).apply
    x = jnp.ones(64)
    gradient = jax.grad(lambda x: f(x).sum())
    assert set(gradient(x).tolist()) == {0, 2}
    for wrap in (lambda f: f, jax.jit):
        # The gradient is what was saved, 2 r x for a random r, so this is 2 r, too.
        first, pull = wrap(lambda x: jax.vjp(gradient, x))(x)
        assert pull(jnp.ones(64))[0].tolist() == first.tolist()


def test_random_numbers_and_needs_input_grad():
    random = np.random.default_rng(0)

    def forward(ctx, x, w):
        mask = jnp.asarray(random.random(64) > 0.5, x.dtype)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(mask)
        return mask * x * w

    backward = lambda ctx, g: (g * ctx.saved_tensors[0],) * 2  # noqa: E731
    f = function("F", forward=forward, backward=backward).apply

    def loss(w):
        return jax.value_and_grad(lambda x: f(x, w).sum())(jnp.ones(64))[0]

    # w is differentiated outside; forward is told so, and draws once.
    value, gradient = jax.value_and_grad(loss)(jnp.ones(64))
    assert set(gradient.tolist()) == {0, 1}
    assert gradient.sum() == value


def masked(draw, keep):
    """x**2, with a setup_context that needs values and saves x and a mask."""

    def setup_context(ctx, inputs, output):
        (x,) = inputs
        assert bool((x > 0).all())
        keep(ctx, x, draw(x.shape))

    def backward(ctx, g):
        x, mask = ctx.saved_tensors or (ctx.x, ctx.mask)
        return 2 * g * x * mask

    return function(
        forward=lambda x: x**2, setup_context=setup_context, backward=backward
    ).apply


def keep_saved(ctx, x, mask):
    ctx.save_for_backward(x, jnp.asarray(mask))


def keep_attributes(ctx, x, mask):
    ctx.x, ctx.mask = x, mask


SECOND = {
    "reverse over reverse": lambda f: lambda x: jax.vjp(jax.grad(f), x)[1](x)[0],
    "forward over reverse": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1],
}


@pytest.mark.parametrize("keep", [keep_saved, keep_attributes])
@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
def test_a_setup_context_that_needs_values_is_not_run_again(keep, second):
    runs = []

    def draw(shape):
        runs.append(shape)
        return np.float32(range(*shape))

    f, x = masked(draw, keep), jnp.ones(4)
    assert jax.grad(lambda x: f(x).sum())(x).tolist() == [0, 2, 4, 6]
    assert len(runs) == 1
    with pytest.raises(NotImplementedError, match=REFUSED):
        second(lambda x: (f(x) ** 2).sum())(x)


NEEDY = {
    "bool": lambda x: x if x > 0 else 0.0,
    "float": lambda x: float(x) * x,
    "item": lambda x: x.item(),
    "text": lambda x: float(f"{float(x)}"),
    "NumPy": lambda x: np.asarray(x),
    "a mask": lambda x: x[None][x[None] > 0][0],
    "NumPy, and a detached input": lambda x: (np.asarray(x), lax.stop_gradient(x))[1],
    "a mark of an alias": None,
}


@pytest.mark.parametrize("style", ["combined", "separate"])
@pytest.mark.parametrize("needy", NEEDY)
@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
def test_what_needs_values_has_no_second_derivative(second, needy, style):
    """What it keeps would count as a constant, or as another array."""

    def save(ctx, x, y):
        if NEEDY[needy] is not None:
            ctx.kept = NEEDY[needy](x)
            ctx.save_for_backward(x)
            return y
        assert y > 0
        z = lax.stop_gradient(y)
        ctx.mark_non_differentiable(z)
        ctx.save_for_backward(x)
        ctx.kept = 1.0
        return y, z

    def backward(ctx, g, *_):
        return 5 * g * ctx.saved_tensors[0] * ctx.kept

    if style == "combined":
        members = {"forward": lambda ctx, x: save(ctx, x, x * x)}
    else:
        members = {"forward": lambda x: x * x, "setup_context": None}
        members["setup_context"] = lambda ctx, inputs, y: save(ctx, *inputs, y)
    f = function("F", backward=backward, **members).apply
    with pytest.raises((NotImplementedError, ValueError), match=f"{REFUSED}|`F.* mark"):
        second(lambda x: jax.tree.leaves(f(x))[0])(X)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.grad])
@pytest.mark.parametrize("style", ["combined", "separate"])
def test_integers_have_values_all_the_same(style, wrap):
    def save(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.n = int(inputs[1])

    def backward(ctx, g):
        return g * ctx.n * ctx.saved_tensors[0] ** (ctx.n - 1), None

    members = in_style(style, lambda x, n: x ** int(n), save)
    f = function("F", backward=backward, **members).apply
    assert wrap(jax.grad(f))(X, jnp.int32(3)) == (0.75 if wrap is not jax.grad else 3)


def test_a_forward_that_needs_values_is_differentiated_twice_beside_setup_context():
    f = function(
        "F",
        forward=lambda x: jnp.asarray(np.asarray(x) ** 3) if x > 0 else x,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        backward=lambda ctx, g: 5 * g * ctx.saved_tensors[0] ** 2,
    ).apply
    assert jax.grad(jax.grad(f))(2 * ONE) == 20
    assert jax.jvp(jax.grad(f), (2 * ONE,), (ONE,))[1] == 20


def both_with_symbolic_zeros(now):
    """The same, decorated: its fwd is told which of its arguments are perturbed."""
    f = jaxfn.custom_function(lambda x, w: now() * x * w)

    def fwd(x, w):
        return now() * x.value * w.value, (x.value, w.value, now())

    def bwd(res, g):
        x, w, c = res
        return c * g * w, c * g * x

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    f.defjvp(lambda p, t: (f(*p), now() * (p[0] * t[1] + p[1] * t[0])))
    return f


def reading(style, varies):
    """x * w, times a factor that is set around the call if it varies."""

    def now():
        return SCALE[-1] if varies else 3.0

    def save(ctx, inputs, output):
        (x, w), (needs_x, needs_w) = inputs, ctx.needs_input_grad
        ctx.factor = now()
        ctx.save_for_backward(x if needs_w else None, w if needs_x else None)

    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grads = (None if w is None else g * w, None if x is None else g * x)
        return tuple(None if h is None else ctx.factor * h for h in grads)

    if style == "decorator":
        return both_with_symbolic_zeros(now)
    members = in_style(style, lambda x, w: now() * x * w, save)
    return function("F", backward=backward, **members).apply


STYLES = ["combined", "separate", "decorator"]
styles = pytest.mark.parametrize("style", STYLES)


def penalty(style, varies, between=lambda f: f):
    """The gradient by w of the gradient by x: 18 by the factor of one run."""
    f = reading(style, varies)

    def inner(x, w):
        with scale(3.0):
            return jax.grad(lambda x: f(x, w) ** 2 / 2)(x)

    return jax.grad(lambda w: between(inner)(ONE, w))


@styles
@pytest.mark.parametrize("varies", [False, True])
def test_forward_is_told_of_what_is_differentiated_outside(style, varies):
    assert penalty(style, varies)(ONE) == 18
    assert jax.jit(penalty(style, varies))(ONE) == 18
    assert jax.grad(penalty(style, varies))(ONE) == 18


@styles
@pytest.mark.parametrize("between", [jax.jit, jax.checkpoint])
def test_a_jit_that_hides_what_is_differentiated_outside_is_refused(style, between):
    said = "asked which arguments are differentiated.*Save the same whatever"
    with pytest.raises(RuntimeError, match=said):
        penalty(style, False, between)(ONE)


def test_it_is_the_same_derivative_if_the_same_is_saved():
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return tuple(
            3 * g * y if needed else None
            for y, needed in zip((w, x), ctx.needs_input_grad, strict=True)
        )

    f = function("F", **PRODUCT, backward=backward).apply
    inner = jax.jit(jax.grad(lambda x, w: f(x, w) ** 2 / 2))
    assert jax.grad(lambda w: inner(ONE, w))(ONE) == 3 + 9


# ---- what a rule closes over


def enclosed(rule, w):
    def helper(g):
        return g * w

    rules = {
        "backward": lambda ctx, g: g * w,
        "backward by a helper": lambda ctx, g: helper(g),
        "backward by a default": lambda ctx, g, w=w: g * w,
        "jvp": lambda ctx, t: t * w,
    }
    return function(
        "F", forward=lambda ctx, x: 2 * x, **{rule.split()[0]: rules[rule]}
    ).apply


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
@pytest.mark.parametrize("how", ["", " by a helper", " by a default"])
def test_a_backward_that_outlives_what_it_closes_over_is_refused(transform, how):
    rule = "backward" + how

    def scanned(x):
        return lax.scan(lambda c, w: (enclosed(rule, w)(c), None), x, ws)[0]

    def mapped(x):
        return jax.vmap(lambda w: enclosed(rule, w)(x))(ws).sum()

    ws = jnp.arange(1.0, 4)
    for f in (scanned, mapped):
        with pytest.raises(RuntimeError, match=r"`F\.backward` closes over a traced"):
            transform(jax.grad(f))(X)


def test_a_rule_may_close_over_what_is_there_when_it_runs():
    ws = jnp.arange(1.0, 4)
    got = jax.vmap(lambda w: jax.grad(enclosed("backward", w))(X))(ws)
    assert got.tolist() == [1, 2, 3]
    got = jax.vmap(lambda w: jax.jvp(enclosed("jvp", w), (X,), (ONE,))[1])(ws)
    assert got.tolist() == [1, 2, 3]
    assert jax.jit(lambda w: jax.grad(enclosed("backward", w))(X))(5.0) == 5


# ---- transposes


def test_a_transpose_with_respect_to_what_was_saved_is_refused():
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x

    def jvp(ctx, s, t):
        x, w = ctx.saved_tensors
        return s * w + t * x

    f = function("F", **PRODUCT, backward=backward, jvp=jvp).apply

    def tangent(w):
        return jax.jvp(lambda x: f(x, w), (ONE,), (ONE,))[1]

    with pytest.raises(NotImplementedError, match="`F` was transposed with respect"):
        jax.linear_transpose(tangent, ONE)(ONE)
    assert jax.vjp(tangent, ONE)[1](ONE) == (1,)


def test_a_backward_that_jax_can_not_transpose_is_named():
    f = function(
        "F",
        forward=lambda ctx, x: 1 * x,
        backward=lambda ctx, g: jax.pure_callback(abs, g, g),
        generate_jvp_rule=True,
    ).apply
    with pytest.raises(ValueError, match=r"`F\.backward` can't be transposed"):
        jax.jvp(f, (jnp.ones(3),), (jnp.ones(3),))


# ---- another call of what is no function


def drawing():
    """A draw that is another number at each call."""
    drawn = iter(range(1, 100))
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return lambda: io_callback(lambda: np.float32(next(drawn)), shape)


@pytest.mark.parametrize("engine", ["both", "derived"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_the_draw_of_a_rule_is_not_made_again_for_its_derivative(engine, wrap):
    draw = drawing()
    rule = lambda ctx, g: draw() * ctx.saved_tensors[0] * g  # noqa: E731
    rules = in_style("combined", lambda x: 1 * x, saving())
    f = function("F", **rules, **rules_of(engine, rule, rule)).apply

    def tangent(x):
        return jax.jvp(f, (x,), (ONE,))[1]

    assert wrap(tangent)(ONE) == 1
    with pytest.raises(NotImplementedError, match="`F` uses the result"):
        wrap(lambda x: jax.jvp(tangent, (x,), (ONE,)))(ONE)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("inner", [lambda f: f, jax.jit], ids=["plain", "in jit"])
def test_the_draw_of_a_function_with_a_batch_rule_is_not_made_again(wrap, inner):
    draw = drawing()
    f = jaxfn.custom_function(inner(lambda x: draw() * x * x))
    f.def_vmap(lambda n, batched, x: (draw() * x * x, batched[0]))
    assert wrap(f)(ONE) == 1
    for g in (f, lambda x: jax.vmap(f)(x[None])[0]):
        said = "uses the result of an io_callback"
        with pytest.raises(NotImplementedError, match=said):
            wrap(jax.value_and_grad(g))(ONE)


# ---- a gradient of one array for a container of several


@pytest.mark.parametrize(
    ("forward", "backward", "args"),
    [
        # A flat gradient for each array, whose None looks like one too many.
        (
            lambda ctx, p, q: p[0] * p[1] * q,
            lambda ctx, g: (3 * g, 5 * g, None),
            ((X, ONE), X),
        ),
        (lambda ctx, p: p[0] * p[1], lambda ctx, g: (3 * g, None), ((X, ONE),)),
        (lambda ctx, p: p["a"] * p["b"], lambda ctx, g: 3 * g, ({"a": X, "b": ONE},)),
    ],
    ids=["for each array", "and None", "a dict"],
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_one_gradient_is_not_copied_to_all_arrays_of_a_container(
    forward, backward, args, wrap
):
    f = function("F", forward=forward, backward=backward).apply
    with pytest.raises(ValueError, match="a gradient of another structure than its"):
        wrap(jax.grad(f, tuple(range(len(args)))))(*args)


def test_one_tangent_is_not_copied_to_all_outputs_of_a_container():
    f = function(
        "F",
        forward=lambda ctx, x: {"a": 2 * x, "b": 3 * x},
        jvp=lambda ctx, t: 2 * t,
    ).apply
    with pytest.raises(ValueError, match="a tangent of another structure than output"):
        jax.jvp(f, (X,), (ONE,))


# ---- a batch rule beside a batched value that is no argument


def doubled_by_a_rule(how):
    """11 n x, or 7 n x by the batch rule, with a static n."""
    if how == "nondiff":
        f = jaxfn.custom_function(lambda n, x: 11 * n * x, nondiff_argnums=(0,))
        f.defjvp(lambda n, p, t: (f(n, *p), 5 * n * t[0]))
        f.def_vmap(lambda size, batched, n, x: (7 * n * x, True))
        return f
    f = function(
        "F",
        forward=lambda scaled, x: scaled(x),
        setup_context=nothing,
        backward=lambda ctx, g: (None, 3 * g),
        vmap=lambda info, dims, scaled, x: (7 * scaled(x), 0),
    ).apply
    if how == "closure of an argument":
        return lambda n, x: f(lambda x: 11 * n * x, x)
    return lambda n, x: function(
        "F",
        forward=lambda x: 11 * n * x,
        setup_context=nothing,
        backward=lambda ctx, g: 3 * g,
        vmap=lambda info, dims, x: (7 * n * x, 0),
    ).apply(x)


BATCHED = {
    "vmap": jax.vmap,
    "jit of vmap": lambda g: jax.jit(jax.vmap(g)),
    "vmap of jit": lambda g: jax.vmap(jax.jit(g)),
    "vmap of checkpoint": lambda g: jax.vmap(jax.checkpoint(g)),
    "vmap of scan": lambda g: jax.vmap(
        lambda n: jax.lax.scan(lambda y, _: (y + g(n), None), 0.0, None, length=1)[0]
    ),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "how", ["nondiff", "closure of a class", "closure of an argument"]
)
@pytest.mark.parametrize("way", BATCHED)
def test_a_batch_rule_is_not_left_out(how, way):
    f = doubled_by_a_rule(how)
    assert f(X, ONE) == 5.5
    assert jax.jit(lambda n: f(n, ONE))(X) == 5.5
    for g in (lambda n: f(n, ONE), lambda n: f(n, n)):
        with pytest.raises(jaxfn.ClosedOverError, match="closes over a traced value"):
            BATCHED[way](g)(jnp.arange(3.0))


def test_a_function_with_a_batch_rule_alone_is_differentiated_by_its_closure():
    def scaled(n):
        f = jaxfn.custom_function(lambda x: 11 * n * x)
        f.def_vmap(lambda size, batched, x: (7 * x, True))
        return f(ONE)

    for wrap in (lambda f: f, jax.jit):
        assert jax.grad(wrap(scaled))(X) == 11
        assert jax.jvp(wrap(scaled), (X,), (ONE,))[1] == 11


# ---- once_differentiable, nondiff_argnums and generate_jvp_rule are never ignored


def test_once_differentiable_holds_beside_a_reference():
    @jaxfn.once_differentiable
    def bwd(x, g):
        return 3 * g * x, None

    f = jaxfn.custom_function(lambda x, ref: x * x)
    f.defvjp(lambda x, ref: (x * x, x), bwd)
    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(NotImplementedError, match="a reference from outside"):
            wrap(jax.grad(jax.grad(lambda x: f(x, jax.new_ref(0.0)))))(X)


@pytest.mark.parametrize("option", ["nondiff_argnums", "nondiff_argnames"])
def test_nondiff_arguments_of_rules_in_the_terms_of_torch_are_refused(option):
    nondiff = {option: 0 if option == "nondiff_argnums" else "n"}
    backward = lambda ctx, g: (3 * g, 5 * g)  # noqa: E731
    with pytest.raises(jaxfn.RuleError, match="need no declaration"):
        jaxfn.custom_function(lambda n, x: 11 * n * x, **nondiff, backward=backward)
    f = jaxfn.custom_function(lambda n, x: 11 * n * x, **nondiff)
    with pytest.raises(jaxfn.RuleError, match="need no declaration"):
        f.backward(backward)


def test_generate_jvp_rule_without_a_reverse_rule_is_refused():
    f = jaxfn.custom_function(lambda x: 11 * x, generate_jvp_rule=True)
    f.def_vmap(lambda size, batched, x: (7 * x, True))
    with pytest.raises(jaxfn.RuleError, match="expected a reverse rule to derive"):
        f(X)


# ---- a derivative by what a rule closes over


KINDS = ["backward", "jvp", "both", "derived"]


def scaled_by_a_closure(kind, w):
    """The derivative of the Function is 3 w x."""
    rule = lambda ctx, g: 3 * w * ctx.saved_tensors[0] * g  # noqa: E731
    rules = rules_of(kind, rule, rule) | in_style(
        "combined", lambda x: 11 * x, saving()
    )
    return function("F", **rules).apply


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outer", [jax.grad, jax.jacfwd])
@pytest.mark.parametrize(
    "inner",
    [
        jax.jit,
        lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, 1)[0],
        lambda f: lambda x: lax.cond(x > 0, f, f, x),
    ],
    ids=["jit", "scan", "cond"],
)
def test_a_rule_that_closes_over_what_is_differentiated(kind, outer, inner):
    def loss(w):
        return jax.grad(inner(scaled_by_a_closure(kind, w)))(jnp.float32(2))

    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(jaxfn.ClosedOverError, match="that value is being diff"):
            wrap(outer(loss))(jnp.float32(5))


def jitted_map(f):
    return lambda x: jax.jit(jax.vjp(f, x)[1])(ONE)[0]


def jitted_linear_map(f):
    return lambda x: jax.jit(jax.linearize(f, x)[1])(ONE)


def jitted_jvp(f):
    return jax.jit(lambda x: jax.jvp(f, (x,), (ONE,))[1])


@pytest.mark.parametrize(
    ("kind", "derivative"),
    [(k, d) for k in KINDS for d in (jax.grad, jitted_map)]
    + [(k, d) for k in KINDS[1:] for d in (jitted_linear_map, jitted_jvp)],
)
def test_it_is_right_where_nothing_is_lost(kind, derivative):
    def loss(w):
        return derivative(scaled_by_a_closure(kind, w))(jnp.float32(2))

    assert jax.grad(loss)(jnp.float32(5)) == 6
    if derivative is not jitted_map:  # in a jit, it does not show that nothing is lost
        assert jax.jit(jax.grad(loss))(jnp.float32(5)) == 6
