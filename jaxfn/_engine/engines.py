"""Engines: `Rules` into a JAX function.

| rules       | definition | reverse mode       | forward mode                |
|-------------|------------|--------------------|-----------------------------|
| bwd         | custom_vjp | bwd                | refused (`gate`, or JAX)    |
| jvp         | custom_jvp | jvp transposed     | jvp                         |
| bwd, jvp    | custom_jvp | bwd (see `linear`) | jvp                         |
| bwd, derive | custom_jvp | bwd (see `linear`) | bwd transposed              |

If there is only a bwd, each derivative of a derivative traces its transpose; only
forward over reverse mode (jvp of grad) evaluates it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn._base import Outputs, compat, errors, is_inexact
from jaxfn._engine.carrying import Carrier
from jaxfn._engine.derive import transposed
from jaxfn._engine.gate import once, only_transposable
from jaxfn._engine.linear import linear
from jaxfn._engine.rules import Arrays, Perturbed, Residuals, Rules, spread

Rule = Callable[..., Any]


def call(rules: Rules, arrays: Arrays) -> Any:
    """Call the Function that has these rules on flat arrays, through JAX."""
    has_forward_mode = rules.jvp is not None or rules.derive_jvp
    try:
        # JAX would refuse at once, although it may transpose the call later.
        if not has_forward_mode and compat.in_forward_mode(arrays):
            arrays = only_transposable(arrays, name=rules.name)
        make = _as_custom_jvp if has_forward_mode else _as_custom_vjp
        outs = make(rules)(*arrays)
    except jax.errors.UnexpectedTracerError as error:
        # JAX raises this for a tracer that the rules closed over; under jet it always
        # does.
        if compat.in_jet(arrays):
            raise errors.RuleError(errors.JET.format(name=rules.name)) from error
        said = errors.CLOSED_OVER.format(name=rules.name)
        raise errors.ClosedOverError(said) from error
    except TypeError as error:
        add_hint(error, errors.NO_JVP_NOTE.format(name=rules.name))
        raise
    found = list(outs.arrays)
    # A marked output may be unbatched. For an unbatched output of a custom_vjp, JAX
    # refuses a cotangent, so stop it here. (A custom_jvp gives no tangent.)
    if not has_forward_mode:
        for i in outs.static.marked:
            found[i] = jax.lax.stop_gradient(found[i])
    return outs.static.whole.join(found)


def add_hint(error: TypeError, hint: str) -> None:
    """Add a hint to JAX's refusal of forward mode; the innermost Function does."""
    if str(error) == compat.FORWARD_MODE_REFUSAL and not hasattr(error, "__notes__"):
        error.add_note(hint)


def _primal(rules: Rules) -> Callable[..., Outputs]:
    """Make the primal, under the name that jaxprs and profiles show."""

    def primal(*args: Any) -> Outputs:
        # JAX passes on constants as numbers and NumPy arrays; rules get JAX arrays.
        arrays = list(map(compat.as_array, args))
        return _refusing_closures(rules.name, rules.primal, arrays)

    primal.__name__ = rules.name
    return _described(primal, rules, "", _ANY)


def _refusing_closures(
    name: str, run: Callable[..., Any], arrays: Sequence[Any], *args: Any
) -> Any:
    """Call `run`, which runs forward; refuse a closed-over tracer with a derivative."""
    recording = compat.Recording()
    found = run(arrays, *args)
    if recording.loses_derivative(arrays):
        raise errors.ClosedOverError(errors.CLOSED_OVER.format(name=name))
    return found


_ANY = inspect.signature(lambda *args: args)
_BWD = inspect.signature(lambda saved, cts: (saved, cts))
_JVP = inspect.signature(lambda primals, tangents: (primals, tangents))


def _described(
    fun: Rule, rules: Rules, rule: str, signature: inspect.Signature
) -> Rule:
    """Tell JAX the signature, name, file and line of a function, and return it.

    JAX would inspect the function for them. Jaxprs and errors show the name of the
    Function, or `Name.rule`, with the user's file and line.
    """
    # `inspect.signature` reads this attribute first. Inspecting the function would take
    # longer than everything else here.
    fun.__dict__["__signature__"] = signature
    if rules.origin is not None:
        place = rules.origin.sources.get(rule or "forward")
        name = f"{rules.name}.{rule}" if rule else rules.name
        source = f"{name} at {place}" if place else name
        compat.set_debug_info(fun, rules.name, source, rules.origin.arguments)
    return fun


def _needed(args: Arrays, perturbed: Sequence[bool]) -> Perturbed:
    """Return which arguments any transformation around the call differentiates.

    As in torch, an argument needs a gradient whichever transformation takes it. A
    gradient penalty differentiates by one argument inside and by another outside;
    forward saves for both.
    """
    # JAX's next implementation calls integers perturbed, too.
    found = zip(args, perturbed, map(compat.is_differentiated, args), strict=True)
    return tuple([is_inexact(x) and (inner or outer) for x, inner, outer in found])


# ---- custom_vjp


