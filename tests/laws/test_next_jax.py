"""A part of the sample under the flags that turn on JAX's next implementation.

JAX reads them when it starts, so the cells run in a process of their own. Only a JAX
that has all of the flags is asked; 0.10 has none for custom_jvp.
"""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

FLAGS = ("jax_custom_vjp3", "jax_custom_jvp3", "jax_remat3")
EVERY = 32

CODE = f"""
import jax
import jax.numpy as jnp

import jaxfn
from tests.laws.cells import sample
from tests.laws.test_laws import test_a_cell_is_right_or_refused as check

assert all(getattr(jax.config, flag) for flag in {FLAGS})
for cell in sample()[::{EVERY}]:
    print(cell, flush=True)
    check(cell, lambda *_: None)


class Scale(jaxfn.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(n)
        assert not ctx.needs_input_grad[1], "an integer is said to be differentiated"
        return x * n

    @staticmethod
    def backward(ctx, g):
        (n,) = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False)
        return g * n, None


for f in (jax.grad(Scale.apply), jax.grad(jax.checkpoint(Scale.apply))):
    assert f(jnp.float32(3), jnp.int32(5)) == 5
print("all right")
"""


@pytest.mark.full
@pytest.mark.skipif(
    not all(flag in jax.config.values for flag in FLAGS),
    reason="this JAX has not all flags of the next implementation",
)
def test_a_part_of_the_sample_is_right_with_the_next_implementation():
    on = {flag.upper(): "1" for flag in FLAGS}
    run = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=Path(__file__).parents[2],
        env=os.environ | on,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.stdout.endswith("all right\n"), run.stdout[-300:] + run.stderr[-2000:]
