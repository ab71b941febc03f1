"""The face in JAX's terms: `custom_function`, to whose rules JAX's strictness applies.

Read `decorator` (the object; its `def*` methods), `jax_rules` (the rules that they
define) and `jax_call` (a call; `Rules` of both kinds). `places` takes arguments apart,
and makes rules of which JAX sees only arrays. `vmapped` puts a batch rule around a
function. `scans` is for an older JAX; `jax_own` finds methods that only the installed
JAX's decorators have.

How rules of either kind become JAX functions belongs in `_engine`, ctx in `_methods`.
"""

from jaxfn._decorator.decorator import custom_function
from jaxfn._decorator.jax_call import call, positional
from jaxfn._decorator.jax_rules import JaxRules
from jaxfn._decorator.places import is_pair, split
