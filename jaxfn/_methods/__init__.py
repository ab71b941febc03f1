"""The static methods of a class as `Rules`: the contexts that they run in, and checks.

`definition` is what a class defines at this moment. `plain` runs it where no argument
is traced; else `traced` does, by `_engine`, with the `Rules` that `class_rules` makes
of it: a forward runs in one of two `styles`.
`node` is the ctx that rules get, `ctx` its public part, `no_graph` what it can't have,
`savable` what may be saved. `running` says more of a static method that fails.
`returned_gradients`, `returned_tangents` and `returned_batch` check what they returned,
and word the errors (of rules in JAX's terms, `_decorator` does), with `returns` in
common. `hooks` and `policies` (autocast) are settings of a `with` block.

A saved array: `node.save_for_backward`, taken out by `capture`, given its derivative
(by `_engine.onepass`), made one of the `Residuals` in `styles`, where
hooks see it (`packed`), carried by `_engine.carrying`, put into a fresh ctx by
`capture.rebuild`, which `class_rules` calls, read by `node.saved_tensors`.

The class itself and its `apply` belong in `_function`, how JAX is told in `_engine`.
"""

from jaxfn._methods import hooks, plain, policies, traced
from jaxfn._methods.capture import Layout, fields, is_record
from jaxfn._methods.class_rules import ClassRules
from jaxfn._methods.ctx import FunctionCtx
from jaxfn._methods.definition import Definition, rewrapped
from jaxfn._methods.node import BackwardCFunction
from jaxfn._methods.policies import Casting, Policy
