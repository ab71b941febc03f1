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
from tests.build import function

S = jnp.float32(3)
X = jnp.float32([1, 2, 3])


def mul(**rules):
    """A Function of two arrays and a static value, with these rules."""
    return function("Mul", forward=lambda ctx, a, k, b: a * b, **rules).apply


def grad(f):
    return jax.grad(lambda a, b: f(a, "k", b), (0, 1))(S, S)


def raises(kind, *parts):
    """An error with these parts in its message, in any order."""
    pattern = "".join(f"(?=.*{part})" for part in parts)
    return pytest.raises(kind, match=f"(?s){pattern}")


# ---- backward


def test_without_a_backward_forward_alone_is_fine():
    f = function(forward=lambda ctx, x: 1 * x).apply
    assert jax.vjp(f, S)[0] == 3


def test_backward_returns_another_structure():
    f = function(
        "Tree", forward=lambda ctx, p: p["a"], backward=lambda ctx, g: {"b": g}
    ).apply
    with raises(ValueError, "`Tree.backward`", "another structure", "`p`"):
        jax.grad(lambda x: f({"a": x}))(S)


def test_backward_returns_complex_for_real():
    f = mul(backward=lambda ctx, g: (g * 1j, None, g))
    with raises(TypeError, "`Mul.backward` returned a complex gradient", r"f32\[\]"):
        grad(f)


# ---- jvp


def tangent(f):
    return jax.jvp(f, (S,), (jnp.float32(1),))[1]


def test_jvp_returns_complex_for_real():
    f = function("One", forward=lambda ctx, x: x, jvp=lambda ctx, t: t * 1j).apply
    with raises(TypeError, "`One.jvp` returned a complex tangent"):
        tangent(f)


def test_jvp_returns_another_structure():
    f = function(
        "One", forward=lambda ctx, x: {"a": 1 * x}, jvp=lambda ctx, t: {"b": t}
    ).apply
    with raises(ValueError, "`One.jvp` returned a tangent of another structure"):
        jax.jvp(f, (S,), (S,))


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


@pytest.mark.parametrize("style", ["combined", "separate"])
def test_arguments_that_do_not_fit(style):
    if style == "combined":
        f = function(forward=lambda ctx, x, k: x).apply
    else:
        f = function(forward=lambda x, k: x, setup_context=lambda *a: None).apply
    with pytest.raises(TypeError, match="unexpected keyword argument 'zz'"):
        f(S, zz=1)
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        f(S, x=S)
    with pytest.raises(
        TypeError, match=r"missing required argument: 'x' \(position 0\)"
    ):
        f(k=2)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'k'"):
        f(S)
    with pytest.raises(TypeError, match="positional argument"):
        f(S, 1, 2)


def test_arbitrary_keywords():
    f = function(forward=lambda ctx, x, **kw: x).apply
    with pytest.raises(TypeError, match="unexpected keyword argument 'a'"):
        f(S, a=1)


def test_a_keyword_only_array():
    f = function(forward=lambda ctx, x, *, y: x * y).apply
    for call in (
        lambda: f(S, y=S),
        lambda: f(S, y=[S]),
        lambda: jax.vmap(lambda y: f(S, y=y))(X),
    ):
        with raises(
            NotImplementedError, "kwarg-only Tensor args", "'y'", "`F.forward`"
        ):
            call()


def test_an_array_hidden_in_an_output():
    class Hidden:
        def __init__(self, x):
            self.x = x

    f = function(
        "Hide", forward=lambda ctx, x: Hidden(2 * x), backward=lambda ctx, g: g
    )
    assert f.apply(S).x == 6
    with raises(
        TypeError, "`Hide.forward` returned an array inside an object of type Hidden"
    ):
        jax.grad(lambda x: f.apply(x).x)(S)


def test_an_array_in_a_dict_that_jax_cannot_flatten():
    f = function(forward=lambda ctx, x: {1: x, "a": x}, backward=lambda ctx, g: g).apply
    with raises(TypeError, "keys that can't be sorted"):
        jax.grad(lambda x: f(x)[1])(S)


@pytest.mark.parametrize("rule", ["forward", "vjp", "jvp", "vmap", "setup_context"])
def test_the_base_class_defines_nothing(rule):
    with pytest.raises(NotImplementedError, match=r"."):
        getattr(jaxfn.Function, rule)(None, (0,), S)


# ---- ctx


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.grad])
def test_marking_what_is_no_output_or_input(transform):
    def forward(ctx, x):
        ctx.mark_non_differentiable(2 * x)
        return 1 * x

    f = function("Mark", forward=forward, backward=lambda ctx, g: g).apply
    with raises(
        ValueError,
        "`Mark.forward`",
        "called ctx.mark_non_differentiable",
        "not an output",
    ):
        transform(f)(S)

    def dirty(ctx, x):
        out = 2 * x
        ctx.mark_dirty(out)
        return out

    f = function("Mark", forward=dirty, backward=lambda ctx, g: g).apply
    with raises(
        ValueError,
        r"ctx.mark_dirty\(\) received a tensor that was not an input",
        "`Mark.forward`",
    ):
        transform(f)(S)


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

    f = function("Late", forward=lambda ctx, x: 1 * x, **{rule: calling}).apply
    with raises(RuntimeError, f"`Late.{rule}` called ctx.{method}", "forward or setup"):
        jax.grad(f)(S)


