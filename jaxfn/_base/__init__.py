"""The base of all other rooms; it imports none of them.

`errors` has exceptions and messages. `pytree` splits values into array leaves and
static leaves; `arguments` splits a call. `search` finds arrays that JAX can't see.
`compat` is the only room that knows versions of JAX and its unstable API. Rules and ctx
do not belong here.
"""

from jaxfn._base import compat, errors, pytree, search
from jaxfn._base.arguments import Arguments, Kwargs, Parameters
from jaxfn._base.errors import short, type_name
from jaxfn._base.pytree import ARRAY, Outputs, OutSpec, Spec, as_jax, is_inexact
