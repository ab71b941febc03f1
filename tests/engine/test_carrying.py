"""The static part of residuals, from a fwd to the bwd of the same trace."""

import jax
import jax.numpy as jnp
import pytest

from jaxfn._engine.carrying import Statics
from jaxfn._engine.rules import Residuals

X = jnp.ones(3)


def residuals(static, *arrays):
    return Residuals(list(arrays), static, (True,))


def test_two_eager_traces_of_one_call_keep_their_own():
    statics = Statics()
    first = statics.put(residuals("first", X), [X])
    second = statics.put(residuals("second", X, X), [X])
    assert statics.get(first, [X], "f").static == "first"
    assert statics.get(second, [X, X], "f").static == "second"
    assert first is None  # a call that runs fwd once carries no key


def test_a_traced_call_has_a_key_for_each_trace():
    statics = Statics()
    keys = []

    def trace(x):
        keys.extend([statics.put(residuals(i, x), [x]) for i in range(3)])
        return x

    jax.eval_shape(trace, X)
    assert [statics.get(k, [X], "f").static for k in keys] == [0, 1, 2]
    assert [k.size for k in keys] == [0, 0, 0]


def test_arrays_of_another_trace_are_refused():
    statics = Statics()
    key = statics.put(residuals("saved", X), [X])
    with pytest.raises(NotImplementedError, match="`f` saved other arrays"):
        statics.get(key, [jnp.ones(2)], "f")
