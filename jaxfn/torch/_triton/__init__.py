"""Triton kernels that a torch rule launches, while the rule is traced.

The steps, each with its module::

    with Surroundings().here():             # surroundings
        run the rule on tensors without values; meanwhile
        tensors and torch.cuda look as on a GPU                     # surroundings
        kernel[grid](x, y, n) is caught, in this thread alone       # capture
            the memory of x and y becomes flat tensors, each once   # buffers
            torch.ops.jaxfn.launch(flat tensors, number)            # operation
            its results are copied into what the kernel writes
    row(number)(arrays)                     # operation: in JAX, by jaxfn._triton

jaxfn traces a class like this if one of its rules names a kernel. It traces any other
class plainly first, and like this only if a rule launches a kernel or can't be traced.
It does not import Triton: if no one else has imported it, nothing launches a kernel.

`running` runs a rule on tensors with values, without a GPU.
"""

from jaxfn.torch._triton.buffers import (
    Storages,
    StoredView,
    flat_storage,
    stored_views,
)
from jaxfn.torch._triton.capture import LaunchSeen
from jaxfn.torch._triton.surroundings import (
    NOT_SHOWN,
    GpuLook,
    Surroundings,
    is_loaded,
    launch_of,
    launch_row,
    storages_now,
)
from jaxfn.torch._triton.with_values import KernelRuns, running
