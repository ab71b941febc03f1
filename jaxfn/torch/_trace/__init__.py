"""From the Python of a torch rule to a program in JAX.

The steps, each with its module. There is one path for each outcome of the conditions
on values::

    trace(run, examples):                         # tracer
        for each path:                            # branches
            call run on tensors without values    # intercept watches it, and aliasing
            record its graph                      # recorder
            if it writes, record it without writes  # recorder again
            look up each operation of the graph   # lower, in the table of _ops
        return a BranchTree
    tree(arrays, key):                            # branches
        choose a branch by its conditions
        return program(arrays, key)               # program: operation by operation

`tracked_forward` wraps a forward that torch differentiates. `_triton`, on which this
package builds, handles rules that launch Triton kernels.
"""

from jaxfn.torch._trace.branches import Branch, BranchTree, Node, with_zeros
from jaxfn.torch._trace.intercept import (
    LaunchSeen,
    NeedsRead,
    Noted,
    RandomDraws,
    note_key,
    results_of,
)
from jaxfn.torch._trace.program import (
    Operation,
    Ref,
    TracedProgram,
    Type,
    run_step,
)
from jaxfn.torch._trace.tracer import TensorFunction, TensorSpec, trace
from jaxfn.torch._trace.tracked_forward import TrackedForward
