"""A user's mistake ends in one clear error.

What torch refuses too is among the rows of parity, each under all modes.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from jaxfn._core import internals
from tests.build import function, nothing

S = jnp.float32(3)
X = jnp.float32([1, 2, 3])


def raises(kind, *parts):
    """An error with these parts in its message, in any order."""
    pattern = "".join(f"(?=.*{part})" for part in parts)
    return pytest.raises(kind, match=f"(?s){pattern}")


def tangent(f):
    return jax.jvp(f, (S,), (jnp.float32(1),))[1]


def batched(rule):
    """vmap, over two rows, of a Function with this vmap rule."""
    f = function("Batch", forward=lambda x: 2 * x, setup_context=nothing, vmap=rule)
    return jax.vmap(f.apply)(jnp.ones((2, 3)))


def one(**rules):
    """A Function of one array, whose value is the argument, with these rules."""
    return function("One", **{"forward": lambda ctx, x: 1 * x, **rules}).apply


def tree(**rules):
    """The same, in a dict."""
    return one(forward=lambda ctx, x: {"a": 1 * x}, **rules)


OTHER_VALUES = (
    "`Batch.vmap` returned other values than forward for output array 0",
    r"expected f32\[3\] for each example",
)
GIVEN = {"backward": lambda ctx, g: g, "generate_jvp_rule": True}

MUTABLE = (
    "apply got a mutable array",
    r"Pass its value, ref\[...\]",
    "a rule is to write to it, take jaxfn.custom_func",
)
BELOW_THE_RANGE = (
    r"Dimension out of range \(expected to be in range of \[-2, 1\], but got -3\)"
)

# A program, and its error.
MISTAKES = {
    "a complex tangent of what is real": (
        lambda: tangent(one(jvp=lambda ctx, t: t * 1j)),
        raises(TypeError, "`One.jvp` returned a complex tangent"),
    ),
    "a tangent of another structure": (
        lambda: tangent(tree(jvp=lambda ctx, t: {"b": t})),
        raises(ValueError, "`One.jvp` returned a tangent of another structure"),
    ),
    "arbitrary keywords": (
        lambda: function(forward=lambda ctx, x, **kw: x).apply(S, a=1),
        raises(TypeError, "unexpected keyword argument 'a'"),
    ),
    "keys that JAX can't sort": (
        lambda: jax.grad(
            lambda x: one(forward=lambda ctx, x: {1: x, "a": x}, **GIVEN)(x)[1]
        )(S),
        raises(TypeError, "keys that can't be sorted"),
    ),
    "generate_jvp_rule and jvp": (
        lambda: jax.grad(one(jvp=lambda ctx, t: t, **GIVEN))(S),
        raises(RuntimeError, "`One` has generate_jvp_rule=True and an overridden jvp"),
    ),
    "generate_jvp_rule without backward": (
        lambda: jax.jit(one(generate_jvp_rule=True))(S),
        raises(RuntimeError, "`One` has generate_jvp_rule=True and no backward"),
    ),
    "a mutable array": (
        lambda: jax.jit(one(forward=lambda ctx, ref: 1.0))(jax.new_ref(S)),
        raises(TypeError, *MUTABLE),
    ),
    "a mutable array in a list": (
        lambda: jax.jit(one(forward=lambda ctx, refs: 1.0))([jax.new_ref(S)]),
        raises(TypeError, *MUTABLE),
    ),
    "a batch dim below the range": (
        lambda: batched(lambda info, in_dims, x: (x, -3)),
        raises(IndexError, BELOW_THE_RANGE, "`Batch.vmap`"),
    ),
    "a bool for a batch dim": (
        lambda: batched(lambda info, in_dims, x: (x, True)),
        raises(TypeError, "`Batch.vmap` returned a bad out_dims", "expected an int"),
    ),
    "a batch of another structure": (
        lambda: batched(lambda info, in_dims, x: ([x], [0])),
        raises(ValueError, "`Batch.vmap` returned an output of another structure"),
    ),
    "a number for a batch": (
        lambda: batched(lambda info, in_dims, x: (2.0, None)),
        raises(ValueError, "`Batch.vmap`", "of array, got .* of static"),
    ),
    "a text for a batch": (
        lambda: batched(lambda info, in_dims, x: ("s", None)),
        raises(ValueError, "`Batch.vmap`", "of array, got .* of static"),
    ),
    "examples of another shape": (
        lambda: batched(lambda info, in_dims, x: (x.sum(1), 0)),
        raises(ValueError, *OTHER_VALUES, r"f32\[2\] with out_dims 0"),
    ),
    "one example of another shape": (
        lambda: batched(lambda info, in_dims, x: (x, None)),
        raises(ValueError, *OTHER_VALUES, r"f32\[2,3\] with out_dims None"),
    ),
    "complex examples": (
        lambda: batched(lambda info, in_dims, x: (x.astype(complex), 0)),
        raises(ValueError, *OTHER_VALUES, r"c64\[2,3\] with out_dims 0"),
    ),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    program, error = MISTAKES[mistake]
    with error:
        program()


# ---- rules


def test_without_a_backward_forward_alone_is_fine():
    assert jax.vjp(one(), S)[0] == 3


@pytest.mark.parametrize("materialize", [True, False])
def test_a_jvp_without_a_return(materialize):
    def forward(ctx, x):
        ctx.set_materialize_grads(materialize)
        return 1 * x, x > 0

    f = function("One", forward=forward, jvp=lambda ctx, t: None).apply
    words = "`One.jvp` returned None: expected a tangent for each output"
    for run in (f, jax.jit(f), jax.checkpoint(f)):
        with raises(ValueError, words, "If a `return` is missing, add it"):
            jax.jvp(lambda x, run=run: run(x)[0], (S,), (S,))


def test_none_is_the_tangent_of_what_has_none():
    f = function(forward=lambda ctx, x: x > 0, jvp=lambda ctx, t: None).apply
    assert tangent(lambda x: 2 * x + f(x)) == 2


# ---- forward and apply


MISFITS = {
    "unknown": (lambda f: f(S, zz=1), "unexpected keyword argument 'zz'"),
    "twice": (lambda f: f(S, x=S), "multiple values for argument 'x'"),
    "gap": (lambda f: f(k=2), r"missing required argument: 'x' \(position 0\)"),
    "missing": (lambda f: f(S), "missing 1 required positional argument: 'k'"),
    "too many": (lambda f: f(S, 1, 2), "positional argument"),
}


@pytest.mark.parametrize(
    "rules",
    [
        {"forward": lambda ctx, x, k: x},
        {"forward": lambda x, k: x, "setup_context": nothing},
    ],
    ids=["combined", "separate"],
)
def test_arguments_that_do_not_fit(rules):
    for call, match in MISFITS.values():
        with pytest.raises(TypeError, match=match):
            call(function(**rules).apply)


def test_a_keyword_only_array():
    f = function(forward=lambda ctx, x, *, y: x * y).apply
    for call in (
        lambda: f(S, y=S),
        lambda: f(S, y=[S]),
        lambda: jax.vmap(lambda y: f(S, y=y))(X),
    ):
        words = "kwarg-only Tensor args", "'y'", "`F.forward`"
        with raises(NotImplementedError, *words):
            call()


def test_an_array_hidden_in_an_output():
    class Hidden:
        def __init__(self, x):
            self.x = x

    f = one(forward=lambda ctx, x: Hidden(2 * x), backward=lambda ctx, g: g)
    assert f(S).x == 6
    words = "`One.forward` returned an array inside an object of type Hidden"
    with raises(TypeError, words):
        jax.grad(lambda x: f(x).x)(S)


@pytest.mark.parametrize("rule", ["forward", "vjp", "jvp", "vmap", "setup_context"])
def test_the_base_class_defines_nothing(rule):
    with pytest.raises(NotImplementedError, match=r"."):
        getattr(jaxfn.Function, rule)(None, (0,), S)


# ---- ctx


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.grad])
def test_marking_what_is_no_output_or_input(transform):
    def marking(method):
        def forward(ctx, x):
            getattr(ctx, method)(2 * x)
            return 1 * x

        return transform(one(forward=forward, backward=lambda ctx, g: g))

    words = "called ctx.mark_non_differentiable", "not an output"
    with raises(ValueError, "`One.forward`", *words):
        marking("mark_non_differentiable")(S)
    words = r"ctx.mark_dirty\(\) received a tensor that was not an input"
    with raises(ValueError, words, "`One.forward`"):
        marking("mark_dirty")(S)


@pytest.mark.parametrize(
    "method",
    [
        "save_for_backward",
        "save_for_forward",
        "mark_dirty",
        "mark_non_differentiable",
        "set_materialize_grads",
    ],
)
@pytest.mark.parametrize("rule", ["backward", "jvp"])
def test_calling_ctx_methods_in_a_derivative_rule(method, rule):
    def calling(ctx, g):
        getattr(ctx, method)(True if method == "set_materialize_grads" else g)
        return g

    with raises(RuntimeError, f"`One.{rule}` called ctx.{method}", "forward or setup"):
        jax.grad(one(**{rule: calling}))(S)


def test_a_tracer_hidden_on_ctx():
    class Hidden:
        def __init__(self, x):
            self.x = x

    def forward(ctx, x):
        ctx.hidden = Hidden(x)
        return 1 * x

    f = one(forward=forward, backward=lambda ctx, g: g * ctx.hidden.x)
    words = "OneBackward: ctx.hidden holds a traced value inside an object of type Hidd"
    with raises(TypeError, words, "register_pytree_node"):
        jax.jit(jax.grad(f))(S)
    assert jax.grad(f)(S) == 3  # concrete in an eager grad, but
    with raises(TypeError, "ctx.hidden holds a traced value"):
        jax.grad(jax.grad(f))(S)


@pytest.mark.parametrize(
    "transform", [jax.vmap, jax.jit, lambda f: jax.grad(lambda x: f(x).sum())]
)
def test_a_vmap_rule_in_the_combined_style(transform):
    f = one(backward=lambda ctx, g: g, vmap=lambda info, in_dims, x: (x, 0))
    assert f(S) == 3
    words = "it must override the setup_context staticmethod"
    with raises(RuntimeError, words, "`One`"):
        transform(f)(X)


def test_saving_more_for_fewer_perturbed_inputs():
    def forward(ctx, x, y):
        n = 1 if all(ctx.needs_input_grad) else 30
        ctx.save_for_backward(*[2.0 * x * i for i in range(n)])
        return x * y

    f = function("Odd", forward=forward, backward=lambda ctx, g: (g, 2 * g)).apply
    # One jaxpr, as jit keeps it from one derivative to the next.
    jaxpr = jax.make_jaxpr(f)(S, S)
    g = lambda *xs: internals.evaluate(jaxpr, xs)[0]  # noqa: E731
    jax.grad(g, (0, 1))(S, S)
    with raises(NotImplementedError, "`Odd` saved", "needs_input_grad"):
        jax.grad(g, 0)(S, S)


def test_a_numpy_body_under_jit_says_what_happened():
    f = function(forward=lambda ctx, x: np.sin(np.asarray(x))).apply
    assert isinstance(f(X), jax.Array)
    with pytest.raises(jax.errors.TracerArrayConversionError, match="traced array"):
        jax.jit(f)(X)


def test_functools_partial_as_a_static_argument():
    f = function(
        forward=lambda ctx, fn, x: fn(x), backward=lambda ctx, g: (None, 2 * g)
    ).apply
    assert jax.grad(lambda x: f(functools.partial(jnp.multiply, 3.0), x))(S) == 2


@pytest.mark.parametrize(
    "rules", [{"backward": lambda ctx, g: g}, {"jvp": lambda ctx, t: t}]
)
def test_what_jax_says_of_a_traced_forward_shows_where_it_is(rules):
    def forward(ctx, x):
        return x if x > 0 else -x

    f = function(forward=forward, **rules)
    line = forward.__code__.co_firstlineno
    where = rf"the function {f.__name__} at .*test_errors\.py:{line} for "
    with pytest.raises(jax.errors.TracerBoolConversionError, match=where):
        jax.jit(f.apply)(X[0])
