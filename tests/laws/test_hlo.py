"""Compiled code equals that of a hand-written custom_vjp or custom_jvp."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jaxprs import hlo
from tests.twins import TWINS, by_hand, gradient, ours, stacked, tangent

cases = pytest.mark.parametrize("case", TWINS)
styles = pytest.mark.parametrize("style", ["combined", "separate"])


@functools.cache
def expected(case, rule, what):
    """The program of the hand-written twin, compiled once."""
    twin = TWINS[case]
    return program(by_hand(twin, rule=rule), twin.arguments(12), what)


def program(f, args, what):
    if what == "gradient":
        return hlo(gradient(f, args), *args)
    if what == "tangent":
        return hlo(tangent(f), *args)
    return hlo(jax.vmap(gradient(f, args)), *stacked(args))


@cases
@styles
def test_forward(case, style):
    twin = TWINS[case]
    args = twin.arguments(12)
    value = hlo(twin.value, *args)
    for rule in ("backward", "jvp"):
        assert hlo(ours(twin, rule=rule, style=style), *args) == value


@cases
@pytest.mark.parametrize(
    ("style", "rule", "what"),
    [
        ("combined", "backward", "gradient"),
        ("separate", "backward", "gradient"),
        ("combined", "backward", "vmap of gradient"),
        ("combined", "jvp", "gradient"),
        ("separate", "jvp", "gradient"),
        ("combined", "jvp", "tangent"),
        ("separate", "jvp", "tangent"),
        ("combined", "both", "gradient"),
        ("combined", "both", "tangent"),
    ],
)
def test_derivatives(case, style, rule, what):
    twin = TWINS[case]
    got = program(ours(twin, rule=rule, style=style), twin.arguments(12), what)
    alone = rule if rule != "both" else "jvp" if what == "tangent" else "backward"
    assert got == expected(case, alone, what)


# where the formulas are the derivative of the value
EXACT = ["exp", "matmul", "sigmoid", "logsumexp", "swish", "softmax", "softplus"]


@pytest.mark.parametrize("case", EXACT)
def test_the_formulas_are_right(case):
    twin = TWINS[case]
    args = twin.arguments(12)
    for got, right in (
        (gradient(ours(twin, rule="both"), args), gradient(twin.value, args)),
        (tangent(ours(twin, rule="both")), tangent(twin.value)),
    ):
        for one, other in zip(jax.jit(got)(*args), jax.jit(right)(*args), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_the_comparison_sees_a_difference():
    args = TWINS["exp"].arguments(12)
    assert hlo(jnp.exp, *args) != hlo(lambda x: jnp.exp(x) + 1, *args)
    assert hlo(lambda a: jnp.exp(a), *args) == hlo(lambda b: jnp.exp(b), *args)
