"""Comparison of a port with the torch Function that it was made from.

`api` is what users call, and `report` what they get. `rows` lists all rows, which are
in `values` (with first derivatives) and `further` (second order, jvp, vmap); those of
the port alone are `jaxfn.check`'s. `arguments` are for both sides: `original` holds
what torch computes, `port` what JAX computes, and `pair` runs both. `module` compares a
whole module.
"""

from jaxfn.torch._compare.api import compare, expect_pair
from jaxfn.torch._compare.original import OriginalError
from jaxfn.torch._compare.report import CompareReport

__all__ = ["CompareReport", "OriginalError", "compare", "expect_pair"]
