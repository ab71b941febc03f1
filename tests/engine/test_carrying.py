"""The static part of residuals, from a fwd to the bwd of the same trace."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl

import jaxfn
from jaxfn._engine.carrying import Carrier
from jaxfn._engine.rules import Residuals
from tests.build import function

X = jnp.ones(3)


def residuals(static, *arrays):
    return Residuals(list(arrays), static, (True,))


def test_two_eager_traces_of_one_call_keep_their_own():
    carrier = Carrier("f")
    first = carrier.pack(residuals("first", X, X), [X])
    second = carrier.pack(residuals("second", X), [X])
    assert carrier.unpack(first).static == "first"
    assert carrier.unpack(second).static == "second"
    assert first[1] is None  # a call that runs fwd once carries no key


def test_a_traced_call_has_a_key_for_each_trace():
    carrier = Carrier("f")
    found = []

    def trace(x):
        saved = [carrier.pack(residuals(i, x), [x]) for i in range(3)]
        assert [key.size for _, key in saved] == [0, 0, 0]
        found.extend([carrier.unpack(pair).static for pair in saved])
        return x

    jax.eval_shape(trace, X)
    assert found == [0, 1, 2]


class Doubled(jaxfn.Function):
    """With a slope of 2, which its value does not have."""

    @staticmethod
    def forward(ctx, x):
        if ctx.needs_input_grad[0]:  # then `Carrier` leaves room
            ctx.save_for_backward(x)
        return 1.0 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * jnp.ones_like(ctx.saved_tensors[0])


def _in_kernel(body):
    def kernel(i, o):
        o[...] = body(i[...])

    return pl.pallas_call(kernel, out_shape=X, interpret=True)


WRAPS = {
    "scan": lambda f: (
        lambda x: lax.scan(lambda x, _: (f(x), None), x, None, length=1)[0]
    ),
    "fori_loop": lambda f: lambda x: lax.fori_loop(0, 1, lambda _, x: f(x), x),
    "checkpoint": jax.checkpoint,
}


@pytest.mark.parametrize("wrap", WRAPS)
def test_what_is_carried_is_no_constant_that_a_kernel_captures(wrap):
    body = jax.grad(lambda x: WRAPS[wrap](Doubled.apply)(x).sum())
    assert _in_kernel(body)(X).tolist() == [2, 2, 2]


def test_a_kernel_refuses_forward_mode_in_the_words_of_jax():
    with pytest.raises(TypeError, match="can't apply forward-mode autodiff"):
        _in_kernel(lambda x: jax.jvp(Doubled.apply, (x,), (x,))[1])(X)


def test_arrays_of_another_trace_are_refused():
    carrier = Carrier("f")
    _, key = carrier.pack(residuals("saved", X), [X])
    with pytest.raises(NotImplementedError, match="`f` saved other arrays"):
        carrier.unpack(([jnp.ones(2)], key))


def test_what_has_no_padding_makes_no_operation():
    def trace(x):
        (saved, _) = Carrier("f").pack(residuals("static", x), [x])
        return saved

    # The key alone, which is of no use here.
    assert len(jax.make_jaxpr(trace)(X).eqns) == 1


def test_nothing_is_copied_from_the_host():
    f = function(
        forward=lambda ctx, x: ctx.save_for_backward(x) or x * x,
        backward=lambda ctx, g: g * ctx.saved_tensors[0],
    ).apply
    x = jnp.arange(3.0)
    for wrap in (jax.vmap, jax.checkpoint):
        _, pull = jax.vjp(wrap(f), x)
        pull(x)  # what is made once is made
        with jax.transfer_guard("disallow"):
            (grad,) = jax.vjp(wrap(f), x)[1](x)
        assert (grad == x * x).all()
