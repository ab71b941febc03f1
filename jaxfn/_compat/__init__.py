"""The only door to JAX that is not stable public API.

What comments say of JAX, here and elsewhere, was checked on 0.10.2 (the newest for
Python 3.11) and 0.12.0. What other modules need of JAX's internals has a name here;
nothing else imports `jax.extend`, `jax.interpreters` or `jax._src`, and nothing else
knows a version. To read in this order: `traces` (tracers), `values` and `jaxprs`, then
`recording`, `staged`, `primitives` and `interpreters`, on which our own primitives
stand; `decorators` is about JAX's.
"""

from jaxfn._compat.decorators import (
    FORWARD_MODE_REFUSAL,
    SCAN_DROPS_JVP,
    SYMBOLIC_ZEROS,
    is_batched_constant,
    set_debug_info,
    source_of,
)
from jaxfn._compat.jaxprs import (
    constants,
    evaluate,
    evaluate_equation,
    has_named_axes,
    has_transpose,
    open_jaxpr,
    scan_counts,
)
from jaxfn._compat.primitives import BatchAxis, Named, define_primitive
from jaxfn._compat.recording import Recording
from jaxfn._compat.staged import Failed, Staged
from jaxfn._compat.traces import (
    ConcreteArray,
    batch_axes,
    has_other_tangents,
    has_value,
    in_forward_mode,
    is_abstract,
    is_differentiated,
    is_eager_forward,
    is_final,
    is_leaked,
    is_lost,
    is_staging,
    is_tracer,
    is_transforming,
)
from jaxfn._compat.values import (
    SymbolicZero,
    as_array,
    has_type,
    is_sharded,
    is_sharded_otherwise,
    is_zero,
    match_varying,
    tangent_aval,
    varying_axes,
    zeros,
)

__all__ = [
    "FORWARD_MODE_REFUSAL",
    "SCAN_DROPS_JVP",
    "SYMBOLIC_ZEROS",
    "BatchAxis",
    "ConcreteArray",
    "Failed",
    "Named",
    "Recording",
    "Staged",
    "SymbolicZero",
    "as_array",
    "batch_axes",
    "constants",
    "define_primitive",
    "evaluate",
    "evaluate_equation",
    "has_named_axes",
    "has_other_tangents",
    "has_transpose",
    "has_type",
    "has_value",
    "in_forward_mode",
    "is_abstract",
    "is_batched_constant",
    "is_differentiated",
    "is_eager_forward",
    "is_final",
    "is_leaked",
    "is_lost",
    "is_sharded",
    "is_sharded_otherwise",
    "is_staging",
    "is_tracer",
    "is_transforming",
    "is_zero",
    "match_varying",
    "open_jaxpr",
    "scan_counts",
    "set_debug_info",
    "source_of",
    "tangent_aval",
    "varying_axes",
    "zeros",
]
