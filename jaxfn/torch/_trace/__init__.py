"""From the Python of a torch rule to a program in JAX.

What happens, with the module of each step:

    trace(run, examples):                         # tracer
        for each way in which conditions on values come out:    # branches
            call run on tensors without values    # intercept watches it, and aliasing
            make its graph; then one without writes and views   # _base.experimental
            look up each operation of the graph   # lower, in the table of _ops
        return a BranchTree
    tree(arrays, key):                            # branches
        choose a branch by its conditions
        return program(arrays, key)               # program: operation by operation

`tracked_forward` is around a forward whose derivative torch records. What a rule
meets that launches Triton kernels is in `_triton`, on which this room stands.
"""

from jaxfn.torch._trace.branches import BranchTree
from jaxfn.torch._trace.intercept import LaunchSeen, NeedsRead, RandomDraws
from jaxfn.torch._trace.program import Operation, Ref
from jaxfn.torch._trace.tracer import TensorFunction, TensorSpec, trace
from jaxfn.torch._trace.tracked_forward import TrackedForward
