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
    again = staged.repeated()
    assert staged.effects
    assert not again.effects
    assert again(X) == staged(X) == [fun(X)]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_a_value_that_needs_an_effect_is_not_repeated(wrap):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    ask = wrap(lambda x: io_callback(lambda x: 3 * x, shape, x))
    for asking in (lambda x: [ask(x)], lambda x: [2 * x, ask(x)]):
        assert compat.Staged.trace(asking, (), X)[1].repeated() is None
    _, staged = compat.Staged.trace(lambda x: [ask(x), 2 * x][1:], (), X)
    assert not staged.repeated().effects


def test_what_has_no_effects_stays_as_it_is():
    _, staged = compat.Staged.trace(lambda x: [jax.jit(jnp.sin)(x)], (), X)
    assert staged.repeated() is staged


def test_what_is_written_inside_of_a_call_may_be_read_outside():
    @jax.jit
    def write(ref, x):
        ref[...] = 3 * x
        return x

    def fun(x):
        ref = jax.new_ref(x)
        write(ref, x)
        return [ref[...] + x]

    _, staged = compat.Staged.trace(fun, (), X)
    assert staged.repeated()(X) == [2]


def test_a_transpose_refuses_a_cotangent_of_another_type():
    jaxpr = compat.make_jaxpr(lambda x: [2 * x], [X])
    assert compat.transpose(jaxpr, [X], [X]) == [1.0]
    with pytest.raises(TypeError, match="cotangent type does not match"):
        compat.transpose(jaxpr, [X], [jnp.int32(1)])
