"""Arguments of a forward that `custom_fwd` decorates."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn


class Scale(jaxfn.Function):
    @staticmethod
    @jaxfn.amp.custom_fwd(device_type="cuda", cast_inputs=jnp.bfloat16)
    def forward(ctx, x, options):
        return x * len(options)


@pytest.mark.parametrize("options", [{1: 0, "a": 0}, "ab", [None, 1.0]])
def test_arguments_that_are_no_arrays_pass_as_they_are(options):
    x = np.float32(3)
    with jaxfn.amp.autocast("cuda"):
        y = Scale.apply(x, options)
    assert y.dtype == jnp.bfloat16
    assert y == 6
