"""Autotuned kernels: the first configuration that compiles runs on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfn.torch
from tests.torch.kernels import tuned

X = jnp.arange(1.0, 13.0)


def of(cls):
    return jaxfn.torch.from_torch(cls).apply


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("cls", "args", "want"),
    [
        (tuned.Hooked, (), 1.0),
        (tuned.OneFails, (), 2.0),
        (tuned.Pruned, (True,), 3.0),
        (tuned.Pruned, (False,), 4.0),
        (tuned.NamedAsOptions, (), 8.0),
    ],
)
def test_tuned(cls, args, want, transform):
    apply = of(cls)
    np.testing.assert_allclose(transform(lambda x: apply(x, *args))(X), want * X)


def test_a_hook_runs_once_for_a_launch_with_all_arguments():
    tuned.HOOKS.clear()
    of(tuned.Hooked)(jnp.ones(5))
    (names,) = tuned.HOOKS
    assert {"x", "y", "n", "BLOCK", "TWICE", "num_warps", "num_stages"} <= names


def test_a_hook_belongs_to_the_configuration_that_runs():
    np.testing.assert_allclose(of(tuned.FirstFails)(X), X)
    (text,) = jaxfn.torch.explain(tuned.FirstFails, X).forward.launches
    assert "SPLIT=2" in text
    assert "SPLIT=1" not in text


def test_what_any_configuration_writes_is_written():
    y, z = of(tuned.Differing)(X)
    np.testing.assert_allclose(y, 2 * X)
    np.testing.assert_allclose(z, jnp.full(12, 5.0))
    launched = jaxfn.torch.explain(tuned.Differing, X).forward.launches
    assert len(launched) == 1
    assert "writes y, z" in launched[0]


def test_explain_lists_launches():
    found = jaxfn.torch.explain(tuned.OneFails, X)
    assert found.ok
    (text,) = found.forward.launches
    for words in ("kernel doubled_kernel", "tuned.py", "reads x", "writes y"):
        assert words in text
    assert "grid (2, 1, 1): BLOCK=8, EXACT=False" in text
    assert "BLOCK=2" not in text  # it does not compile
    assert text in str(found)
    assert len(found.backward.launches) == 1
