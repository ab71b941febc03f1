"""What all other rooms stand on; it imports none of them.

Read `errors`, then `pytree` (array leaves and static leaves), then `scoped` (settings
that a `with` block changes). `compat` is a room of its own inside this one: the only
place that knows versions of JAX, or anything of it that is not stable public API.

What belongs to Functions (rules, ctx, arguments) does not belong here. Other rooms
write `compat.`, `errors.` and `pytree.` before most names; the few below are said so
often that they go without.
"""

from jaxfn._base import compat, errors, pytree
from jaxfn._base.errors import short, type_name
from jaxfn._base.pytree import ARRAY, Outputs, OutSpec, Spec, as_jax, is_inexact
from jaxfn._base.scoped import Scoped