def test_a_tracer_hidden_on_ctx():
    class Hidden:
        def __init__(self, x):
            self.x = x

    def forward(ctx, x):
        ctx.hidden = Hidden(x)
        return 1 * x

    f = function(
        "Hide", forward=forward, backward=lambda ctx, g: g * ctx.hidden.x
    ).apply
    with raises(
        TypeError,
        r"HideBackward: ctx.hidden holds a traced value inside an "
        "object of type Hidden",
        "register_pytree_node",
    ):
        jax.jit(jax.grad(f))(S)
    assert jax.grad(f)(S) == 3  # concrete in an eager grad, but
    with raises(TypeError, "ctx.hidden holds a traced value"):
        jax.grad(jax.grad(f))(S)


def test_both_generate_jvp_rule_and_jvp():
    f = function(
        "Gen",
        forward=lambda ctx, x: x,
        backward=lambda ctx, g: g,
        jvp=lambda ctx, t: t,
        generate_jvp_rule=True,
    ).apply
    with raises(RuntimeError, "`Gen` has generate_jvp_rule=True and an overridden jvp"):
        jax.grad(f)(S)


def test_generate_jvp_rule_without_backward():
    f = function("Gen", forward=lambda ctx, x: x, generate_jvp_rule=True).apply
    with raises(RuntimeError, "`Gen` has generate_jvp_rule=True and no backward"):
        jax.jit(f)(S)


@pytest.mark.parametrize("wrap", [lambda ref: ref, lambda ref: [ref]])
def test_a_traced_mutable_array(wrap):
    f = function("Ref", forward=lambda ctx, x, ref: 2 * x, backward=lambda ctx, g: g)
    words = "apply got a mutable array", r"Pass its value, ref\[...\]"
    with raises(TypeError, *words, "a rule is to write to it, take jaxfn.custom_func"):
        jax.jit(lambda x, ref: f.apply(x, wrap(ref)))(S, jax.new_ref(S))


# ---- vmap


def batched(rule, forward=lambda x: 2 * x, **more):
    f = function(
        "Batch",
        forward=forward,
        setup_context=lambda ctx, inputs, output: None,
        vmap=rule,
        **more,
    ).apply
    return jax.vmap(f)(jnp.ones((2, 3)))


def test_a_vmap_rule_with_a_dim_below_the_range():
    words = (
        r"Dimension out of range \(expected to be in range of \[-2, 1\], but got -3\)"
    )
    with raises(IndexError, words, "`Batch.vmap`"):
        batched(lambda info, in_dims, x: (x, -3))


def test_a_vmap_rule_with_a_bool_for_a_dim():
    with raises(TypeError, "`Batch.vmap` returned a bad out_dims", "expected an int"):
        batched(lambda info, in_dims, x: (x, True))


def test_a_vmap_rule_with_another_output_structure():
    with raises(ValueError, "`Batch.vmap` returned an output of another structure"):
        batched(lambda info, in_dims, x: ([x], [0]))


@pytest.mark.parametrize("result", [2.0, "s"])
def test_a_vmap_rule_with_a_static_value_for_an_array(result):
    with raises(ValueError, "`Batch.vmap`", "of array, got .* of static"):
        batched(lambda info, in_dims, x: (result, None))


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (lambda x: (x.sum(1), 0), r"f32\[2\] with out_dims 0"),
        (lambda x: (x, None), r"f32\[2,3\] with out_dims None"),
        (lambda x: (x.astype(complex), 0), r"c64\[2,3\] with out_dims 0"),
    ],
    ids=["shape", "unbatched shape", "complex"],
)
def test_a_vmap_rule_with_other_examples_than_forward(result, got):
    with raises(
        ValueError,
        "`Batch.vmap` returned other values than forward for output array 0",
        r"expected f32\[3\] for each example",
        got,
    ):
        batched(lambda info, in_dims, x: result(x))


@pytest.mark.parametrize(
    "transform", [jax.vmap, jax.jit, lambda f: jax.grad(lambda x: f(x).sum())]
)
def test_a_vmap_rule_in_the_combined_style(transform):
    f = function(
        "Old",
        forward=lambda ctx, x: 2 * x,
        backward=lambda ctx, g: g,
        vmap=lambda info, in_dims, x: (x, 0),
    ).apply
    assert f(S) == 6
    with raises(
        RuntimeError, "it must override the setup_context staticmethod", "`Old`"
    ):
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
