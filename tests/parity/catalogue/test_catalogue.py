"""The catalogue against what real torch computed, and under JAX's transformations."""

import contextlib
import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.parity import frameworks
from tests.parity.catalogue import FAMILIES, activations, record
from tests.parity.catalogue.measure import (
    cotangents,
    gradients,
    measure,
    outputs,
)

# Relative to the biggest element of an array, or to 1 where that is smaller, as a sum
# of big terms may be small. Rounding is 6e-8 and 1e-16; neither framework's order of
# operations is fixed, and a few to some hundred of them in a row (solvers, loops) give
# up to 1e-6 and 5e-15 here. The rest is room for other machines.
TOLERANCE = {"float32": 1e-5, "float64": 1e-13}

CASES = [
    pytest.param(family, case, id=case.name)
    for family, cases in FAMILIES.items()
    for case in cases
]
cases = pytest.mark.parametrize(("family", "case"), CASES)
TURNS = {p.values[1].name: i for i, p in enumerate(CASES)}
"""Of some tests a normal run has only Functions whose turn it is."""


def assert_close(got, expected, dtype, what):
    assert len(got) == len(expected), what
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape, f"{what} {i}"
        assert np.isfinite(a).all(), f"{what} {i}"
        if b.dtype.kind in "iub":
            np.testing.assert_array_equal(a, b, err_msg=f"{what} {i}")
            continue
        assert a.dtype == b.dtype, f"{what} {i}"
        atol = TOLERANCE[dtype] * np.abs(b).max(initial=1)
        np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=f"{what} {i}")


@pytest.fixture(scope="module")
def recorded():
    return {family: record.load(family) for family in FAMILIES}


def x64(dtype):
    return jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()


@pytest.mark.full(
    unless=lambda case, dtype, **_: dtype == "float32" and TURNS[case.name] % 4 == 0
)
@cases
@pytest.mark.parametrize("dtype", record.DTYPES)
def test_equals_what_torch_computed(family, case, dtype, recorded):
    expected = recorded[family][case.name][dtype]
    with x64(dtype):
        got = measure(case, case.jax, dtype, eager=dtype == "float32")
    assert {"outputs", "gradients"} <= set(expected) <= set(got)
    for what, arrays in expected.items():
        assert_close(got[what], arrays, dtype, what)


# Torch's numbers are compared above; a normal run has a few of the others here.
@pytest.mark.full(unless=lambda case, **_: TURNS[case.name] % 6 == 1)
@pytest.mark.parametrize(
    ("family", "case"), [p for p in CASES if p.values[1].exact is not None]
)
def test_equals_the_plain_derivatives_of_the_same_mathematics(family, case):
    with x64("float64"):
        got = measure(case, case.jax, "float64", eager=False)
        expected = measure(case, case.exact, "float64", eager=False)
    for what, arrays in expected.items():
        assert_close(got[what], arrays, "float64", what)


if importlib.util.find_spec("torch"):
    # A published class calls torch.jit.script, which newer releases deprecate.
    @pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
    @pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
    @cases
    @pytest.mark.parametrize("dtype", record.DTYPES)
    def test_the_recording_is_what_torch_computes(family, case, dtype, recorded):
        found, kept = record.measure(case, dtype), recorded[family][case.name][dtype]
        assert set(found) == set(kept)
        for what, arrays in found.items():
            assert_close(arrays, kept[what], dtype, what)


# ---- transformations

EXAMPLES = 2


@functools.cache
def looped(case):
    """Outputs and gradients of some examples, one by one and eager; stacked."""
    examples = [case.arrays("float32", i) for i in range(EXAMPLES)]
    examples = [[jnp.asarray(x) for x in xs] for xs in examples]
    outs = [outputs(case.jax, xs) for xs in examples]
    cts = [jnp.asarray(ct) for ct in cotangents(case, outs[0])]
    grads = [gradients(case.jax, xs, cts) for xs in examples]
    return stack(examples), stack([cts] * EXAMPLES), stack(outs), stack(grads)


def stack(rows):
    return [np.stack(column) for column in zip(*rows, strict=True)]


