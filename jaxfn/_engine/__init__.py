"""`Rules` into JAX functions: custom_vjp, custom_jvp, custom_vmap and our primitives.

The steps of a call, with their modules. A face (`_function`, `_decorator`) runs
forward: it makes a `OnePass`, and its methods `primal` and `fwd` become rules. (Without
tracers, a class runs in `_methods.plain` instead.)

    call(rules, arrays):                                  # engines
        f = custom_vjp(primal, fwd, bwd)  if rules have a backward alone
            custom_jvp(primal, jvp)       else
        return f(*arrays)
    primal(arrays):                                       # onepass: the value alone
        return tied(forward(arrays), arrays)              # tie
    fwd(arrays):                                          # onepass: for a derivative
        # The gate is closed, unless forward saves a value that it computed.
        outs, saved = forward(gate(arrays))               # gate
        outs = attach(rule, arrays, tied(outs, arrays))   # attachment
        # In saved: the arrays and the attached outs, each in its place.
        return outs, saved                                # carrying: from fwd to bwd
    bwd(saved, cts):
        return pull(saved, cts)                           # rules.bwd
    jvp(arrays, tangents):
        outs, saved = fwd(arrays)
        return outs, push(saved, tangents)
    push(saved, tangents):                                # engines.push_forward
        if there is no backward: return rules.jvp(saved, tangents) # JAX transposes it
        # `evaluate` is rules.jvp, or backward transposed (derive). It is traced at
        # once, in reverse mode too. There JAX uses `pull` as the transpose of the map.
        return linear(evaluate, pull, saved, tangents)    # linear
    rule(arrays, outs, tangents):                         # a derivative of a derivative
        return push(saved with these arrays and outs in it, tangents)

So fwd runs the Python of forward once, however many derivatives are taken. (Under jit
JAX traces primal first, so forward runs once more.) The outputs have the derivative of
the rules, at any order. If forward saved an intermediate, this value has the derivative
of forward's operations. JAX batches each rule, so the derivative of an example of a
vmap depends on that example alone.

Forward may have a second part, setup_context (`onepass`). `batching` puts a user's
batch rule around forward. `linearity` proves that JAX may transpose a backward. Read
`rules` first.

This package knows neither ctx nor torch, nor how a user writes rules. `_methods` and
the two faces know these.
"""

from jaxfn._engine import linearity
from jaxfn._engine.attachment import attach
from jaxfn._engine.batching import differentiable, with_batch_rule
from jaxfn._engine.carrying import Carrier
from jaxfn._engine.engines import add_hint, call, push_forward
from jaxfn._engine.gate import without_derivative
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
