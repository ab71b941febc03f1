"""The only door to the unstable API and the versions of JAX.

No other room imports `jax.extend`, `jax.interpreters` or `jax._src`. If versions of JAX
behave differently, a constant says how (`SCAN_DROPS_JVP`). The comments in all rooms
were checked on JAX 0.10.2 (the newest for Python 3.11) and 0.12.0.

Read `traces` (tracers), `values`, `jaxprs`, `staged`, `recording`, `primitives`
and `interpreters`. `decorators` serves JAX's three decorators: error texts, debug info,
hidden frames, symbolic zeros.

Some readers of jaxprs also know names of operations: `linearity` and `derive` of
`_engine`, and `trace` of `_explain`. `_decorator.jax_own` finds new methods of JAX's
decorators.
"""

# fmt: off
from jax.experimental.custom_partitioning import custom_partitioning
from jaxfn._base.compat.decorators import (
    FORWARD_MODE_REFUSAL, NEEDS_VALUES, SCAN_DROPS_JVP, SYMBOLIC_ZEROS, hide_frames,
    is_refused_solve, lacks_transpose, place_of, set_debug_info, with_hidden_frames,
)
from jaxfn._base.compat.jaxprs import (
    COMPILE_QUICKLY, evaluate, has_transpose, is_batched_by_jax, make_jaxpr,
    open_jaxpr, scan_counts, transpose,
)
from jaxfn._base.compat.primitives import BatchAxis, Named, define_primitive
from jaxfn._base.compat.recording import PAIRED, Recording, is_constant
from jaxfn._base.compat.staged import Failed, Staged, is_reference, makes_references
from jaxfn._base.compat.traces import (
    ConcreteArray, in_forward_mode, in_jet, in_kernel, is_abstract, is_differentiated,
    is_final, is_leaked, is_lost, is_staging, is_tracer, is_transforming, known_value,
)
from jaxfn._base.compat.values import (
    SymbolicZero, as_array, as_tangent, has_type, is_sharded, is_sharded_otherwise,
    is_unreduced, is_zero, match_varying, tangent_aval, tangent_dtype, varying_axes,
    with_zeros, zeros,
)
