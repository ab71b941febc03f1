"""Triton kernels on JAX arrays.

A `Launch` names the kernel, its buffers and its numbers. These modules use it:

- `generated` writes, for each launch, a kernel that takes only the buffers.
- `effects` finds the buffers that it reads and writes, from the code of Triton's
  frontend, without a GPU.
- `call` makes a function of JAX arrays that returns the new contents of written
  buffers. On a CPU a host callback runs the generated kernel in `interpreter`. On a GPU
  jax-triton makes it a part of XLA's program. Both work under jit, vmap and loops.

`triton_call` makes a launch from a kernel and arrays. `bindings` finds the
configurations of a launch `kernel[grid](...)`. This package knows Triton and JAX, but
not torch. Only `experimental` knows private names of Triton.
"""

from jaxfn._triton.api import triton_call
from jaxfn._triton.arguments import Loaded, Pointer, Variant
from jaxfn._triton.call import InterpreterWarning
from jaxfn._triton.call import launch as run_launch
from jaxfn._triton.call import on_host as run_on_host
from jaxfn._triton.launch import KernelError, Launch
from jaxfn._triton.variants import Binding, bindings, split
