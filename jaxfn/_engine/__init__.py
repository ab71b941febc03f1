"""`Rules` into JAX functions: custom_vjp, custom_jvp, custom_vmap and our primitives.

The steps of a call, with their modules. A face (`_function`, `_decorator`) runs
forward: it makes a `OnePass`, and its methods `primal` and `fwd` become rules. (Without
tracers, a class runs in `_methods.plain` instead.)

    call(rules, arrays):                                  # engines
        f = custom_jvp(primal, jvp)       if rules have a jvp, or derive one
            custom_vjp(primal, fwd, bwd)  else
        return f(*arrays)
    primal(arrays):                                       # onepass: the value alone
        return tied(forward(arrays), arrays)              # tie
    fwd(arrays):                                          # onepass: for a derivative
        # The gate is closed, unless forward saves a value that it computed.
        outs, saved = forward(gate(arrays))               # gate
        outs = attach(tangents_of, arrays, tied(outs, arrays))  # attachment
        # A second part, setup_context, saves instead of forward; primal calls it too.
        # In saved: the arrays and the attached outs, each in its place.
        return outs, saved                                # carrying: from fwd to bwd
    bwd(saved, cts):
        return pull_back(saved, cts)                      # engines.pull_back
    jvp(arrays, tangents):
        outs, saved = fwd(arrays)
        return outs, push_forward(saved, tangents)
    push_forward(saved, tangents):                        # engines.push_forward
        if there is no backward: return the user's jvp(saved, tangents)
        # `evaluate` is the user's jvp, or backward transposed (derive). It is traced
        # at once, in reverse mode too. There JAX transposes the map by `pull_back`.
        return linear(evaluate, pull_back, saved, tangents)  # linear
    tangents_of(arrays, outs, tangents):                  # a derivative of a derivative
        return push_forward(saved with these arrays and outs in it, tangents)

So each trace of fwd runs the Python of forward once, however many derivatives are
taken. (Under jit JAX traces primal first, so forward runs once more. It also does where
outside jit nothing but a trace can tell two outputs, or a reference, apart.) The
outputs have the derivative of the rules, at any order. If forward saved an
intermediate, this value has the derivative of forward's operations. JAX batches each
rule, so the derivative of an example of a vmap depends on that example alone.

`batching` puts a user's batch rule around forward. `linearity` proves that JAX may
transpose a backward. Read `rules` first.

This package imports nothing that knows ctx, torch, or how a user writes rules; only its
messages name them. `_methods` and the two faces know these.
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
