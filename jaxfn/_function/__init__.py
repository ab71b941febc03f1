"""The face in torch's terms: `Function`, its contexts, and its rules as `Rules`.

Follow a call: `function` (the class; `apply`), `arguments` (bound to positions, taken
apart), then `plain` where no transformation is active, else `definition` (the rules of
the class at this moment) and `class_rules`. A forward runs in one of two `styles`, of
which `separate` is the one with setup_context. `node` is the ctx that rules get, `ctx`
its public part, `no_graph` what it can't have, `savable` what may be saved. Rules are
called inside of `running`, which says more where they fail; `returned_gradients`,
`returned_tangents` and `returned_batch` check what they returned, and word the errors
(of rules in JAX's terms, `_decorator` does), with `returns` in common.
`hooks` and `policies` (autocast) are settings of a `with` block; `legacy` holds torch's
older classes.

A saved array: `node.save_for_backward`, taken out by `capture` (and `packed`, for
hooks), made residuals in `styles` or `separate`, carried by `_engine`, put into a fresh
ctx by `capture.rebuild`, which `class_rules` calls, read by `node.saved_tensors`.

torch's names and leniency belong here; how JAX is told belongs in `_engine`.
"""

from jaxfn._function import hooks, policies
from jaxfn._function.arguments import Arguments, bind, parameters
from jaxfn._function.capture import Layout, fields, is_record
from jaxfn._function.class_rules import ClassRules
from jaxfn._function.ctx import FunctionCtx
from jaxfn._function.definition import Definition
from jaxfn._function.function import (
    Function,
    FunctionMeta,
    apply_batched,
    once_differentiable,
    parts,
)
from jaxfn._function.legacy import InplaceFunction, NestedIOFunction
from jaxfn._function.node import BackwardCFunction
from jaxfn._function.policies import Casting, Policy
