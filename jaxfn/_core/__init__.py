"""The mechanism: rules on flat lists of arrays, through JAX.

Its control flow knows neither ctx nor a class of the user: `Rules` holds the user's
rules, in terms of flat lists. (`messages` has torch's words, and `results` checks what
rules in torch's terms return.) Read `call`, `primitives`, `values`, `results`, `batch`,
`transpose`, `closures`, in this order, and then `jax_internals`, which has all that is
no stable, public API of JAX. What happens, under the names that the code has:

    call(rules, arrays):
        Rules with a backward alone are a jax.custom_vjp(primal) with fwd and bwd.
        Rules with a jvp, written or derived, are a jax.custom_jvp(primal) with push.
        So are others if the innermost transformation is a jvp: JAX may still transpose
        their tangents, but to evaluate them is refused.

    primal(arrays):                      # without a derivative: a plain call, jit, vmap
        outs = rules.value(arrays)
        rules.setup(...)                 # if it has one: it may have effects
        return tied(outs, arrays)        # a vmap batches all outputs if any array is

    fwd(arrays) = _fwd(rules, arrays):   # reverse mode asks for the outputs
        outs = rules.forward(arrays)     # traced first, if a float array is a tracer.
        outs = attach(_tangents, arrays, outs)
        saved = rules.setup(...)         # or what forward saved; outputs: attached
        return outs, residuals.pack(saved)

    bwd(saved, cts):                     # reverse mode has the cotangents
        return _pull(...)                # rules.backward(saved, cts): JAX may
                                         # differentiate its operations

    push(arrays, tangents):              # forward mode, and reverse mode through it
        outs, saved = _fwd(rules, arrays)
        return outs, _push(saved, tangents)

    _tangents(arrays, outs, tangents):   # the derivative of an output of fwd
        saved: again the arrays, the outs, and other values (the jaxpr of setup)
        return _push(saved, tangents)

    _push(saved, tangents):
        Without a backward: rules.jvp(saved, tangents). Otherwise the primitive
        `linear`. To bind it traces rules.jvp(saved, tangents) once, or the transpose of
        rules.backward; to evaluate it runs this jaxpr. Its transpose calls _pull.

So `jax.grad(f)` runs the Python of forward once and that of backward once. With a jvp,
`linear` also traces the jvp (a derived one: backward), although reverse mode does not
evaluate it. Under `jax.jit` inside of `jax.grad`, JAX traces primal when it traces the
jitted function, and fwd when it differentiates this: forward runs twice as Python, once
in the compiled program. In `jax.grad(jax.grad(f))` the outer derivative differentiates
the operations of backward. It also runs `_tangents` for the outputs of forward, and so
traces the jvp once more (without one: backward). If backward uses an output, this is
transposed too, and backward runs again. In forward mode over reverse mode,
`jax.jacfwd(jax.grad(f))`, it is evaluated even if the output is unused.

In a JAX with `SCAN_DROPS_JVP`, the primal of rules with forward mode is fwd. If the
rules have a value of their own, it is value, with the derivative of fwd attached.
"""

from jaxfn._core import closures, messages, results, values
from jaxfn._core import jax_internals as internals
from jaxfn._core.batch import (
    Batch,
    Fun,
    batchable,
    closed,
    unbatched,
    with_batch_rule,
)
from jaxfn._core.call import Rules, call
from jaxfn._core.closures import find, hides_array, in_cell
from jaxfn._core.messages import is_tensor, short, type_name
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
