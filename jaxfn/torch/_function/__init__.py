"""A torch class as a `jaxfn.Function`.

What a call goes through, each step with its module::

    F = bridged(cls)                     # function: a class for jaxfn's core
    F.apply(*args):
        the core runs F.forward(ctx, *args):         # it enters the core once
            TorchCall(args)              # call: templates, and flat arrays
            rules = rules_for(call)      # function: one for each signature, kept
                traced_forward(cls)      # traced_forward: trace forward and what it
                                         #   saves (forward_result)
                or HostCall(cls)         # host_call: fallback="host", if that fails
            rules.forward(ctx, arrays)   # runs the graph; ctx gets the saved arrays
        the core runs F.backward(ctx, *grads), or F.jvp(ctx, *tangents):
            rules.gradients(ctx, grads)  # the graph of cls.backward, which is traced
                                         #   for the arguments that need a gradient

Each graph is a `GraphFunction` (graph_function): `graph(arrays)` runs its program, or,
if it can't be traced, the rule itself in a host callback (host). `graph.apply(arrays)`
enters the core once more, with `GraphRules` (derivatives): the derivative of a rule is
torch's own, traced again. Backward and jvp always run so, forward if it saves
intermediate results. A vmap staticmethod (call) is the batch rule of forward.
`explanation` shows the graphs.
"""

from jaxfn.torch._function.call import Settings
from jaxfn.torch._function.derivatives import (
    GraphRules,
    gradients_of,
    graph_outputs,
    run_tracked,
)
from jaxfn.torch._function.explanation import (
    TorchExplanation,
    explain_function,
    refused_graph,
    rule_graph,
)
from jaxfn.torch._function.function import bridged, check_key, refuse_tensors
from jaxfn.torch._function.graph_function import GraphFunction, remember
