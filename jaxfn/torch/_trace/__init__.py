"""From the Python of a torch rule to a program in JAX.

trace(run, examples) -> BranchTree                    # tracer
for each way in which conditions on values come out:
watch the Python run on tensors without values      # intercept, aliasing
make its graph, then one without writes and views   # experimental
look each operation up in the table                 # lower, _ops
tree(arrays, key) -> results                          # branches
program(arrays, key)                              # program: operation by operation
"""

from jaxfn.torch._trace.branches import BranchTree
from jaxfn.torch._trace.intercept import NeedsRead, RandomDraws, TrackedForward
from jaxfn.torch._trace.program import Operation, Ref
from jaxfn.torch._trace.tracer import Example, Run, trace

__all__ = [
    "BranchTree",
    "Example",
    "NeedsRead",
    "Operation",
    "RandomDraws",
    "Ref",
    "Run",
    "TrackedForward",
    "trace",
]
