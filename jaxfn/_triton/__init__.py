"""Triton kernels on JAX arrays.

A `Launch` says which kernel runs on which buffers, with what numbers. From it is made:

- `generated`: the text of one kernel that takes the buffers alone, for each launch.
- `effects`: what it reads and writes, from the code that Triton's frontend makes of it,
  without a GPU.
- `call`: a function of JAX arrays that returns the new contents of what is written. On
  a CPU a host callback runs the generated kernel in `interpreter`; on a GPU jax-triton
  makes it a part of XLA's program. Both under jit, vmap and loops.

`triton_call` makes a launch of a kernel and arrays; `bindings` finds what a launch
`kernel[grid](...)` would run. This room knows Triton and JAX, and nothing of torch;
`experimental` alone knows private names of Triton.
"""

from jaxfn._triton.api import triton_call
from jaxfn._triton.arguments import Loaded, Pointer, Variant
from jaxfn._triton.call import InterpreterWarning
from jaxfn._triton.call import launch as run_launch
from jaxfn._triton.call import on_host as run_on_host
from jaxfn._triton.launch import KernelError, Launch
from jaxfn._triton.variants import Binding, bindings, split
