"""`check` of a fwd that returns something else than the function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jaxfn

X = jnp.arange(1.0, 4.0)

WRONG = {
    "value": (lambda x: 2 * x, lambda x: 3 * x, "output 0.*expected.*got"),
    "shape": (lambda x: 2 * x, lambda x: jnp.sum(x), r"float.*\[3\], got float.*\[\]"),
    "dtype": (lambda x: 2 * x, lambda x: (2 * x).astype(jnp.bfloat16), "got bfloat16"),
    "a tuple of it": (
        lambda x: 2 * x,
        lambda x: (2 * x,),
        "expected .*, got PyTreeDef",
    ),
    "a list": (lambda x: (2 * x, x), lambda x: [2 * x, x], "expected PyTreeDef.*, got"),
    "more": (lambda x: 2 * x, lambda x: (2 * x, x), "expected PyTreeDef.*, got"),
    "fewer": (lambda x: (2 * x, x), lambda x: 2 * x, "expected PyTreeDef.*, got"),
}


def backward_row(f):
    return next(row for row in jaxfn.check(f, X).results if row.check == "backward")


@pytest.mark.parametrize("decorate", [jaxfn.custom_function, jax.custom_vjp, "both"])
@pytest.mark.parametrize("wrong", WRONG)
def test_fwd_is_named(wrong, decorate):
    fun, fwd, match = WRONG[wrong]
    f = (jaxfn.custom_function if decorate == "both" else decorate)(fun)
    f.defvjp(
        lambda x: (fwd(x), None), lambda _, g: (2 * jax.tree.leaves(g)[0] + 0 * X,)
    )
    if decorate == "both":
        f.defjvp(lambda xs, ts: (fun(*xs), jax.tree.map(lambda y: 2 * ts[0], fun(*xs))))
    row = backward_row(f)
    assert (row.rule, row.status) == ("fwd", "FAIL")
    assert row.message.startswith("fwd returned another value than the function: ")
    with pytest.raises(AssertionError, match=f"fwd returned another.*{match}"):
        jaxfn.check(f, X).raise_on_failure()


def test_a_jvp_that_gives_the_value_is_named():
    f = jaxfn.custom_function(lambda x: 2 * x)
    f.defjvp(lambda xs, ts: (3 * xs[0], 2 * ts[0]))
    row = backward_row(f)
    assert (row.rule, row.status) == ("jvp", "FAIL")
    assert "jvp returned another value than the function" in row.message


def test_a_fwd_that_computes_it_in_another_way_passes():
    f = jaxfn.custom_function(lambda x: {"a": x * x, "b": None})
    f.defvjp(
        lambda x: ({"a": jnp.exp(2 * jnp.log(x)), "b": None}, x),
        lambda x, g: (2 * x * g["a"],),
    )
    assert backward_row(f).status == "ok"
