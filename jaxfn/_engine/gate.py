"""Letting derivatives into a forward, keeping them out, or refusing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn._base import compat, errors
from jaxfn._engine.attachment import attach
from jaxfn._engine.linear import linear
from jaxfn._engine.rules import Arrays, spread


class Gate:
    """Lets derivatives into a forward, or keeps them out; decided after it has run.

    The outputs of a Function have the derivative of its rules, so no derivative may
    enter its body, which may not even have one (a host callback). But an intermediate
    that forward saved has the derivative of the body, which must then come in. Whether
    there is one is known when forward has run; JAX asks later, when it differentiates.

    Attributes:
        open: Whether derivatives pass.
    """

    open = False

    def enter(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the arrays behind the gate; one that is no tracer passes as it is.

        `onepass` finds saved values by identity. Under eager transformations the array
        of a tracer may be in use elsewhere too, as another argument for example.
        So it becomes an object of its own, with the same buffer.
        """
        traced = [compat.is_tracer(x) for x in arrays]
        if not any(traced):
            return list(arrays)
        # One by one. JAX transposes an equation as a whole: of several arrays together,
        # one that is linear (a tangent that is transposed later) would make all linear.
        inside: list[Any] = []
        for x, is_traced in zip(arrays, traced, strict=True):
            if is_traced:
                x = compat.as_array(_bind_gate(x, gate=self)[0])
                x = _own(x, [x, *inside])
            inside.append(x)
        return inside

    def __repr__(self) -> str:
        return "open" if self.open else "closed"


def without_derivative(arrays: Sequence[Any]) -> list[Any]:
    """Return the arrays without derivative: behind a gate that stays closed."""
    return Gate().enter(arrays)


def distinct(arrays: Sequence[Any]) -> list[Any]:
    """Return the arrays, each an object of its own, as they always are in a trace.

    Marks and saved arrays are known by identity. Outside of a trace `x` and
    `lax.stop_gradient(x)` are one object, so a mark on one would mark both.
    """
    found: list[Any] = []
    for x in arrays:
        found.append(_own(x, found) if any(x is known for known in found) else x)
    return found


def _own(x: Any, known: Sequence[Any]) -> Any:
    """Return another object than the known ones, with the buffer of `x`.

    A tracer is returned as it is.
    """
    if compat.is_tracer(x):
        return x
    y = x
    # On several devices each buffer holds only a part of the array.
    if type(x) is compat.ConcreteArray and len(x.sharding.device_set) == 1:
        y = x.addressable_data(0)  # cheap, and commits the array to no device
    if any(y is other for other in known):
        y = jax.device_put(x, x.sharding)
    return y


# y = x, and  dy = dx  if the gate is open when JAX differentiates, else  dy = 0.
def _gate_jvp(primals: Sequence[Any], dots: Sequence[Any], *, gate: Gate) -> Any:
    return _bind_gate(*primals, gate=gate), dots if gate.open else [None]


# What jax.lax.stop_gradient leaves in a jaxpr can't be transposed; this can.
_bind_gate = compat.define_primitive(
    "gate",
    impl=lambda x, **_: [x],
    abstract_eval=lambda x, **_: [x],
    jvp=_gate_jvp,
    batch=lambda _, args, dims, **params: (_bind_gate(*args, **params), dims),
    transpose=lambda cts, _, **__: cts,
    selects=True,
)


# ---- values that refuse a derivative, with the name of the rule to blame


def only_transposable(arrays: Arrays, *, name: str) -> list[Any]:
    """Return the arrays, with tangents that can be transposed but not computed.

    JAX, too, refuses to compute the tangents of a custom_vjp, but does not name it if
    that happens when it compiles. To refuse earlier would be wrong: JAX may yet
    transpose traced tangents, in `jax.grad` of a function whose rule calls `jax.jvp`
    for example.
    """

    def refuse(*_: Any) -> Arrays:
        error = TypeError(compat.FORWARD_MODE_REFUSAL)
        error.add_note(errors.NO_JVP_NOTE.format(name=name))
        raise error

    # The tangent map is t -> t, with the transpose ct -> ct. To evaluate it raises, at
    # once if the tangents have values, else when it is compiled.
    def rule(_: Arrays, __: Arrays, dots: Arrays) -> Arrays:
        given = [d for d in dots if d is not None]
        avals = [jax.typeof(d) for d in given]
        outs = linear(refuse, lambda _, cts: cts, [], given, avals, name=name)
        return spread(outs, [d is not None for d in dots])

    return attach(rule, arrays, without_derivative(arrays), name=name)


def once(run: Callable[[list[Any]], Arrays], inputs: Arrays, *, name: str) -> Arrays:
    """Return `run(inputs)`, which refuses to be differentiated by the inputs."""

    def refuse(*_: Any) -> Arrays:
        raise refused_once(name)

    # The inputs of `run` have no derivative, and the rule that its results get raises.
    # Cotangents pass through both primitives, so a jvp can be derived from `run`.
    results = run(without_derivative(inputs))
    kept = [r for r in results if r is not None]
    kept = attach(refuse, inputs, kept, name=f"{name}.backward")
    return spread(kept, [r is not None for r in results])


def refused_once(name: str) -> errors.SecondDerivativeError:
    """Make the error for a derivative of a `once_differentiable` backward."""
    return errors.SecondDerivativeError(
        f"{errors.ONCE}. `{name}.backward` was differentiated: expected "
        "first derivatives only, got a derivative of the gradient. Remove the "
        "decorator if its operations can be differentiated."
    )
