"""One test for each message: a user's mistake ends in one clear error."""

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


@pytest.mark.parametrize(
    ("result", "got"),
    [((), 0), ((S,), 1), (S, 1), ([S, None, S], 1), ((S, None, S, S), 4)],
)
def test_backward_returns_a_wrong_number_of_gradients(result, got):
    expected = (
        "function MulBackward returned an incorrect number of gradients "
        rf"\(expected 3, got {got}\)"
    )
    with raises(RuntimeError, expected, "`Mul.backward`"):
        grad(mul(backward=lambda ctx, g: result))
    with pytest.raises(ValueError, match=expected):
        grad(mul(backward=lambda ctx, g: result))


def test_further_none_are_accepted():
    a, b = grad(mul(backward=lambda ctx, g: (g, None, 2 * g, None, None)))
    assert (a, b) == (1, 2)


@pytest.mark.parametrize("shape", [(), (1,), (2,), (3, 1)])
def test_backward_returns_a_wrong_shape(shape):
    f = function(
        "Mul",
        forward=lambda ctx, k, x: 2 * x,
        backward=lambda ctx, g: (None, jnp.zeros(shape)),
    ).apply
    with raises(
        ValueError,
        r"Function MulBackward returned an invalid gradient at index 1 - got "
        rf"{list(shape)} but expected shape compatible with \[3\]".replace(
            "[", r"\[", 1
        ),
        r"`x`",
        r"expected f32\[3\]",
    ):
        jax.grad(lambda x: f("k", x).sum())(X)


@pytest.mark.parametrize("value", [1.0, "text", {"a": 1}])
def test_backward_returns_no_array(value):
    with raises(
        TypeError,
        rf"expected Variable or None \(got {type(value).__name__}\)",
        "`Mul.backward`",
        "`a`",
    ):
        grad(mul(backward=lambda ctx, g: (value, None, g)))


def test_backward_returns_a_gradient_for_a_static_argument():
    with raises(
        ValueError,
        "function MulBackward returned a gradient different than None at position 2, "
        "but the corresponding forward input was not a Variable",
        r"index 1 \(`k`\)",
    ):
        grad(mul(backward=lambda ctx, g: (g, g, g)))


def test_backward_returns_a_gradient_for_none():
    f = function(forward=lambda ctx, x, y: x, backward=lambda ctx, g: (g, g)).apply
    with raises(ValueError, "different than None at position 2"):
        jax.grad(lambda x: f(x, None))(S)


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


def test_backward_has_too_few_parameters():
    f = function(forward=lambda ctx, x: (x, x), backward=lambda ctx, g: g).apply
    with pytest.raises(
        TypeError, match="takes 2 positional arguments but 3 were given"
    ):
        jax.grad(lambda x: f(x)[0])(S)


def test_no_backward():
    f = function("Nothing", forward=lambda ctx, x: 1 * x).apply
    with raises(
        NotImplementedError,
        "You must implement either the backward or vjp method for your custom "
        "autograd.Function to use it with backward mode AD",
        "`Nothing.backward` is missing",
    ):
        jax.grad(f)(S)
    jax.jit(f)(S)
    jax.vjp(f, S)  # forward alone is fine


def test_both_backward_and_vjp():
    f = function(
        "Twice",
        forward=lambda ctx, x: 1 * x,
        backward=lambda ctx, g: g,
        vjp=lambda ctx, g: g,
    ).apply
    f(S)
    with raises(
        RuntimeError,
        "Implementing both 'backward' and 'vjp' for a custom Function is not allowed",
        "`Twice.backward` and `Twice.vjp` are both defined",
    ):
        jax.grad(f)(S)


def test_exceptions_of_rules_keep_their_type():
    def forward(ctx, x):
        raise KeyError("mine")

    def backward(ctx, g):
        raise ZeroDivisionError("mine")

    with pytest.raises(KeyError, match="mine"):
        function(forward=forward).apply(S)
    f = function(forward=lambda ctx, x: 1 * x, backward=backward).apply
    with pytest.raises(ZeroDivisionError, match="mine"):
        jax.jit(jax.grad(f))(S)


# ---- jvp


def tangent(f):
    return jax.jvp(f, (S,), (jnp.float32(1),))[1]


