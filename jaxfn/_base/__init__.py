"""What all other rooms stand on; it imports none of them.

Read `errors`, then `pytree` (array leaves and static leaves), `arguments` (those of a
call, taken apart), `search` (arrays in objects that JAX does not look into) and
`scoped` (settings of a `with` block). `compat`
is a room of its own inside this one: the only place that knows versions of JAX, or
anything of it that is not stable public API.

What a Function does (rules, ctx, how a call is bound) does not belong here. Other rooms
write `compat.`, `errors.`, `pytree.` and `search.` before most names; the few names
below are said so often that they go without.
"""

from jaxfn._base import compat, errors, pytree, search
from jaxfn._base.arguments import Arguments, Kwargs, Parameters
from jaxfn._base.errors import short, type_name
from jaxfn._base.pytree import ARRAY, Outputs, OutSpec, Spec, as_jax, is_inexact
from jaxfn._base.scoped import Scoped
