"""`from_torch`: a torch class as a `jaxfn.Function`.

The class that JAX gets is in `function`. It takes the arguments of a call apart
(`call`), and finds the trace of forward for this kind of call (`traced_forward`, with
`forward_result`: what forward left behind), or torch's own apply on the host
(`host_call`). Each rule is a `graph_function`, whose derivatives are torch's own
(`derivatives`). `batching` runs the vmap rule of the class, `host` torch on the host.
"""

from jaxfn.torch._function.api import from_torch
from jaxfn.torch._function.explanation import TorchExplanation, explain