@pytest.mark.parametrize(
    "mode", [tangent, lambda f: jax.jit(tangent, static_argnums=0)(f)]
)
def test_forward_mode_with_backward_only(mode):
    f = function("Back", forward=lambda ctx, x: 1 * x, backward=lambda ctx, g: g).apply
    with pytest.raises(TypeError, match="can't apply forward-mode autodiff") as info:
        mode(f)
    notes = " ".join(info.value.__notes__)
    assert "`Back`" in notes
    assert "generate_jvp_rule = True" in notes
    assert "jvp staticmethod" in notes
    assert "You must implement the jvp function" in notes  # torch's words


@pytest.mark.parametrize(
    ("result", "got"), [(lambda t: t, 1), (lambda t: (t, t, t), 3)]
)
def test_jvp_returns_a_wrong_number_of_tangents(result, got):
    f = function(
        "Two", forward=lambda ctx, x: (1 * x, 1 * x), jvp=lambda ctx, t: result(t)
    ).apply
    with raises(
        RuntimeError,
        "Function's jvp returned an invalid number of forward gradients "
        rf"\(expected 2 but got {got}\)",
        "`Two.jvp`",
    ):
        tangent(f)


def test_jvp_returns_a_tuple_of_two_for_one_output():
    f = function(forward=lambda ctx, x: 1 * x, jvp=lambda ctx, t: (t, t)).apply
    with raises(RuntimeError, r"\(expected 1 but got 2\)"):
        tangent(f)


def test_jvp_returns_a_tangent_for_an_output_without_derivative():
    f = function(
        "Int", forward=lambda ctx, x: (x, jnp.int32(1)), jvp=lambda ctx, t: (t, t)
    )
    with raises(
        RuntimeError,
        "Function's jvp returned a gradient at position 1, but  the corresponding "
        "forward output is not a differentiable Tensor",
        "`Int.jvp`",
    ):
        tangent(f.apply)


def test_a_tangent_for_a_static_output_is_ignored():
    f = function(
        forward=lambda ctx, x: (2 * x, "s"), jvp=lambda ctx, t: (2 * t, t)
    ).apply
    assert tangent(lambda x: f(x)[0]) == 2


def test_jvp_returns_no_array():
    f = function("One", forward=lambda ctx, x: x, jvp=lambda ctx, t: 1.0).apply
    with raises(
        TypeError,
        r"expected Variable or None \(got float\) for grad output 0",
        "`One.jvp`",
    ):
        tangent(f)


def test_jvp_returns_a_wrong_shape():
    f = function("One", forward=lambda ctx, x: x, jvp=lambda ctx, t: jnp.ones(2)).apply
    with raises(
        ValueError,
        "Trying to set a forward gradient that has a different size than that of the "
        "original Tensor, this is not supported",
        r"Tensor is of size \[\] while the given forward gradient is of size \[2\]",
        "`One.jvp`",
    ):
        tangent(f)


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


def test_none_is_a_zero_tangent():
    f = function(
        forward=lambda ctx, x: (1 * x, 1 * x), jvp=lambda ctx, t: (2 * t, None)
    )
    assert tangent(lambda x: f.apply(x)[0]) == 2
    assert tangent(lambda x: f.apply(x)[1]) == 0


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


def test_no_forward():
    for f in (jaxfn.Function.apply, function().apply, jax.jit(function().apply)):
        with raises(
            NotImplementedError,
            "You must implement the forward function",
            "forward` is missing",
        ):
            f(S)


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


def test_instances():
    f = function("Old", forward=lambda ctx, x: 2 * x)
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        instance = f()
    with raises(
        RuntimeError,
        "Legacy autograd function with non-static forward method is deprecated",
        "`Old.apply",
    ):
        instance(S)
    assert instance.apply(S) == 6


@pytest.mark.parametrize("rule", ["forward", "vjp", "jvp", "vmap", "setup_context"])
def test_the_base_class_defines_nothing(rule):
    with pytest.raises(NotImplementedError, match=r"."):
        getattr(jaxfn.Function, rule)(None, (0,), S)


# ---- ctx


def test_saving_what_is_no_array():
    f = function("Save", forward=lambda ctx, x: ctx.save_for_backward(x, 3)).apply
    with raises(
        TypeError,
        "save_for_backward can only save variables, but argument 1 is of type int",
        "`Save.forward`",
    ):
        f(S)
    f = function("Save", forward=lambda ctx, x: ctx.save_for_forward(x, 3)).apply
    with raises(
        AssertionError,
        "save_for_forward expects all arguments to be tensors",
        "`Save.forward`",
    ):
        f(S)


