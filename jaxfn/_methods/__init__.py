"""The static methods of a class as `Rules`: their contexts, and checks of results.

`definition` looks up the rules of a class. If no argument is traced, `plain` runs
forward. Otherwise `traced` passes the `Rules` of `class_rules` to `_engine`; `styles`
runs forward. `node` is the ctx that rules get, `ctx` its public part, `no_graph` what
it lacks, `savable` what it saves. `running` explains errors of a rule. The modules
`returned_*` check results, with `returns` in common. `hooks` and `policies` (autocast)
are settings of a `with` block.

The way of a saved array: `node.save_for_backward`, `capture`, `_engine.onepass` (gives
it its derivative), `styles` (puts it in `Residuals`; hooks see it in `packed`),
`_engine.carrying`, `capture.rebuild` (makes a fresh ctx), `node.saved_tensors`.
"""

from jaxfn._methods import hooks, plain, policies, traced
from jaxfn._methods.capture import Layout, fields, is_record
from jaxfn._methods.class_rules import ClassRules
from jaxfn._methods.ctx import FunctionCtx
from jaxfn._methods.definition import Definition, rewrapped
from jaxfn._methods.node import BackwardCFunction
from jaxfn._methods.policies import Casting, Policy
