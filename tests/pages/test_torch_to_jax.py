"""Each line of the table from torch to jax.numpy: right, and under jit and vmap."""

import importlib.util
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "notebooks/guides/port_a_function.md"


def pairs():
    """The two sides of each pair, torch's and JAX's."""
    (table,) = re.findall(
        r"\| PyTorch \| JAX \| PyTorch \| JAX \|\n(.*?)\n\n",
        PAGE.read_text(),
        re.DOTALL,
    )
    for row in table.splitlines()[1:]:
        cells = re.findall(r"`([^`]+)`", row)
        yield from zip(cells[::2], cells[1::2], strict=True)


PAIRS = list(pairs())
VALUES = {
    "x": np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], np.float32),
    "y": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32),
    "i": np.array([[2, 0, 1], [1, 2, 0]]),
    "k": np.array([2, 0, 1]),
    "mask": np.array([[True, False, True], [False, False, True]]),
}


def in_jax(text):
    return eval(f"lambda {', '.join(VALUES)}: {text}", {"jax": jax, "jnp": jnp})


def test_the_table_is_found():
    assert len(PAIRS) > 20


@pytest.mark.parametrize(("torch_text", "text"), PAIRS)
def test_a_line_runs_under_jit_and_vmap(torch_text, text):
    f, args = in_jax(text), list(map(jnp.asarray, VALUES.values()))
    expected = f(*args)
    np.testing.assert_allclose(jax.jit(f)(*args), expected, rtol=1e-6)
    batched = jax.jit(jax.vmap(f))(*[jnp.stack([x, x[::-1]]) for x in args])
    np.testing.assert_allclose(batched[0], expected, rtol=1e-6)
    assert batched.shape == (2, *expected.shape)


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
@pytest.mark.parametrize(("torch_text", "text"), PAIRS)
def test_a_line_computes_what_torch_does(torch_text, text):
    import torch

    scope = {k: torch.from_numpy(x.copy()) for k, x in VALUES.items()}
    expected = eval(torch_text, {"torch": torch, **scope})
    got = in_jax(text)(*map(jnp.asarray, VALUES.values()))
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6)
    assert str(got.dtype) == str(expected.dtype).removeprefix("torch.")
