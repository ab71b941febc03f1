"""The face in torch's terms: the class `Function`, and its `apply`.

In a call, `binding` binds keywords and defaults to positions. If no argument is traced,
`_methods.plain` runs the static methods. Otherwise `Arguments` (of `_base`) takes the
arguments apart, and `run_traced` of `_methods` passes the static methods to `_engine`.
`legacy` has torch's older classes.
"""

from jaxfn._function.binding import bind, parameters
from jaxfn._function.function import (
    Function,
    FunctionMeta,
    apply_batched,
    once_differentiable,
    parts,
)
from jaxfn._function.legacy import InplaceFunction, NestedIOFunction
