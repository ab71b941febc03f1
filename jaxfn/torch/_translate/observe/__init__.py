"""Runs of the original, which show the type of each expression.

`instrument` rewrites the original so that every expression reports its value. `runs`
executes forward and backward. `observations` has an `ExprType` for each expression:
tensor or number, dtype, shapes.
"""

from jaxfn.torch._translate.observe.instrument import is_compiler
from jaxfn.torch._translate.observe.memory import Decision, Writes
from jaxfn.torch._translate.observe.observations import (
    TENSOR,
    UNKNOWN,
    ExprType,
    Observations,
)
from jaxfn.torch._translate.observe.runs import InstrumentedOriginal, quiet, run
