"""`compare`: is a port the same as the torch Function that it is a port of?

Read `api` (what users call) and `rows` (all rows, and one of them), `arguments`,
`original` and `tensors` (what torch gives), `port` (what JAX gives) and `pair` (both on
the same arguments), `points` (and near them), `accuracy` and `hints` (how results are
compared), then the rows: `values`, `gradients` and `further` (second order, jvp, vmap).
`report` is what users get.
"""

from jaxfn.torch._compare.api import compare, expect_pair
from jaxfn.torch._compare.original import OriginalError
from jaxfn.torch._compare.report import CompareReport

__all__ = ["CompareReport", "OriginalError", "compare", "expect_pair"]
