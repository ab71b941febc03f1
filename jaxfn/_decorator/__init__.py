"""The face in JAX's terms: `custom_function`, to whose rules JAX's strictness applies.

Read `decorator` (the object; its `def*` methods), `jax_rules` (what they define),
`jax_call` (a call) and `both` (rules of both kinds, as `Rules`, and their checks, as
strict as JAX's). `places` takes arguments apart, and `on_arrays` makes rules of which
JAX sees only arrays. `vmapped` puts a batch rule around a function. `kept` is for an
older JAX; `jax_own` is what only the installed JAX's own decorators have. Rules in
torch's terms make a class (`torch_rules`).

How rules of either kind become JAX functions belongs in `_engine`, ctx in `_methods`.
"""

from jaxfn._decorator.decorator import custom_function
from jaxfn._decorator.jax_call import call, positional
from jaxfn._decorator.jax_rules import JaxRules
from jaxfn._decorator.places import is_pair, is_static
