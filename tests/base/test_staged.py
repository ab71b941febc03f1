"""Functions that have been traced."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback

from jaxfn._base import compat

X = jnp.float32(0.5)


def noting(x):
    jax.debug.callback(lambda _: None, x)
    return 2 * x


HOLDERS = {
    "plain": noting,
    "jit": jax.jit(noting),
    "cond": lambda x: lax.cond(x > 0, noting, lambda x: x, x),
    "scan": lambda x: lax.scan(lambda x, _: (noting(x), None), x, None, 2)[0],
    "while": lambda x: lax.while_loop(lambda x: x < 3, noting, x),
}


@pytest.mark.parametrize("fun", HOLDERS.values(), ids=HOLDERS)
def test_effects_that_nothing_needs_are_left_out(fun):
    _, staged = compat.Staged.trace(lambda x: [fun(x)], (), X)
    still = staged.without_effects()
    assert staged.effects
    assert not still.effects
    assert still(X) == staged(X) == [fun(X)]


def test_effects_that_something_needs_are_kept():
    shape = jax.ShapeDtypeStruct((), jnp.float32)

    asked = []

    def ask(x):
        asked.append(float(x))
        return 3 * x

    @jax.jit
    def asking(x):
        io_callback(ask, shape, 2 * x)
        return io_callback(ask, shape, x)

    _, staged = compat.Staged.trace(lambda x: [asking(x)], (), X)
    still = staged.without_effects()
    assert still.effects == staged.effects != set()
    assert still(X) == [1.5]
    jax.effects_barrier()
    assert asked == [0.5]


def test_what_has_no_effects_stays_as_it_is():
    _, staged = compat.Staged.trace(lambda x: [jax.jit(jnp.sin)(x)], (), X)
    assert staged.without_effects() is staged


def test_what_is_written_inside_of_a_call_may_be_read_outside():
    def fun(ref, x):
        @jax.jit
        def write(ref, x):
            ref[...] = 3 * x
            return x

        write(ref, x)
        return [ref[...] + x]

    outside = jax.new_ref(X)
    held, staged = compat.Staged.trace(lambda x: fun(outside, x), (), X)
    still = staged.without_effects()
    assert still(*held, X) == [2]
    # It reads nothing that was there before.
    outside[...] = 7.0
    assert still(*held, X) == [2]
