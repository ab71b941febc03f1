"""The face in torch's terms: the class `Function`, and its `apply`.

Follow a call: in `function` (the class; `apply`), keywords and defaults are bound to
positions by `binding`. If no argument is traced, `_methods.plain` runs the class's
static methods at once. Else the arguments are taken apart (`Arguments`, of `_base`),
`_methods.ClassRules` makes `Rules` of the static methods, and `_engine.call` makes a
JAX function of these: JAX calls forward now and backward later. `legacy` holds torch's
older classes.

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
