"""`Rules` into JAX functions: custom_vjp, custom_jvp, custom_vmap and our primitives.

What happens to a call, with the module of each step:

    call(rules, arrays):                                  # engines
        f = custom_vjp(primal, fwd, bwd)  if rules have a backward alone
            custom_jvp(primal, jvp)       else
        return f(*arrays)
    primal(arrays):                                       # onepass: no derivative
        return tied(forward(arrays), arrays)              # tie
    fwd(arrays):                                          # onepass: a derivative
        outs, saved = forward(gate(arrays))               # gate: no derivative gets in
        outs = attach(tangents, arrays, tied(outs))       # attachment
        return outs, saved with the arrays and the attached outs in their places
    bwd(saved, cts):                                      # carrying: from fwd to bwd
        return pull(saved, cts)                           # rules.bwd
    jvp(arrays, dots):
        outs, saved = fwd(arrays)
        return outs, push(saved, dots)
    push(saved, dots):                                    # engines.push_forward
        if there is no backward: return rules.jvp(saved, dots)     # JAX transposes it
        # Evaluated it is rules.jvp, or backward transposed (derive); transposed, pull.
        return linear(evaluate, pull, saved, dots)        # linear
    tangents(arrays, outs, dots):                         # a derivative of a derivative
        return push(saved with these arrays and outs in it, dots)

So forward runs once, a derivative of any order meets the rules and never the body of
forward, and under vmap each example's rule runs alone. `batching` puts a user's batch
rule around forward. `linearity` proves that a backward may be transposed. `untraceable`
is for a forward that needs values. Read `rules` first: it defines what a Function is in
JAX's terms.

Nothing here knows ctx, torch, or how a user writes rules: that is what `_methods` and
the two faces, `_function` and `_decorator`, are for.
"""

from jaxfn._engine import linearity
from jaxfn._engine.attachment import attach
from jaxfn._engine.batching import differentiable, with_batch_rule
from jaxfn._engine.carrying import Carrier
from jaxfn._engine.engines import (
    call,
    engine,
    has_forward_mode,
    jax_jvp,
    push_forward,
)
from jaxfn._engine.gate import stop_gradient
from jaxfn._engine.onepass import OnePass, Run
from jaxfn._engine.rules import (
    Arrays,
    Batch,
    Fun,
    Origin,
    Perturbed,
    Residuals,
    Rules,
    jvp_along,
)
from jaxfn._engine.tie import tied
