"""Under vmap, each example has its own output, and its rule runs alone."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxfn._core import internals
from jaxfn.autograd.graph import saved_tensors_hooks
from tests import wrong
from tests.build import function, in_style, keep, nothing, rules_of, saving
from tests.sizes import only

# The others of its many cells run with --full.

X = jnp.float32([1, 2, 3])
S = jnp.float32(2)
BACKWARD, JVP = wrong.BACKWARD, wrong.JVP


engines = pytest.mark.parametrize("engine", ["backward", "jvp", "both", "derived"])
forwards = pytest.mark.parametrize("engine", ["jvp", "both", "derived"])
wraps = pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit], ids=["eager", "compiled"]
)


def two(engine):
    """Return a Function (x, y) -> (2 x, y + 1) whose rules have their own factors."""
    rules = rules_of(
        engine,
        lambda ctx, g, h: (BACKWARD * 2 * g, BACKWARD * h),
        lambda ctx, t, u: (JVP * 2 * t, JVP * u),
    )
    return function(forward=lambda ctx, x, y: (2 * x, y + 1), **rules).apply


def keeping(*places):
    """A setup_context that keeps the inputs in these places."""
    return lambda ctx, inputs, output: keep(ctx, *[inputs[i] for i in places])


def scaling(engine, value):
    """Return a Function (x, s) -> value(x, s), whose derivative is s in x."""
    rules = rules_of(
        engine,
        lambda ctx, g: (g * ctx.saved_tensors[0], None),
        lambda ctx, t, _: t * ctx.saved_tensors[0],
    )
    return function(**in_style("combined", value, keeping(1)), **rules).apply


def reverse(engine):
    return JVP if engine == "jvp" else BACKWARD


PLACES = {"at once": lambda f: f, "jit": jax.jit, "checkpoint": jax.checkpoint}


@engines
@wraps
@pytest.mark.parametrize("place", PLACES)
def test_an_output_with_a_derivative_is_batched_wherever_an_argument_is(
    place, engine, wrap
):
    f = PLACES[place](two(engine))
    values = wrap(jax.vmap(f, (0, None)))(X, S)[1]
    assert values.tolist() == [3, 3, 3]
    with pytest.raises(ValueError, match="axis spec None|out_axes.*None"):
        wrap(jax.vmap(f, (0, None), (0, None)))(X, S)

    def loss(x, y):
        first, second = jax.vmap(f, (0, None))(x, y)
        return (first * X).sum() + second[0]

    # `[0]` takes it out of the vmap, and then it counts once.
    factor = reverse(engine)
    of_x, of_y = wrap(jax.grad(loss, (0, 1)))(X, S)
    assert of_x.tolist() == [2 * factor, 4 * factor, 6 * factor]
    assert of_y == factor


@engines
@wraps
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("style", ["combined", "separate", "untraceable", "vmap rule"])
def test_a_marked_or_integer_output_stays_unbatched(style, place, engine, wrap):
    def value(x, y):
        return 2 * x, y + 1, y.astype(int)

    def save(ctx, inputs, output):
        if style == "untraceable" and not internals.is_tracer(output[1]):
            assert float(output[1]) == 3
        ctx.mark_non_differentiable(output[1])

    rules = rules_of(
        engine,
        lambda ctx, g, *_: (BACKWARD * 2 * g, None),
        lambda ctx, t, _: (JVP * 2 * t, None, None),
    )
    rules |= in_style("combined" if style == "combined" else "separate", value, save)
    if style == "vmap rule":
        rules["vmap"] = lambda info, dims, x, y: (value(x, y), (dims[0], None, None))
    mapped = wrap(
        jax.vmap(PLACES[place](function(**rules).apply), (0, None), (0, None, None))
    )
    assert [x.tolist() for x in mapped(X, S)] == [[2, 4, 6], 3, 2]
    of_x, of_y = jax.grad(lambda x, y: (mapped(x, y)[0] * X).sum(), (0, 1))(X, S)
    assert of_x.tolist() == (2 * reverse(engine) * X).tolist()
    assert of_y == 0


@pytest.mark.thinned(1)
@forwards
@wraps
def test_tangents_may_differ_where_values_do_not(engine, wrap):
    f, factor = two(engine), BACKWARD if engine == "derived" else JVP

    def push(x, t):
        return jax.jvp(lambda y: f(x, y)[1], (S,), (t,))

    values, tangents = wrap(jax.vmap(push))(X, X)
    assert values.tolist() == [3, 3, 3]
    assert tangents.tolist() == [factor, 2 * factor, 3 * factor]


@engines
@wraps
def test_second_derivatives_of_an_output_that_ignores_what_is_mapped(engine, wrap):
    rules = rules_of(
        engine,
        lambda ctx, g, h: (None, BACKWARD * h * ctx.saved_tensors[0]),
        lambda ctx, t, u: (0 * t, JVP * u * ctx.saved_tensors[0]),
    )
    value = lambda x, y: (2 * x, y * y / 2)  # noqa: E731
    f = function(**in_style("combined", value, keeping(1)), **rules).apply

    def shared(y):
        return jax.vmap(f, (0, None))(X, y)[1][0]

    factor = reverse(engine)
    assert wrap(jax.grad(shared))(S) == 2 * factor
    assert wrap(jax.grad(jax.grad(shared)))(S) == factor
    assert wrap(jax.hessian(shared))(S) == factor


# Plain custom_vjp gives each example the sum of all cotangents.
@pytest.mark.thinned(1)
@engines
@pytest.mark.parametrize("jit_inside", [False, True])
def test_a_derivative_that_differs_between_examples_keeps_them_apart(
    engine, jit_inside
):
    rules = rules_of(
        engine,
        lambda ctx, g: (g * ctx.saved_tensors[0], g),
        lambda ctx, t, u: t * ctx.saved_tensors[0] + u,
    )
    f = function(**in_style("combined", lambda x, s: x, keeping(1)), **rules).apply
    f = jax.jit(f) if jit_inside else f

    def loss(s):
        return (jax.vmap(f, (None, 0))(S, s) * X).sum()

    def of_x(x):
        return (jax.vmap(f, (None, 0))(x, X) * X).sum()

    for wrap in (lambda f: f, jax.jit):
        assert wrap(jax.grad(loss))(X).tolist() == [1, 2, 3]
        assert jax.grad(wrap(loss))(X).tolist() == [1, 2, 3]
        assert wrap(jax.grad(of_x))(S) == jax.grad(wrap(of_x))(S) == 1 + 4 + 9


@wraps
@pytest.mark.parametrize("differs", ["backward", "jvp"])
def test_one_of_two_derivatives_that_differs_keeps_examples_apart(differs, wrap):
    def of(rule):
        return lambda ctx: ctx.saved_tensors[0] if rule == differs else 1.0

    backward, jvp = of("backward"), of("jvp")
    f = function(
        **in_style("combined", lambda x, y: y * 1.0, keeping(0)),
        backward=lambda ctx, g: (None, g * backward(ctx)),
        jvp=lambda ctx, _, u: u * jvp(ctx),
    ).apply

    def loss(y):
        return (jax.vmap(f, (0, None))(X, y) * X).sum()

    gradient, tangent = (14, 6) if differs == "backward" else (6, 14)
    assert wrap(jax.grad(loss))(S) == gradient
    assert wrap(lambda y: jax.jvp(loss, (y,), (jnp.ones(()),))[1])(S) == tangent


@pytest.mark.parametrize("engine", ["backward", "jvp"])
def test_a_place_along_the_mapped_axis_keeps_examples_apart(engine):
    rules = rules_of(
        engine,
        lambda ctx, g: (None, lax.axis_index("i") * g),
        lambda ctx, _, u: lax.axis_index("i") * u,
    )
    f = function(forward=lambda ctx, x, y: y * 1.0, **rules).apply
    weights = jnp.float32([1, 10, 100])

    def loss(y):
        return (jax.vmap(f, (0, None), axis_name="i")(X, y) * weights).sum()

    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        assert gradient(S) == 210


@engines
def test_a_sum_over_the_mapped_axis_leaves_examples_apart(engine):
    # The output is made of both arguments, and is not batched all the same.
    f = scaling(engine, lambda x, s: lax.psum(x * s, "i"))
    weights = jnp.float32([1, 10, 100])
    for wrap in (lambda f: f, jax.jit, jax.checkpoint):

        def loss(x, wrap=wrap):
            mapped = jax.vmap(wrap(f), (None, 0), axis_name="i")
            return (mapped(x, X) * weights).sum()

        assert jax.grad(loss)(S) == (weights * X).sum()


@engines
def test_examples_of_an_outer_vmap_are_kept_apart_too(engine):
    f = scaling(engine, lambda x, _: x)
    scales, weights = jnp.float32([10, 20]), jnp.arange(6.0).reshape(2, 3)

    def loss(x):
        def inner(s):
            return jax.vmap(lambda x: f(x, s))(x)

        return (jax.vmap(inner)(scales) * weights).sum()

    expected = (scales[:, None] * weights).sum(0).tolist()
    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.jit(loss))):
        assert gradient(X).tolist() == expected


@engines
@wraps
def test_second_derivatives_that_differ_keep_examples_apart(engine, wrap):
    f = scaling(engine, lambda x, _: x * 1.0)
    weights = jnp.float32([1, 10, 100])

    def loss(x):
        return (jax.vmap(f, (None, 0))(x, X) ** 2 * weights).sum()

    expected = (2 * X**2 * weights).sum()
    assert wrap(jax.grad(jax.grad(loss)))(S) == expected
    assert wrap(jax.hessian(loss))(S) == expected


@engines
@wraps
@pytest.mark.parametrize("beside", ["a batched value", "a batched derivative"])
def test_the_cotangent_of_what_examples_share_is_added_once(engine, wrap, beside):
    """Each example would hold all of it, and JAX sums them."""
    by_value = beside == "a batched value"

    def value(x, s):
        return (x + s if by_value else 3 * s), 2 * s

    def factor(ctx):
        return 1 if by_value else ctx.saved_tensors[0]

    rules = rules_of(
        engine,
        lambda ctx, g, h: (BACKWARD * g, BACKWARD * factor(ctx) * g + 2 * BACKWARD * h),
        lambda ctx, t, u: (JVP * t + JVP * factor(ctx) * u, 2 * JVP * u),
    )
    f = function(**in_style("combined", value, keeping(0)), **rules).apply
    factors = 3 if by_value else X.sum()
    for inner in (f, jax.jit(f)):

        def loss(s, inner=inner):
            y, z = jax.vmap(inner, (0, None))(X, s)
            return y.sum() + z.sum()

        assert wrap(jax.grad(loss))(S) == reverse(engine) * (factors + 2 * 3)


# ---- where a vmap comes later than the trace


def looped(f):
    """The function in a scan of one step."""

    def run(*args):
        return lax.scan(lambda _, __: (None, f(*args)), None, None, length=1)[1]

    return lambda *args: jax.tree.map(lambda y: y[0], run(*args))


KEPT = {"jit": jax.jit, "checkpoint": jax.checkpoint, "scan": looped}
kept = pytest.mark.parametrize("where", only(KEPT, lambda where: where == "jit"))
some_engines = pytest.mark.parametrize(
    "engine",
    only(
        ["backward", "jvp", "both", "derived"],
        lambda engine: engine in ("backward", "both"),
    ),
)


READ = {
    "an argument": lambda x, y: x,
    "a product": lambda x, y: x * y / S,
    "what a scan made": lambda x, y: lax.scan(lambda c, _: (c, c), x, None, 1)[1][0],
    "a scan in a call": lambda x, y: jax.jit(READ["what a scan made"])(x, y),
    "a branch": lambda x, y: lax.cond(y > 0, lambda: x, lambda: y),
    "a choice": lambda x, y: lax.cond(x > 2, lambda: 3 * y / S, lambda: _low(x, y)),
    "steps": lambda x, y: lax.while_loop(lambda c: c < x, lambda c: c + 1, 0 * y),
    "a while": lambda x, y: lax.while_loop(
        lambda c: c[1] < 2, lambda c: (x * y / S, c[1] + 1), (y, 0)
    )[0],
    "the third step": lambda x, y: lax.scan(
        lambda c, _: ((c[0], c[0], c[1], c[2]), None), (x, y, y, y), None, 3
    )[0][3],
    "a checkpoint": lambda x, y: jax.checkpoint(lambda x, y: (y, x + 0 * y))(x, y)[1],
    "what a call made": lambda x, y: jax.jit(lambda x, y: (y, x + 0 * y))(x, y)[1],
}


def _low(x, y):
    return lax.cond(x > 1, lambda: 2 * y / S, lambda: y / S)


def _step(carry, _):
    """One of a loop; what is the same after it, JAX takes out of the loop."""
    return (carry[0] * 2, carry[1] + 1), None


APART = {
    "a scan": lambda x, y: lax.scan(_step, (x, y), None, 2)[0][1],
    "a call": lambda x, y: jax.jit(lambda x, y: (x, y + 0))(x, y)[1],
    "a scan in a call": lambda x, y: jax.jit(APART["a scan"])(x, y),
    "a while": lambda x, y: lax.while_loop(
        lambda c: c[2] < 1, lambda c: (2 * c[0], c[1] + 1, c[2] + 1), (x, y, 0)
    )[1],
    "a branch": lambda x, y: lax.cond(y > 0, lambda: (x, y + 1), lambda: (y, x))[1],
    "a checkpoint": lambda x, y: jax.checkpoint(lambda x, y: (2 * x, y + 1))(x, y)[1],
}


def block_solve(x, y):
    """Two systems of equations, solved together and apart from each other."""
    twice = lambda xs: tuple(2 * x for x in xs)  # noqa: E731
    half = lambda _, xs: tuple(x / 2 for x in xs)  # noqa: E731
    found = lax.custom_linear_solve(twice, (x, y), half, half)
    return tuple(2 * x for x in found)


PAIRED = {
    "barrier": lambda x, y: lax.optimization_barrier((x, y)),
    "device_put": lambda x, y: jax.device_put((x, y)),
    "solve": block_solve,
}


def _one_more(pair):
    def body(x, y):
        x, y = pair(x, y)
        return x, y + 1

    return body


BODIES = {
    **{name: lambda x, y, f=f: (f(x, y), y + 1) for name, f in READ.items()},
    **{f"{name}, apart": lambda x, y, f=f: (x, f(x, y)) for name, f in APART.items()},
    **{name: _one_more(f) for name, f in PAIRED.items()},
}
"""What the rules read, and the output."""


@some_engines
@pytest.mark.parametrize(
    "where", only([*KEPT, "at once"], lambda where: where in ("jit", "at once"))
)
@pytest.mark.parametrize("body", BODIES)
def test_each_has_its_own_output_by_what_the_rules_read(body, engine, where):
    """Whatever makes the output, whether the vmap comes before the trace or later."""
    rules = rules_of(
        engine,
        lambda ctx, g: (None, BACKWARD * g * ctx.saved_tensors[0]),
        lambda ctx, t, u: JVP * u * ctx.saved_tensors[0],
    )

    def forward(ctx, x, y):
        saved, out = BODIES[body](x, y)
        keep(ctx, saved)
        return out

    f = KEPT.get(where, lambda f: f)(function(forward=forward, **rules).apply)
    gradient = jax.grad(lambda y: (jax.vmap(f, (0, None))(X, y) * X).sum())
    assert gradient(S) == 14 * reverse(engine)  # 1 + 4 + 9
    with pytest.raises(ValueError, match="axis spec None"):
        jax.vmap(f, (0, None), None)(X, S)


def batched(engine, forward, flags, backward, jvp):
    """Return a Function of the separate style whose vmap rule gives these out_dims."""

    def vmap(info, in_dims, *args):
        found = flags(*[d is not None for d in in_dims])
        return forward(*args), jax.tree.map(lambda b: 0 if b else None, found)

    return function(
        forward=forward,
        setup_context=saving(),
        vmap=vmap,
        **rules_of(engine, backward, jvp),
    ).apply


@engines
@pytest.mark.parametrize(
    "where", only([*KEPT, "at once"], lambda where: where in ("jit", "at once"))
)
def test_each_has_its_own_of_what_a_vmap_rule_shares_where_derivatives_differ(
    engine, where
):
    f = batched(
        engine,
        lambda x, y: y + 1,
        lambda x, y: y,
        lambda ctx, g: (None, BACKWARD * g * ctx.saved_tensors[0]),
        lambda ctx, t, u: JVP * u * ctx.saved_tensors[0],
    )
    f = KEPT.get(where, lambda f: f)(f)
    gradient = jax.grad(lambda y: (jax.vmap(f, (0, None))(X, y) * X).sum())
    assert gradient(S) == jax.jit(gradient)(S) == 14 * reverse(engine)  # 1 + 4 + 9
    with pytest.raises(ValueError, match="axis spec None"):
        jax.vmap(f, (0, None), None)(X, S)


@engines
@pytest.mark.parametrize(
    "where", only([*KEPT, "at once"], lambda where: where in ("jit", "at once"))
)
def test_the_outer_one_of_two_vmaps_keeps_what_a_vmap_rule_gave_apart(engine, where):
    f = batched(
        engine,
        lambda x, y: 2 * x,
        lambda x, y: x,
        lambda ctx, g: (BACKWARD * g * ctx.saved_tensors[1], None),
        lambda ctx, t, u: JVP * t * ctx.saved_tensors[1],
    )
    f = KEPT.get(where, lambda f: f)(f)
    mapped = jax.vmap(jax.vmap(f, (0, None)), (None, 0))
    weights = jnp.float32([[1, 0, 2], [3, 1, 0]])
    gradient = jax.grad(lambda x: (mapped(x, X[:2]) * weights).sum())
    factor = reverse(engine)  # the sum of weights * (1, 2), over the examples of y
    assert gradient(X).tolist() == [7 * factor, 2 * factor, 2 * factor]
    assert jax.jit(gradient)(X).tolist() == gradient(X).tolist()


@kept
def test_a_later_vmap_may_batch_some_of_the_other_arguments(where):
    def backward(ctx, g, h):
        x, z = ctx.saved_tensors
        return h * z, h * x, 2 * g

    rules = in_style("combined", lambda x, z, y: (2 * y, x * z), keeping(0, 1))
    f = KEPT[where](function(backward=backward, **rules).apply)

    def loss(axes, *args):
        first, second = jax.vmap(f, axes)(*args)
        return (X * (first + second)).sum()

    gradient = jax.grad(loss, (1, 2, 3))
    of_x, of_z, of_y = gradient((0, None, None), X, S, S)
    assert (of_x.tolist(), of_z, of_y) == ([2, 4, 6], 14, 2 * 6)
    of_x, of_z, of_y = gradient((None, 0, None), S, X, S)
    assert (of_x, of_z.tolist(), of_y) == (14, [2, 4, 6], 2 * 6)
    of_x, of_z, of_y = gradient((0, 0, None), X, X, S)
    assert (of_x.tolist(), of_z.tolist(), of_y) == ([1, 4, 9], [1, 4, 9], 2 * 6)


@pytest.mark.parametrize("style", ["combined", "separate"])
def test_hooks_pack_what_is_saved_once(style):
    packed = []

    def pack(x):
        packed.append(x.shape)
        return x

    f = function(
        backward=lambda ctx, g, h: (2 * g, h),
        **in_style(style, lambda x, y: (2 * x, y + 1), keeping(0, 1)),
    ).apply
    with saved_tensors_hooks(pack, lambda x: x):
        jax.jit(jax.grad(lambda x, y: f(x, y)[1]))(S, S)
        jax.grad(lambda x, y: jax.vmap(f, (0, None))(x, y)[1].sum())(X, S)
    assert len(packed) == 4


@pytest.mark.parametrize("where", ["forward", "setup_context", "backward"])
def test_a_rule_sees_no_needs_that_nobody_has(where):
    seen = []

    def read(ctx, *_):
        seen.append(ctx.needs_input_grad)

    def backward(ctx, g, h):
        if where == "backward":
            read(ctx)
        return BACKWARD * g, BACKWARD * h

    style = "separate" if where == "setup_context" else "combined"
    save = nothing if where == "backward" else read
    rules = in_style(style, lambda x, y: (2 * x, y + 1), save)
    f = function(backward=backward, **rules).apply
    gradient = jax.grad(lambda y: f(S, y)[1])
    assert jax.jit(gradient)(S) == BACKWARD
    assert jax.grad(lambda y: (jax.vmap(f, (0, None))(X, y)[1]).sum())(S) == 6
    assert (False, True) in seen
    assert set(seen) <= {(False, True), (False, False)}  # the latter of a primal


# ---- what is not shared, and what was saved of it


@wraps
@pytest.mark.parametrize("keep_jaxpr", [lambda f: f, jax.jit], ids=["at once", "jit"])
@pytest.mark.parametrize("style", ["combined", "separate"])
def test_a_saved_output_that_is_not_shared_keeps_the_others_apart(
    style, keep_jaxpr, wrap
):
    def backward(ctx, g, h):
        (second,) = ctx.saved_tensors
        return 7 * h, second * g  # `second` belongs to each example: see the 7

    save = lambda ctx, inputs, output: ctx.save_for_backward(output[1])  # noqa: E731
    rules = in_style(style, lambda x, y: (y + 1, 3 * y), save)
    f = function(backward=backward, **rules).apply
    weights = jnp.float32([1, 10, 100])

    def loss(x, y):
        first, second = jax.vmap(keep_jaxpr(f), (0, None))(x, y)
        return (weights * (first + second)).sum()

    of_x, of_y = wrap(jax.grad(loss, (0, 1)))(X, S)
    assert of_x.tolist() == [7, 70, 700]
    assert of_y == 6 * 111


@wraps
@pytest.mark.parametrize("keep_jaxpr", [lambda f: f, jax.jit], ids=["at once", "jit"])
@pytest.mark.parametrize("marked", [False, True])
def test_an_output_without_derivative_beside_one_with(marked, keep_jaxpr, wrap):
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        mean = 2 * y
        if marked:
            ctx.mark_non_differentiable(mean)
        return mean, x * y

    def backward(ctx, _, h):
        x, y = ctx.saved_tensors
        return h * y, h * x

    f = keep_jaxpr(function(forward=forward, backward=backward).apply)

    def loss(x, y):
        mean, product = jax.vmap(f, (0, None))(x, y)
        return (mean * product * X).sum()

    of_x, of_y = wrap(jax.grad(loss, (0, 1)))(X, S)
    assert of_x.tolist() == [8, 16, 24]  # 2 y * y * X
    assert of_y == 2 * 2 * 14


def test_an_output_of_a_function_in_forward_is_not_batched_by_its_tracer():
    """JAX gives a tracer of the vmap for what it does not batch, too."""

    def with_rule(style, value):
        return function(
            **in_style(style, value, keeping(0, 1)),
            backward=lambda ctx, g: (5 * ctx.saved_tensors[0] * g, 3 * g),
        ).apply

    f = with_rule("combined", with_rule("separate", lambda x, y: 2 * y))
    weights = jnp.float32([1, 10, 100])
    gradient = jax.grad(lambda x, y: (jax.vmap(f, (0, None))(x, y) * weights).sum())
    assert gradient(X, S).tolist() == [5, 100, 1500]


@pytest.mark.skipif(
    "sum_match" not in inspect.signature(jax.vmap).parameters,
    reason="this JAX has no sum_match",
)
def test_sum_match_sums_an_output_that_ignores_what_is_mapped():
    """A limit, which the page of differences states: nothing in JAX tells us of it."""
    mapped = jax.vmap(two("backward"), (0, None), (0, None), sum_match=True)
    assert mapped(X, S)[1] == 3 * 3


def test_a_dtype_without_zero_keeps_its_value():
    f = function(
        forward=lambda ctx, x, y: x.astype(jnp.float8_e8m0fnu),
        backward=lambda ctx, g: (3 * g.astype("float32"), None),
    ).apply
    x, ys = jnp.float32([1, 2, 4]), jnp.ones(2)

    def batched(x):
        return jax.vmap(f, (None, 0))(x, ys).astype("float32")

    for g in (batched, jax.jit(batched)):
        assert (g(x) == x).all()
        assert (jax.grad(lambda x, g=g: g(x).sum())(x) == 6).all()
