"""The face in torch's terms: the class `Function`, and its `apply`.

Follow a call: in `function` (the class; `apply`), keywords and defaults are bound to
positions by `binding`. If no argument is traced, `_methods.plain` runs the class's
static methods at once. Else the arguments are taken apart (`Arguments`, of `_base`),
and `_methods.traced` has `_engine` make a JAX function of the static methods: JAX calls
forward now and backward later. `legacy` holds torch's older classes.

What runs the static methods (ctx, what is saved on it, checks of what they return)
belongs in `_methods`.
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
