"""`once_differentiable`: first derivatives only, and never a wrong second one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn
from tests.build import function, in_style, saving

S = jnp.float32(3)


def square(jvp=False, callback=False):
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if callback:
            body = lambda g, x: np.asarray(2 * g * x)  # noqa: E731
            return jax.pure_callback(body, g, g, x, vmap_method="sequential")
        return 2 * g * x

    members = {"jvp": lambda ctx, t: 2 * t * ctx.saved_tensors[0]} if jvp else {}
    return function(
        "Once",
        **in_style("combined", lambda x: x * x, saving()),
        backward=jaxfn.once_differentiable(backward),
        **members,
    ).apply


@pytest.mark.parametrize("jvp", [False, True])
@pytest.mark.parametrize("callback", [False, True])
def test_first_derivatives_are_normal(jvp, callback):
    f = square(jvp, callback)
    x = jnp.float32([1, 2, 3])
    for call in (
        jax.vmap(jax.grad(f)),
        jax.jit(jax.vmap(jax.grad(f))),
        jax.grad(lambda x: jax.vmap(f)(x).sum()),
        jax.grad(jax.checkpoint(lambda x: f(x).sum())),
        jax.grad(lambda x: jax.lax.map(f, x).sum()),
    ):
        np.testing.assert_allclose(call(x), [2, 4, 6])


SECOND = {
    "grad of grad": lambda f: jax.grad(jax.grad(f)),
    "jit": lambda f: jax.jit(jax.grad(jax.grad(f))),
    "inner jit": lambda f: jax.grad(jax.grad(jax.jit(f))),
    "forward over reverse": lambda f: jax.jacfwd(jax.grad(f)),
    "vmap": lambda f: lambda x: jax.vmap(jax.grad(jax.grad(f)))(x[None]),
    "scan": lambda f: jax.grad(
        jax.grad(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, 2)[0])
    ),
    "checkpoint": lambda f: jax.grad(jax.grad(jax.checkpoint(f))),
    # torch gives numbers without the Function's part in the next three
    "times x": lambda f: jax.grad(jax.grad(lambda x: f(x) * x)),
    "plus x^3": lambda f: jax.grad(jax.grad(lambda x: f(x) + x**3)),
    "with respect to a factor": lambda f: jax.grad(
        lambda w: jax.grad(lambda x: w * f(x))(w) ** 2
    ),
}


@pytest.mark.parametrize("jvp", [False, True])
@pytest.mark.parametrize("callback", [False, True])
@pytest.mark.parametrize("second", SECOND)
def test_second_derivatives_raise(jvp, callback, second):
    with pytest.raises(
        RuntimeError,
        match=r"(?s)trying to differentiate twice a function that was marked with "
        r"@once_differentiable.*`Once.backward`",
    ):
        SECOND[second](square(jvp, callback))(S)


def test_what_backward_does_not_depend_on_may_be_differentiated():
    f = square()
    got = jax.grad(lambda w: w * jax.grad(f)(S))(jnp.float32(2))
    np.testing.assert_allclose(got, 6)


def test_none_gradients():
    f = function(
        forward=lambda ctx, x, y: x * y,
        backward=jaxfn.once_differentiable(lambda ctx, g: (2 * g, None)),
    ).apply
    assert [float(g) for g in jax.grad(f, (0, 1))(S, S)] == [2, 0]