def rows(f, xs, cts):
    """Outputs and gradients, one example after the other."""
    found = [f([x[i] for x in xs], [ct[i] for ct in cts]) for i in range(EXAMPLES)]
    return stack([o for o, _ in found]), stack([g for _, g in found])


def both(f, xs, cts):
    return outputs(f, xs), gradients(f, xs, cts)


def by_jit(f, xs, cts):
    return rows(jax.jit(lambda xs, cts: both(f, xs, cts)), xs, cts)


def by_checkpoint(f, xs, cts):
    kept = jax.checkpoint(lambda *xs: outputs(f, xs))
    return rows(jax.jit(lambda xs, cts: both(kept, xs, cts)), xs, cts)


def by_vmap_of_gradient(f, xs, cts):
    return jax.jit(jax.vmap(lambda xs, cts: both(f, xs, cts)))(xs, cts)


def by_gradient_of_vmap(f, xs, cts):
    batched = jax.vmap(lambda *xs: outputs(f, xs))
    return jax.jit(lambda xs, cts: both(batched, xs, cts))(xs, cts)


def by_scan(f, xs, cts):
    def loop(*xs):
        return lax.scan(lambda _, x: (None, outputs(f, x)), None, xs)[1]

    return jax.jit(lambda xs, cts: both(loop, xs, cts))(xs, cts)


TRANSFORMATIONS = {
    "jit": by_jit,
    "vmap of gradient": by_vmap_of_gradient,
    "gradient of vmap": by_gradient_of_vmap,
    "checkpoint": by_checkpoint,
    "scan": by_scan,
}


# In a normal run every fourth Function meets one of them.
def is_normal(family, case, transformation):
    return TURNS[case.name] % 20 == 4 * list(TRANSFORMATIONS).index(transformation)


@pytest.mark.full(unless=is_normal)
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize(
    ("family", "case"), [p for p in CASES if not p.values[1].concrete]
)
def test_equals_the_eager_loop(family, case, transformation):
    xs, cts, outs, grads = looped(case)
    got_outs, got_grads = TRANSFORMATIONS[transformation](case.jax, xs, cts)
    assert_close(got_outs, outs, "float32", "outputs")
    assert_close(got_grads, grads, "float32", "gradients")


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize(("family", "case"), [p for p in CASES if p.values[1].concrete])
def test_what_looks_at_values_is_refused_where_there_are_none(
    family, case, transformation
):
    xs = [np.stack([x] * EXAMPLES) for x in case.arrays("float32")]
    refusals = (
        jax.errors.ConcretizationTypeError,
        jax.errors.NonConcreteBooleanIndexError,
    )
    with pytest.raises(refusals):
        TRANSFORMATIONS[transformation](case.jax, xs, xs)


# ---- what torch's side can't have


@pytest.mark.full
def test_noise_is_drawn_from_a_key_that_is_an_argument():
    logits, key = jnp.float32([[0.1, 0.5, 0.2], [1, 0, 2]]), jax.random.key(3)
    noise = jax.random.uniform(key, logits.shape, logits.dtype)
    weights = jnp.arange(6, dtype="float32").reshape(2, 3)

    gumbel = activations.gumbel(frameworks.Jaxfn(), 0.5)

    def loss(logits, noise):
        sample = gumbel(logits, noise)
        return (sample * weights).sum(), sample

    expected = jax.grad(loss, has_aux=True)(logits, noise)
    assert np.abs(expected[0]).max() > 0
    for transform in (lambda f: f, jax.jit, jax.checkpoint):
        got = jax.grad(transform(loss), has_aux=True)(logits, key)
        jax.tree.map(np.testing.assert_allclose, got, expected)
    keys = jax.random.split(key, 4)
    batched = jax.vmap(jax.grad(loss, has_aux=True), (None, 0))(logits, keys)
    one_by_one = [jax.grad(loss, has_aux=True)(logits, k) for k in keys]
    stacked = jax.tree.map(lambda *x: np.stack(x), *one_by_one)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), batched, stacked)
