"""The face in torch's terms: the class `Function`, and its `apply`.

Follow a call: `function` (the class; `apply`) gets its arguments bound to positions by
`binding`, and taken apart. If none of them is traced, `_methods.plain` runs the class's
static methods at once; else `_methods.ClassRules` makes `Rules` of them, and `_engine`
calls those: forward now, backward when JAX asks for it. `legacy` holds torch's older
classes.

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
