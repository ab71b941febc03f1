"""Checked by pyright, never run: what the tools return has a public name."""

from typing import assert_type

import jax

import jaxfn


def use(x: jax.Array) -> None:
    report: jaxfn.CheckReport = jaxfn.check(jax.numpy.sin, x)
    assert_type(jaxfn.check(jax.numpy.sin, x), jaxfn.CheckReport)
    assert_type(report.wrong_rules, tuple[str, ...])
    assert_type(jaxfn.explain(jax.numpy.sin, x), jaxfn.Explanation)
