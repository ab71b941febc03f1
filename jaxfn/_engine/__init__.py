"""`Rules` into JAX functions: custom_vjp, custom_jvp, custom_vmap and our primitives.

Read `rules` first: it says what a Function is in JAX's terms. Then `engines`, which
builds the JAX function, with `carrying` (how residuals get from fwd to bwd), `linear`
(a tangent map given with its transpose), `derive` (a jvp from a backward), `barrier`
(values that refuse a derivative: in forward mode, where `engines.call` finds that there
is no jvp, and a second time after once_differentiable) and `batching` (custom_vmap;
`def_vmap` is the same in JAX's terms).
`attachment` gives values a derivative after they were computed, and `gate` keeps out
that of their computation; `onepass` (with `runs`) and `tie` stand on them. `linearity`
and `smoothness` prove that a traced function is linear.

Nothing here knows ctx, torch, or how a user writes rules: that is what `_methods` and
the two faces, `_function` and `_decorator`, are for.
"""

from jaxfn._engine import linearity
from jaxfn._engine.attachment import attach
from jaxfn._engine.barrier import only_transposable
from jaxfn._engine.batching import differentiable, with_batch_rule
from jaxfn._engine.carrying import Statics
from jaxfn._engine.def_vmap import vmapped
from jaxfn._engine.engines import (
    call,
    engine,
    has_forward_mode,
    jax_jvp,
    jax_vjp,
    push_forward,
)
from jaxfn._engine.gate import distinct, stop_gradient, through_references
from jaxfn._engine.onepass import OnePass
from jaxfn._engine.rules import (
    Arrays,
    Batch,
    Fun,
    Origin,
    Perturbed,
    Residuals,
    Rules,
)
from jaxfn._engine.runs import Run, check_untraceable
from jaxfn._engine.tie import tied
