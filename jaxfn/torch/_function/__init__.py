"""A torch class as a `jaxfn.Function`.

- `function`: the class that JAX gets; `call` has the arguments of a call
- `traced_forward`: the trace of one signature; `forward_result` has its saved tensors
- `host_call`: torch's own apply in a host callback, if there is no trace
- `graph_function`: one rule as a JAX function; `derivatives` are torch's own
- `batching`: the vmap rule of the class; `host` runs rules in torch
"""

from jaxfn.torch._function.call import Settings
from jaxfn.torch._function.derivatives import gradients_of, run_tracked
from jaxfn.torch._function.explanation import (
    TorchExplanation,
    explain_function,
    refused_graph,
    rule_graph,
)
from jaxfn.torch._function.function import bridged, check_key, refuse_tensors
from jaxfn.torch._function.graph_function import GraphFunction, remember
from jaxfn.torch._function.graph_rules import GraphRules, graph_outputs
