"""Ordinary programs around Functions: small, whole, each beside what plain JAX gives.

Contexts, effects, constants and random programs have suites of their own in
`tests/laws`; here is what one would write to show a fault to somebody.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, sparse
from jax.experimental import pallas as pl

import jaxfn
from jaxfn._core import internals
from tests.build import SCALE, function, in_style, keep, rules_of, saving, scale
from tests.jaxprs import primitives

X = jnp.float32([1, 2, 3])
S = jnp.float32(2)


def scaled(g):
    return g * SCALE[-1]


ENGINES = {
    engine: rules_of(engine, lambda ctx, g: scaled(g), lambda ctx, t: scaled(t))
    for engine in ("backward", "jvp", "both", "derived")
}
engines = pytest.mark.parametrize("engine", ENGINES)
forwards = pytest.mark.parametrize("engine", ["jvp", "both", "derived"])


def identity(engine):
    return function(forward=lambda ctx, x: x * 1.0, **ENGINES[engine]).apply


def tangent_of(f):
    return lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1]


# ---- where and when a rule's Python runs


def test_a_hessian_runs_backward_in_the_context():
    f = identity("backward")

    def hessian(x):
        with scale(3.0):
            return jax.hessian(lambda x: f(x) ** 2)(x)

    assert hessian(1.0) == jax.jit(hessian)(1.0) == 18


@forwards
def test_forward_mode_runs_the_rule_in_the_context(engine):
    f = identity(engine)

    def tangent(x):
        with scale(3.0):
            return tangent_of(f)(x)

    def looped(x):
        return lax.scan(lambda x, _: (tangent(x), None), x, None, 1)[0]

    assert tangent(S) == jax.jit(tangent)(S) == jax.jit(looped)(S) == 3


@pytest.mark.parametrize("style", ["combined", "separate"])
def test_what_was_computed_on_the_way_is_differentiated_as_it_ran(style):
    # m = 3 sin x is saved, and is the gradient; its derivative is 3 cos x
    def save(ctx, inputs, output):
        ctx.save_for_backward(SCALE[-1] * jnp.sin(*inputs))

    members = in_style(style, lambda x: x * 1.0, save)
    f = function(backward=lambda ctx, g: g * ctx.saved_tensors[0], **members).apply

    def gradient(x):
        with scale(3.0):
            return jax.grad(f)(x)

    def looped(x):
        return lax.scan(lambda x, _: (gradient(x), None), x, None, 1)[0]

    expected = 3 * np.cos(2.0)
    for g in (gradient, jax.jit(gradient), looped):
        np.testing.assert_allclose(jax.grad(g)(S), expected, rtol=1e-6)
        np.testing.assert_allclose(jax.jvp(g, (S,), (S,))[1], 2 * expected, rtol=1e-6)


def test_a_body_that_needs_values_refuses_a_second_derivative():
    def forward(ctx, x):
        ctx.save_for_backward(jnp.sin(x) if float(x) > 0 else x)
        return x * 1.0

    f = function(forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0])
    np.testing.assert_allclose(jax.grad(f.apply)(S), np.sin(2.0), rtol=1e-6)
    with pytest.raises(NotImplementedError, match=r"`F.forward` was differentiated ag"):
        jax.grad(jax.grad(f.apply))(S)


def test_rules_of_one_call_belong_together():
    f = function(forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: 2 * g)
    call = jax.jit(lambda x: f.apply(x))
    call(S)
    f.forward = staticmethod(lambda ctx, x: 5 * x)
    f.backward = staticmethod(lambda ctx, g: 5 * g)
    assert jax.value_and_grad(call)(S) == (4, 2)
    assert jax.value_and_grad(f.apply)(S) == (10, 5)


def test_forward_is_told_of_no_other_pattern_than_the_calls():
    patterns = []

    def forward(ctx, a, b):
        patterns.append(ctx.needs_input_grad)
        if ctx.needs_input_grad[0]:
            raise RuntimeError("cannot take gradients of a")
        ctx.save_for_backward(b)
        return a * b * b

    f = function(
        forward=forward, backward=lambda ctx, g: (None, 2 * g * ctx.saved_tensors[0])
    ).apply
    gradient = jax.grad(f, 1)
    for g in (gradient, jax.jit(gradient), jax.grad(jax.jit(f), 1)):
        assert g(S, S) == 4
    assert jax.vmap(gradient)(X, X).tolist() == [2, 4, 6]
    looped = lax.scan(lambda b, _: (gradient(S, b), None), S, None, 2)[0]
    assert looped == 8
    assert set(patterns) == {(False, False), (False, True)}


@pytest.mark.parametrize("engine", ["backward", "both"])
def test_nested_functions_are_traced_as_often_as_they_are_deep(engine):
    runs = []

    def around(inner):
        def forward(ctx, x):
            runs.append(1)
            y = inner(x)
            ctx.box = {"y": y}
            return y, y

        rules = rules_of(engine, lambda ctx, g, h: g + h, lambda ctx, t: (t, t))
        f = function(forward=forward, **rules).apply
        return lambda x: f(x)[0]

    f = jnp.sin
    for depth in range(1, 6):
        f = around(f)
        runs.clear()
        jax.jit(f).trace(S)
        assert len(runs) == depth
        runs.clear()
        jax.jit(jax.grad(f)).trace(S)
        assert len(runs) <= 2 * depth


# ---- effects, and what other interpreters see


@pytest.mark.parametrize("engine", ["both", "derived"])
def test_checkify_sees_into_forward_mode(engine):
    rule = lambda ctx, g: g / ctx.saved_tensors[0]  # noqa: E731
    rules = rules_of(engine, rule, rule)
    f = function(forward=jnp.log, setup_context=saving(), **rules).apply
    tangent = tangent_of(f)
    for g in (tangent, jax.jit(tangent)):
        error, _ = checkify.checkify(g, errors=checkify.float_checks)(jnp.arange(2.0))
        assert "division by zero" in error.get()


# In these stands what a rule computes.
HOLDERS = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "cond": lambda f: lambda x, t: lax.cond(x > 0, f, f, x, t),
    "switch": lambda f: lambda x, t: lax.switch(jnp.int32(x), [f, f, f], x, t),
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda x, t: lax.scan(lambda c, _: (f(x, c), ()), t, None, 1)[0],
    "while": lambda f: (
        lambda x, t: lax.while_loop(
            lambda c: c[0], lambda c: (False, f(x, c[1])), (True, t)
        )[1]
    ),
    "jit in scan": lambda f: HOLDERS["scan"](jax.jit(f)),
}


def cubing(decorator, rules, seen, holder="plain"):
    """x -> x**3, whose forward rule notes in `seen` that it ran, and calls it again."""
    f = decorator(lambda x: x**3)

    @HOLDERS[holder]
    def scaled(x, t):
        jax.debug.callback(lambda _: seen.append(1), x)
        return 3 * x**2 * t

    if "defvjp" in rules:
        f.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))

    @f.defjvp
    def jvp(primals, tangents):
        return f(*primals), scaled(*primals, *tangents)

    return f


ORDERS = [(order, "plain") for order in (1, 2, 3, 4)]
ORDERS += [(2, holder) for holder in HOLDERS if holder != "plain"]


@pytest.mark.parametrize("rules", ["defjvp", "defvjp and defjvp"])
@pytest.mark.parametrize(("order", "holder"), ORDERS)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_nested_forward_derivatives_have_the_effects_of_plain_ones(
    rules, order, holder, wrap
):
    def effects(decorator, rules):
        seen = []
        f = cubing(decorator, rules, seen, holder)
        for _ in range(order):
            f = tangent_of(f)
        value = wrap(f)(S)
        jax.effects_barrier()
        return float(value), len(seen)

    assert effects(jaxfn.custom_function, rules) == effects(jax.custom_jvp, "defjvp")


@pytest.mark.parametrize("engine", ["both", "derived"])
def test_ordered_effects(engine, capfd):
    def noting(ctx, g):
        jax.debug.print("noted", ordered=True)
        return g

    rules = rules_of(engine, noting, noting)
    f = function(forward=lambda ctx, x: x * 1.0, **rules).apply

    def tangent(x):
        return jax.jvp(f, (x,), (x,))[1]

    def looped(x):
        return lax.scan(lambda x, _: (tangent(x), None), x, None, 2)[0]

    for g, times in ((jax.jit(tangent), 1), (jax.jit(looped), 2), (jax.grad(f), 1)):
        g(S).block_until_ready()
        jax.effects_barrier()
        assert capfd.readouterr().out.count("noted") >= times


def test_rules_that_close_over_a_traced_value_in_forward_mode():
    def tangent(x, w):
        @jaxfn.custom_function
        def f(x):
            return x * w

        f.defvjp(lambda x: (x * w, None), lambda _, g: (g * w,))
        f.defjvp(lambda x, t: (x[0] * w, t[0] * w))
        return jax.jvp(f, (x,), (jnp.ones_like(x),))[1]

    assert jax.jit(tangent)(S, S) == tangent(S, S) == 2


OURS = {"attach", "linear", "gate"}


def only_jax(f, *args):
    return not OURS & set(primitives(jax.make_jaxpr(f)(*args)))


@engines
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="a scan drops custom_jvp")
def test_an_undifferentiated_call_holds_only_jax_primitives(engine):
    assert only_jax(identity(engine), S)
    assert only_jax(jax.vmap(identity(engine)), X)
    two = function(forward=lambda ctx, x, y: (2 * x, y + 1), **ENGINES[engine]).apply
    assert only_jax(two, S, S)


@pytest.mark.parametrize("kind", ["alone", "defvjp", "defjvp", "both"])
def test_neither_does_a_decorated_one_with_a_batch_rule(kind):
    f = jaxfn.custom_function(lambda x, y: x * y)
    if kind in ("defvjp", "both"):
        f.defvjp(lambda x, y: (x * y, (x, y)), lambda r, g: (g * r[1], r[0] * g))
    if kind in ("defjvp", "both"):
        f.defjvp(lambda x, t: (x[0] * x[1], x[0] * t[1] + x[1] * t[0]))
    f.def_vmap(lambda n, batched, x, y: (3 * x * y, any(batched)))
    if not internals.SCAN_DROPS_JVP:
        assert only_jax(f, S, S)
        assert only_jax(jax.vmap(f), X, X)
    assert jax.vmap(f)(X, X).tolist() == (3 * X * X).tolist()


@engines
@pytest.mark.parametrize("mode", ["value", "grad", "jvp"])
def test_a_function_in_a_pallas_kernel_lowers_for_tpu(engine, mode):
    f = identity(engine)
    if mode == "jvp" and engine == "backward":
        return  # refused, as a custom_vjp is
    inside = {
        "value": f,
        "grad": lambda x: jax.vjp(f, x)[1](x)[0],
        "jvp": lambda x: jax.jvp(f, (x,), (x,))[1],
    }[mode]

    def kernel(i, o):
        o[...] = inside(i[...])

    assert_lowers_for_tpu(kernel, 1)


@engines
@pytest.mark.parametrize("place", ["a kernel", "jit"])
def test_so_does_a_second_derivative_of_what_forward_saved_on_its_way(engine, place):
    rule = lambda ctx, g: 2 * g * ctx.saved_tensors[0]  # noqa: E731
    save = lambda ctx, inputs, _: keep(ctx, jnp.cos(*inputs))  # noqa: E731
    rules = in_style("combined", jnp.sin, save) | rules_of(engine, rule, rule)
    f = PLACES[place](function(**rules).apply)
    second = jax.grad(lambda x: jax.grad(lambda x: f(x).sum())(x).sum())

    def kernel(i, o):
        o[...] = second(i[...])

    assert_lowers_for_tpu(kernel, 1)
    x = jnp.ones((8, 128), jnp.float32)
    out = pl.pallas_call(kernel, x, interpret=True)(x)
    np.testing.assert_allclose(out, -2 * jnp.sin(x), rtol=1e-6)


def batched_sine(*methods):
    """Make a decorated sine with a batch rule, which triples, and other rules."""
    f = jaxfn.custom_function(lambda x: jnp.sin(x))
    if "defvjp" in methods:
        f.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda cos, g: (g * cos,))
    if "defjvp" in methods:
        f.defjvp(lambda x, t: (jnp.sin(x[0]), t[0] * jnp.cos(x[0])))
    f.def_vmap(lambda n, batched, x: (3 * x, batched[0]))
    return f


BATCHED_IN_KERNEL = {
    "a Function": lambda: (
        function(
            forward=lambda x: jnp.sin(x),
            setup_context=saving(),
            backward=lambda ctx, g: g * jnp.cos(ctx.saved_tensors[0]),
            jvp=lambda ctx, t: t * jnp.cos(ctx.saved_tensors[0]),
            vmap=lambda info, dims, x: (3 * x, dims[0]),
        ).apply
    ),
    "defvjp": lambda: batched_sine("defvjp"),
    "defjvp": lambda: batched_sine("defjvp"),
    "both": lambda: batched_sine("defvjp", "defjvp"),
    "def_vmap alone": batched_sine,
}


@pytest.mark.parametrize("kind", BATCHED_IN_KERNEL)
def test_one_with_a_batch_rule_is_refused_in_a_kernel(kind):
    f = BATCHED_IN_KERNEL[kind]()
    x = jnp.ones((8, 128), jnp.float32)
    for inside in (f, jax.jit(f), jax.vmap(f)):

        def kernel(i, o, inside=inside):
            o[...] = inside(i[...])

        said = r"`(F|<lambda>)` has a batch rule .* Pallas kernel.*Call it outside"
        with pytest.raises(NotImplementedError, match=said):
            jax.make_jaxpr(pl.pallas_call(kernel, x))(x)


@pytest.mark.parametrize("derived", [False, True])
def test_a_kernel_in_backward_is_named_where_it_has_no_transpose(derived):
    x = jnp.ones(4)

    def twice(x):
        def kernel(i, o):
            o[...] = 2 * i[...]

        return pl.pallas_call(kernel, x, interpret=True)(x)

    rules = {"forward": lambda ctx, x: twice(x), "backward": lambda ctx, g: twice(g)}
    f = function(generate_jvp_rule=derived, **rules).apply
    run = jax.hessian(lambda x: f(x).sum()) if not derived else jax.jacfwd(f)
    said = r"a kernel of Pallas\)\..*Or call it in forward of a Function of its own"
    with pytest.raises(ValueError, match=said):
        run(x)


def assert_lowers_for_tpu(kernel, n):
    """Lower a kernel that takes `n` arrays."""
    x = jnp.ones((8, 128), jnp.float32)
    call = pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))
    lowered = jax.jit(call).trace(*[x] * n).lower(lowering_platforms=("tpu",))
    assert "tpu_custom_call" in lowered.as_text()


PLACES = {
    "a kernel": lambda f: f,
    "jit": jax.jit,
    "a loop": lambda f: lambda x, s: lax.fori_loop(0, 2, lambda _, x: f(x, s), x),
    "a branch": lambda f: lambda x, s: lax.cond(True, f, lambda x, _: x, x, s),
}


@engines
@pytest.mark.parametrize("place", PLACES)
def test_so_does_one_with_an_output_that_ignores_an_argument(engine, place):
    rules = rules_of(
        engine,
        lambda ctx, g: (g * ctx.saved_tensors[0], None),
        lambda ctx, t, _: t * ctx.saved_tensors[0],
    )
    save = lambda ctx, inputs, _: keep(ctx, inputs[1])  # noqa: E731
    rules |= in_style("combined", lambda x, s: x * 1.0, save)
    f = PLACES[place](function(**rules).apply)

    def kernel(i, s, o):
        o[...] = f(i[...], s[...])

    assert_lowers_for_tpu(kernel, 2)
    # Outside of the kernel the same Function is made to depend on both all the same.
    gradient = jax.grad(lambda x: (jax.vmap(f, (None, 0))(x, X) * X).sum())
    if place != "a loop":  # there it is applied twice
        assert gradient(S) == 14  # 1 + 4 + 9


def test_a_third_derivative_runs_the_rule_in_its_own_context():
    f = function(
        **in_style("combined", jnp.exp, lambda ctx, _, y: ctx.save_for_forward(y)),
        jvp=lambda ctx, t: scaled(t) * ctx.saved_tensors[0],
    ).apply

    @jax.jit
    def second(x):
        with scale(4.0):
            return tangent_of(tangent_of(f))(x)

    with scale(3.0):
        assert tangent_of(second)(0.0) == 4 * 4 * 3


@pytest.mark.parametrize("engine", ["jvp", "both"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_rule_with_an_effect_has_it_once_for_each_derivative(engine, wrap):
    seen = []

    def jvp(ctx, t):
        jax.debug.callback(lambda: seen.append(1), ordered=True)
        return t * jnp.cos(ctx.saved_tensors[0])

    backward = lambda ctx, g: g * jnp.cos(ctx.saved_tensors[0])  # noqa: E731
    rules = in_style("combined", jnp.sin, saving()) | rules_of(engine, backward, jvp)
    f = function(**rules).apply
    for order in (1, 2, 3):  # as a custom_jvp, whose rule calls the function again
        f = tangent_of(f)
        seen.clear()
        jax.block_until_ready(wrap(f)(0.5))
        jax.effects_barrier()
        assert len(seen) == order


@forwards
def test_sparsify_of_a_tangent(engine):
    f = identity(engine)
    matrix = sparse.BCOO.fromdense(jnp.eye(3))
    with scale(2.0):
        tangent = sparse.sparsify(lambda m, x: jax.jvp(f, (x,), (m @ x,))[1])
        assert tangent(matrix, X).tolist() == [2, 4, 6]


def test_a_body_with_a_batch_rule_that_writes_into_a_reference():
    @jaxfn.custom_function
    def f(x):
        ref = jax.new_ref(x)
        ref[...] = 3 * x
        return ref[...] ** 2

    f.def_vmap(lambda size, batched, x: (9 * x * x, True))
    gradient = jax.jit(jax.grad(f))(S)
    assert gradient == 36


@pytest.mark.parametrize("derived", [False, True])
def test_effects_of_a_linearized_call_happen_where_its_map_is_called(derived):
    happened = []

    def note(what):
        jax.debug.callback(lambda: happened.append(what))

    def seen(run, *args):
        happened.clear()
        found = run(*args)
        jax.effects_barrier()
        return found, happened[:]

    def backward(ctx, g):
        note("backward")
        return 3 * g

    def jvp(ctx, t):
        note("jvp")
        return 3 * t

    rules = rules_of("derived" if derived else "both", backward, jvp)
    f = function(forward=lambda ctx, x: 2 * x, **rules).apply
    (_, push), at_once = seen(jax.linearize, f, S)
    assert not at_once
    pushed = 3, ["backward" if derived else "jvp"]
    assert seen(push, jnp.float32(1)) == seen(push, jnp.float32(1)) == pushed
    (_, pull), at_once = seen(jax.vjp, f, S)
    assert not at_once
    assert seen(pull, jnp.float32(1)) == ((3,), ["backward"])
