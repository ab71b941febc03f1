"""What the rewriter has to know beyond single expressions.

`infer` guesses the type of expressions that no run has reached. `aliasing` and `flow`
follow which names share memory, `liveness` which are read later. From these, `writes`
decides whether a write may become a new value. `masks` plans `jnp.where`. `program` has
the analysis of all units.
"""

from jaxfn.torch._translate.analysis.aliasing import (
    diagonal_of,
    is_in_place,
    is_write_name,
    root_of,
    view_of,
    writes_of,
)
from jaxfn.torch._translate.analysis.infer import Inference, widens
from jaxfn.torch._translate.analysis.program import Analysis
from jaxfn.torch._translate.analysis.writes import Writes
