"""The face in JAX's terms: `custom_function`, to whose rules JAX's strictness applies.

Read `decorator` (the object; its `def*` methods), `jax_rules` (what they define),
`jax_call` (a call) and `both` (rules of both kinds, as `Rules`, and their checks, as
strict as JAX's). `places` tells arguments apart, `kept` is for an older JAX alone,
`static` carries arguments that JAX can't hold; `jax_own` is what only
the installed JAX's own decorators have. Rules in torch's terms make a class
(`torch_rules`).

How rules of either kind become JAX functions belongs in `_engine`, ctx in `_methods`.
"""

from jaxfn._decorator.decorator import custom_function
from jaxfn._decorator.jax_call import call, positional
from jaxfn._decorator.jax_rules import JaxRules
from jaxfn._decorator.places import is_pair
from jaxfn._decorator.static import is_static
