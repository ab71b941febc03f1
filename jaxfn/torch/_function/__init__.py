"""`from_torch`: a torch class as a `jaxfn.Function`.

- `function`: the class that JAX gets; `call` has the arguments of a call
- `traced_forward`: the trace of one signature; `forward_result` has its saved tensors
- `host_call`: torch's own apply in a host callback, if there is no trace
- `graph_function`: one rule as a JAX function; `derivatives` are torch's own
- `batching`: the vmap rule of the class; `host` runs rules in torch
"""

from jaxfn.torch._function.api import from_torch
from jaxfn.torch._function.explanation import TorchExplanation, explain
