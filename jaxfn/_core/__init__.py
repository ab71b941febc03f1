"""The mechanism: rules on flat lists of arrays, through JAX.

Nothing here knows a ctx or a class of the user. Read the modules in this order: `call`,
`primitives`, `values`, `results`, `batch`, `transpose`, `closures`. What happens, where
`rules` has the rules of one call:

    call(rules, arrays):
        rules with a backward alone are a jax.custom_vjp(primal) with fwd and bwd;
        rules with a jvp, written or derived, are a jax.custom_jvp(primal) with push.

    primal(arrays):                      # no derivative: a plain call, jit, vmap
        outs = forward(arrays)
        return outs, each tied to all arrays, so that a vmap batches all of them

    fwd(arrays):                         # reverse mode asks for the outputs
        outs, saved = forward(arrays)    # traced, then evaluated, if arrays are traced
        outs = attach(rule, arrays, outs)    # a derivative of outs is that of the rules
        return outs, saved               # a saved output is the attached one

    bwd(saved, cts):                     # reverse mode has the cotangents
        return backward(saved, cts)      # JAX differentiates its operations if asked

    push(arrays, tangents):              # forward mode, and reverse mode through it
        outs, saved = fwd(arrays)
        return outs, linear(jvp, backward, saved, tangents)

    rule(arrays, outs, tangents):        # the derivative of an output of fwd
        return linear(jvp, backward, saved from arrays and outs, tangents)

    linear(jvp, backward, saved, tangents):
        evaluated, it is jvp(saved, tangents), or the transpose of backward;
        transposed, it is backward(saved, cts).

So `jax.grad(f)` runs forward once and backward once. Under `jax.jit` inside of it, JAX
traces primal when it traces the jitted function, and fwd when it differentiates this:
forward runs twice as Python, once in the compiled program. In `jax.grad(jax.grad(f))`
the outer derivative meets the operations of backward, and `rule` where backward uses a
saved output.
"""

from jaxfn._core import closures, messages, results, values
from jaxfn._core import jax_internals as internals
from jaxfn._core.batch import Batch, Fun, batchable, closed, with_batch_rule
from jaxfn._core.call import Rules, call
from jaxfn._core.closures import find, hides_array, in_cell
from jaxfn._core.messages import short, type_name
from jaxfn._core.primitives import attach, gate, jvp_along, refusing
from jaxfn._core.values import (
    ARRAY,
    Arrays,
    Box,
    Layout,
    Mask,
    Outputs,
    Spec,
    as_jax,
    conj,
    grouped,
    is_array,
    is_extended,
    is_inexact,
    is_number,
    is_numeric,
    pair,
    split,
    spread,
)
