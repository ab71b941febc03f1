"""The face in JAX's terms: `custom_function`, whose rules are checked as JAX does.

Read `decorator` (the object and its `def*` methods), `jax_rules` (the rules that they
define) and `jax_call` (a call; `Rules` of both kinds). `places` takes arguments apart,
and makes rules that show JAX only arrays. `vmapped` puts a batch rule around a
function. `scans` is for an older JAX. `jax_own` finds methods that only the installed
JAX's decorators have.

`_engine` makes JAX functions from rules of both kinds; `_methods` knows ctx.
"""

from jaxfn._decorator.decorator import custom_function
from jaxfn._decorator.jax_call import call, positional
from jaxfn._decorator.jax_rules import JaxRules
from jaxfn._decorator.places import is_pair, split
