"""`ctx.set_output_grad_dtype`: the dtype in which backward gets each gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from tests import extended
from tests.build import allclose, function, in_style, rules_of

from .test_context import MODES

HALF, FULL = jnp.dtype("float16"), jnp.dtype("float32")
S, ONE = jnp.float32(3), jnp.float32(1)
THIRD = 1 / 3  # half precision would make 0.33325 of it

modes = pytest.mark.parametrize("mode", MODES)
styles = pytest.mark.parametrize("style", ["combined", "separate"])
engines = pytest.mark.parametrize("engine", ["backward", "both", "derived"])


def squares(style, engine, dtypes=(FULL, FULL, None), *, seen=None, materialize=True):
    """x**2 / 2 in half precision, and another output; the derivative is a third.

    Backward notes the dtypes that it gets.
    """

    def value(x):
        return (x * x / 2).astype(HALF), x.astype(HALF), jnp.int32(1)

    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)
        ctx.set_materialize_grads(materialize)
        ctx.set_output_grad_dtype(*dtypes)

    def backward(ctx, *grads):
        if seen is not None:
            seen.append([None if g is None else g.dtype for g in grads])
        return ctx.saved_tensors[0] * grads[0] / 3

    def jvp(ctx, t):
        tangent = (ctx.saved_tensors[0] * t / 3).astype(HALF)
        return tangent, jnp.zeros_like(tangent), None

    members = in_style(style, value, save) | rules_of(engine, backward, jvp)
    f = function(**members)
    return lambda x: f.apply(x)[0].astype(FULL)


@modes
@styles
@engines
def test_backward_gets_the_dtype_everywhere(mode, style, engine):
    seen = []
    f = squares(style, engine, seen=seen)
    grad = MODES[mode](f)(S)
    assert grad.dtype == FULL
    allclose(grad, 3 * THIRD)
    assert all(dtypes[0] == FULL for dtypes in seen)
    assert seen[0][2] == jnp.int32


@styles
@engines
def test_an_unused_output_has_zeros_of_its_dtype_or_none(style, engine):
    for materialize, unused in ((True, HALF), (False, None)):
        seen = []
        f = squares(style, engine, seen=seen, materialize=materialize)
        allclose(jax.jit(jax.grad(f))(S), 3 * THIRD)
        assert seen[-1][:2] == [FULL, unused]


@styles
@engines
def test_derivatives_of_the_gradient(style, engine):
    f = squares(style, engine)
    for first in (jax.grad(f), jax.jit(jax.grad(f))):
        allclose(jax.grad(first)(S), THIRD)
        allclose(jax.vmap(jax.grad(first))(S[None])[0], THIRD)
    # Through the cotangent: the derivative of f f', which is (f')^2 + f f''.
    squared = jax.grad(jax.grad(lambda x: f(x) ** 2))(S)
    expected = 2 * ((3 * THIRD) ** 2 + 4.5 * THIRD)
    np.testing.assert_allclose(squared, expected, rtol=1e-3)


@pytest.mark.parametrize("engine", ["both", "derived"])
@styles
def test_tangents_keep_the_dtype_of_the_output(style, engine):
    f = squares(style, engine)
    t = jax.jvp(f, (S,), (ONE,))[1]
    assert t.dtype == FULL
    np.testing.assert_allclose(t, 3 * THIRD, rtol=1e-3)
    allclose(jax.jvp(jax.grad(f), (S,), (ONE,))[1], THIRD)
    back = jax.grad(lambda x: jax.jvp(f, (x,), (ONE,))[1])(S)
    np.testing.assert_allclose(back, THIRD, rtol=1e-3)


def declaring(value, *dtypes, backward=lambda ctx, g: g):
    def forward(ctx, x):
        ctx.set_output_grad_dtype(*dtypes)
        return value(x)

    return function(forward=forward, backward=backward).apply


@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, jax.grad], ids=["plain", "jit", "grad"]
)
def test_a_pytree_and_an_extended_dtype_take_none(wrap):
    for value in (lambda x: {"a": 1 * x}, lambda x: extended.to_max(1 * x)):
        with pytest.raises(ValueError, match=r"concrete dtype for output 0.* `F.forw"):
            wrap(declaring(value, FULL))(S)
        jax.jit(declaring(value, None))(S)


def test_the_choice_may_depend_on_what_is_differentiated():
    seen = []

    def forward(ctx, x, y):
        ctx.set_output_grad_dtype(HALF if ctx.needs_input_grad[0] else None)
        return x * y

    def backward(ctx, g):
        seen.append(g.dtype)
        return g, g

    f = function(forward=forward, backward=backward).apply

    @jax.jit
    def both(x, y):
        return jax.grad(f)(x, y), jax.grad(f, 1)(x, y)

    both(S, S)
    assert seen == [HALF, FULL]


def test_float64_without_x64_is_what_jax_makes_of_it():
    seen = []

    def backward(ctx, g):
        seen.append(g.dtype)
        return g

    f = declaring(lambda x: 1 * x, "float64", backward=backward)
    with pytest.warns(UserWarning, match="float64"):
        jax.grad(f)(S)
    with jax.enable_x64(True):
        jax.grad(f)(S)
    assert seen == [FULL, jnp.dtype("float64")]


def test_nested_containers_and_lists_of_gradients():
    seen = []

    class Pair(jaxfn.NestedIOFunction):
        def forward_extended(self, pair):
            self.set_output_grad_dtype(HALF, None)
            return pair["a"] * 1, [pair["b"]]

        def backward_extended(self, a, b):
            seen.append((a.dtype, b[0].dtype))
            return a, b

    f = lambda x: sum(jax.tree.leaves(Pair.apply({"a": x, "b": x})))  # noqa: E731
    allclose(jax.grad(f)(S), 2)
    assert seen == [(HALF, FULL)]


def test_dtypes_in_a_boxed_call():
    seen = []

    def backward(ctx, grads):
        seen.append([g.dtype for g in grads])
        return grads[0]

    def forward(ctx, x):
        ctx.set_output_grad_dtype(HALF)
        return 1 * x

    f = function(forward=forward, backward=backward, boxed_grads_call=True)
    jax.grad(f.apply)(S)
    assert seen == [[HALF]]