def test_marking_what_is_no_array():
    f = function(forward=lambda ctx, x: ctx.mark_dirty(3)).apply
    with raises(TypeError, "mark_dirty can only accept variables, but argument "):
        f(S)
    f = function(forward=lambda ctx, x: ctx.mark_non_differentiable(3)).apply
    with raises(TypeError, "mark_non_differentiable only accepts variable arguments"):
        f(S)


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


def test_set_materialize_grads_takes_a_bool():
    f = function("Flag", forward=lambda ctx, x: ctx.set_materialize_grads(0)).apply
    with raises(
        TypeError, "set_materialize_grads in `Flag.forward`", "expected a bool"
    ):
        f(S)


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


def test_a_tracer_hidden_in_a_closure_on_ctx():
    def forward(ctx, x):
        ctx.pull = lambda g: g * x
        return 1 * x

    f = function("Hide", forward=forward, backward=lambda ctx, g: ctx.pull(g)).apply
    with raises(TypeError, "ctx.pull holds a traced value", "function"):
        jax.jit(jax.grad(f))(S)
    with raises(TypeError, "ctx.pull holds a traced value"):
        jax.grad(jax.grad(f))(S)


@pytest.mark.parametrize("name", ["boxed_grads_call", "clear_saved_tensors_on_access"])
def test_flags_must_be_bools(name):
    f = function(
        "Flag",
        forward=lambda ctx, x: ctx.save_for_backward(x) or 1 * x,
        backward=lambda ctx, g: ctx.saved_tensors[0],
        **{name: 1},
    ).apply
    with raises(RuntimeError, f"{name} must be a bool, got int", f"Set `Flag.{name}`"):
        jax.grad(f)(S)


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


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (lambda x: x, "a <class"),
        (lambda x: (x, 0, 0), "3 returns"),
        (lambda x: [x, 0], "a <class 'list'>"),
    ],
)
def test_a_vmap_rule_that_returns_no_pair(result, got):
    with raises(
        RuntimeError,
        "Expected the vmap staticmethod to have two returns, an output and out_dims "
        "with pytree structure compatible with the output",
        f"Got {got}",
        "`Batch.vmap`",
    ):
        batched(lambda info, in_dims, x: result(x))


def test_a_vmap_rule_with_incompatible_out_dims():
    with raises(
        RuntimeError,
        "The autograd.Function's vmap staticmethod returned an incompatible "
        r"\(output, out_dims\) tuple",
        r"Expected out_dims=\(0,\) to be compatible with the structure of `output`",
        "`Batch.vmap`",
    ):
        batched(lambda info, in_dims, x: (x, (0,)))


def test_a_vmap_rule_with_another_output_structure():
    with raises(ValueError, "`Batch.vmap` returned an output of another structure"):
        batched(lambda info, in_dims, x: ([x], [0]))


@pytest.mark.parametrize("result", [2.0, "s"])
def test_a_vmap_rule_with_a_static_value_for_an_array(result):
    with raises(ValueError, "`Batch.vmap`", "of array, got .* of static"):
        batched(lambda info, in_dims, x: (result, None))


@pytest.mark.parametrize("dim", [5, 2, -3])
def test_a_vmap_rule_with_a_dim_out_of_range(dim):
    with raises(
        IndexError,
        r"Dimension out of range \(expected to be in range of \[-2, 1\], but got "
        rf"{dim}\)",
        "`Batch.vmap`",
    ):
        batched(lambda info, in_dims, x: (x, dim))


@pytest.mark.parametrize("dim", ["a", 0.0, True])
def test_a_vmap_rule_with_a_dim_that_is_no_int(dim):
    with raises(TypeError, "`Batch.vmap` returned a bad out_dims", "expected an int"):
        batched(lambda info, in_dims, x: (x, dim))


def test_a_vmap_rule_with_the_wrong_batch_size():
    with raises(
        ValueError,
        "`Batch.vmap` returned a batch of the wrong size",
        "expected 2 at dim 0, got 1",
    ):
        batched(lambda info, in_dims, x: (x[:1], 0))


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


def test_both_vmap_and_generate_vmap_rule():
    with raises(
        RuntimeError,
        "You tried to vmap over Batch, but it has both generate_vmap_rule=True and an "
        "overridden vmap staticmethod",
        r"\(`Batch.vmap` is at \S*test_errors\.py:\d+\.\)",
    ):
        batched(lambda info, in_dims, x: (x, 0), generate_vmap_rule=True)


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
