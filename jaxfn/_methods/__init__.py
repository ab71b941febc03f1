"""The static methods of a class as `Rules`: their contexts, and checks of results.

If no argument is traced, `plain` runs forward. Otherwise `class_rules` makes `Rules` of
the class and gives them to `_engine`, whose `OnePass` asks `styles` to run forward, in
one of torch's two styles. `node` is the ctx that rules get, `ctx` its public part.
`returned_*` check results; `rule_errors` explains errors of a rule. `settings` has what
a `with` block sets: saved-tensor hooks and the autocast policy.

A saved array passes through `node.save_for_backward`, `capture`, `_engine.onepass`
(gives it its derivative), `styles` (puts it in `Residuals`; hooks see it in `packed`),
`_engine.carrying`, `capture.rebuild` (makes a fresh ctx) and `node.saved_tensors`.
"""

from jaxfn._methods import plain, settings
from jaxfn._methods.capture import Record, fields, is_record
from jaxfn._methods.class_rules import ClassRules, run_batched, run_traced
from jaxfn._methods.ctx import FunctionCtx
from jaxfn._methods.node import BackwardCFunction
from jaxfn._methods.packed import filled
from jaxfn._methods.styles import Definition, VmapInfo, rewrapped