def _as_custom_vjp(rules: Rules) -> Callable[..., Outputs]:
    """Make the custom_vjp of a Function that has a backward alone."""
    carrier = Carrier(rules.name)

    def fwd(*primals: Any) -> Any:
        args = [compat.as_array(p.value) for p in primals]
        perturbed = _needed(args, [p.perturbed for p in primals])
        outs, residuals = rules.fwd(args, perturbed)
        return outs, carrier.pack(residuals, args)

    def bwd(saved: Any, cts: Outputs) -> Any:
        residuals = carrier.unpack(saved)
        cotangents = list(map(compat.as_tangent, cts.arrays))
        return tuple(pull_back(rules, residuals, cotangents))

    f = jax.custom_vjp(_primal(rules))
    fwd.__name__, bwd.__name__ = f"{rules.name}_fwd", f"{rules.name}_backward"
    _described(fwd, rules, "forward", _ANY)
    bwd = _described(bwd, rules, "backward", _BWD)
    f.defvjp(fwd, bwd, symbolic_zeros=compat.SYMBOLIC_ZEROS)
    return f


# ---- custom_jvp


def _as_custom_jvp(rules: Rules) -> Callable[..., Outputs]:
    """Make the custom_jvp of a Function that has a jvp, written or derived."""
    f = jax.custom_jvp(_primal(rules))

    def rule(primals: Arrays, tangents: Arrays) -> tuple[Outputs, Outputs]:
        args = [compat.as_array(x) for x in primals]
        in_tangents = list(map(compat.as_tangent, tangents))
        perturbed = _needed(args, [t is not None for t in in_tangents])
        outs, residuals = _refusing_closures(rules.name, rules.fwd, args, perturbed)
        out_tangents = push_forward(rules, residuals, outs.arrays, in_tangents)
        found = compat.with_zeros(out_tangents, outs.arrays)
        return outs, Outputs(found, outs.static)

    rule.__name__ = f"{rules.name}_jvp"
    rule = _described(rule, rules, "jvp", _JVP)
    f.defjvp(rule, symbolic_zeros=compat.SYMBOLIC_ZEROS)
    return f


def push_forward(
    rules: Rules, residuals: Residuals, outs: Arrays, tangents: Arrays
) -> Arrays:
    """Return the tangents of the outputs, with the Function's backward as transpose.

    They are J t, for the Jacobian J of the Function. If there is a backward, ct -> J^T
    ct, `linear` binds the two together as one map and its transpose.

    The custom_jvp above and the outputs of fwd (`attachment`) have this derivative.
    """
    if rules.bwd is None:
        assert rules.jvp is not None
        # JAX transposes the operations of the jvp.
        return rules.jvp(residuals, tangents)
    # The functions below outlive this trace, so they close over no arrays.
    static, differentiable = residuals.static, residuals.differentiable
    n_args = len(tangents)
    nonzero = [i for i, t in enumerate(tangents) if t is not None]
    avals = [
        compat.tangent_aval(o) for o, s in zip(outs, differentiable, strict=True) if s
    ]
    if not nonzero or not avals:
        return [None] * len(outs)

    # The linear map gets the arrays as arguments, because batching and differentiating
    # replace them.
    def rebuild(arrays: Arrays) -> Residuals:
        return Residuals(arrays, static, differentiable)

    def transpose(arrays: Arrays, cts: Arrays) -> list[Any]:
        in_cts = pull_back(rules, rebuild(arrays), spread(cts, differentiable))
        return [in_cts[i] for i in nonzero]

    def evaluate(arrays: Arrays, ts: Arrays) -> Arrays:
        if rules.jvp is None:

            def derived(arrays: Arrays) -> Arrays:
                return transposed(rules, rebuild(arrays), nonzero, ts, avals)

            # J t may be transposed. A derivative of J t by a residual is a derivative
            # of backward, which refuses.
            if rules.once:
                return once(derived, arrays, name=rules.name)
            return derived(arrays)
        full: list[Any] = [None] * n_args
        for i, t in zip(nonzero, ts, strict=True):
            full[i] = t
        out_tangents = rules.jvp(rebuild(arrays), full)
        kept = [t for t, s in zip(out_tangents, differentiable, strict=True) if s]
        return [
            compat.zeros(a) if t is None else t
            for t, a in zip(kept, avals, strict=True)
        ]

    ts = [tangents[i] for i in nonzero]
    outs_t = linear(evaluate, transpose, residuals.arrays, ts, avals, name=rules.name)
    return spread(outs_t, differentiable)


def pull_back(rules: Rules, residuals: Residuals, cts: Arrays) -> Arrays:
    """Return the cotangents of the arguments, by the Function's own backward.

    The gradients of a `once_differentiable` backward raise if they are differentiated.
    """
    bwd = rules.bwd
    assert bwd is not None
    if not rules.once:
        return bwd(residuals, cts)
    # A derivative of the result by a residual or cotangent is one of backward.
    has_cotangent = [ct is not None for ct in cts]
    inputs = [*residuals.arrays, *[ct for ct in cts if ct is not None]]
    n_res = len(residuals.arrays)

    def run(inputs: list[Any]) -> Arrays:
        saved = Residuals(inputs[:n_res], residuals.static, residuals.differentiable)
        return bwd(saved, spread(inputs[n_res:], has_cotangent))

    return once(run, inputs, name=rules.name)
