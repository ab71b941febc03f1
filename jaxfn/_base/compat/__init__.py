"""The only door to JAX that is not stable public API.

What comments say of JAX, here and elsewhere, was checked on 0.10.2 (the newest for
Python 3.11) and 0.12.0. What other modules need of JAX's internals has a name here;
nothing else imports `jax.extend`, `jax.interpreters` or `jax._src`, and nothing else
knows a version. To read in this order: `traces` (tracers), `values` and `jaxprs`, then
`flow`, `staged`, `recording`, `primitives` and `interpreters`, on which our own
primitives stand; `decorators` holds what JAX's three say and ask for: error texts,
debug info, hidden frames, symbolic zeros.

A name that JAX moved gets one name here: an import that is tried in both places. What
behaves differently gets a constant that says how (`SCAN_DROPS_JVP`); no other module
asks for a version. The tests run on an old JAX and on the newest, so they tell.

Names of operations, and forms of equations, are also known to those who read jaxprs:
`linearity` and `derive` of `_engine`, `trace` of `_explain`, `jaxprs` and `flow` here.
New methods of JAX's decorators are found by `_decorator.jax_own`.
"""

# fmt: off
from jaxfn._base.compat.decorators import (
    FORWARD_MODE_REFUSAL, SCAN_DROPS_JVP, SYMBOLIC_ZEROS,
    hide_frames, is_refused_solve, lacks_transpose, place_of,
    set_debug_info, with_hidden_frames,
)
from jaxfn._base.compat.flow import PAIRED
from jaxfn._base.compat.jaxprs import (
    COMPILE_QUICKLY, constants, count_equations, evaluate, has_named_axes,
    has_transpose, is_batched_by_jax, make_jaxpr, may_not_end, open_jaxpr,
    scan_counts, used_inputs,
)
from jaxfn._base.compat.primitives import BatchAxis, Named, define_primitive
from jaxfn._base.compat.recording import (
    Recording, is_constant,
)
from jaxfn._base.compat.staged import Failed, Staged, is_reference, makes_references
from jaxfn._base.compat.traces import (
    ConcreteArray, in_forward_mode,
    in_jet, in_kernel, is_abstract, is_differentiated, is_final,
    is_leaked, is_lost, is_staging, is_tracer, is_transforming, known_value,
)
from jaxfn._base.compat.values import (
    SymbolicZero, as_array, as_tangent, has_type, is_sharded, is_sharded_otherwise,
    is_unreduced, is_zero, match_varying, tangent_aval, tangent_dtype, varying_axes,
    with_zeros,
    zeros,
)
