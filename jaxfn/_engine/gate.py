"""Gates that let derivatives into a forward, keep them out, or refuse them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn._base import compat, errors
from jaxfn._engine.attachment import attach
from jaxfn._engine.linear import linear
from jaxfn._engine.rules import Arrays, spread


class Gate:
    """A gate that lets derivatives into a forward or not, decided after it has run.

    The outputs of a Function have the derivative of its rules. So no derivative may
    enter its body, which may not even have one (a host callback). But an intermediate
    that forward saved needs the derivative of the body. Whether one was saved is known
    after forward has run. JAX asks later, when it differentiates.

    Attributes:
        open: Whether derivatives pass.
    """

    open = False

    def enter(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the arrays behind the gate; one that is no tracer passes as it is.

        `onepass` finds saved values by identity. Under eager transformations, the array
        of a tracer may have other uses, for example as another argument. So it becomes
        a new object, with the same buffer.
        """
        traced = [compat.is_tracer(x) for x in arrays]
        if not any(traced):
            return list(arrays)
        # One equation for each array, because JAX transposes an equation as a whole:
        # one linear array (a tangent that is transposed later) would make all linear.
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
    """Return the arrays without derivative, behind a gate that stays closed."""
    return Gate().enter(arrays)


def distinct(arrays: Sequence[Any]) -> list[Any]:
    """Return the arrays as distinct objects, which they always are in a trace.

    jaxfn recognizes marked and saved arrays by identity. Outside a trace, `x` and
    `lax.stop_gradient(x)` are one object, so a mark on one would mark both.
    """
    found: list[Any] = []
    for x in arrays:
        found.append(_own(x, found) if any(x is known for known in found) else x)
    return found


def _own(x: Any, known: Sequence[Any]) -> Any:
    """Return an object other than the known ones, with the buffer of `x`.

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
def _gate_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, gate: Gate) -> Any:
    return _bind_gate(*primals, gate=gate), tangents if gate.open else [None]


# JAX can transpose this, unlike the operation of jax.lax.stop_gradient.
_bind_gate = compat.define_primitive(
    "gate",
    impl=lambda x, **_: [x],
    abstract_eval=lambda x, **_: [x],
    jvp=_gate_jvp,
    batch=lambda _, args, dims, **params: (_bind_gate(*args, **params), dims),
    transpose=lambda cts, _, **__: cts,
    selects=True,
)


# ---- values that refuse a derivative, and name the rule


def only_transposable(arrays: Arrays, *, name: str) -> list[Any]:
    """Return the arrays, with tangents that JAX can transpose but not compute.

    JAX, too, refuses to compute the tangents of a custom_vjp. But if it refuses when it
    compiles, it does not name the function. An earlier refusal would be wrong, because
    JAX may still transpose traced tangents: for example in `jax.grad` of a function
    whose rule calls `jax.jvp`.
    """

    def refuse(*_: Any) -> Arrays:
        error = TypeError(compat.FORWARD_MODE_REFUSAL)
        error.add_note(errors.NO_JVP_NOTE.format(name=name))
        raise error

    # The tangent map is t -> t, with the transpose ct -> ct. Its evaluation raises: at
    # once if the tangents have values, else when JAX compiles it.
    def rule(_: Arrays, __: Arrays, tangents: Arrays) -> Arrays:
        nonzero = [t for t in tangents if t is not None]
        avals = [jax.typeof(t) for t in nonzero]
        outs = linear(refuse, lambda _, cts: cts, [], nonzero, avals, name=name)
        return spread(outs, [t is not None for t in tangents])

    return attach(rule, arrays, without_derivative(arrays), name=name)


def once(run: Callable[[list[Any]], Arrays], inputs: Arrays, *, name: str) -> Arrays:
    """Return `run(inputs)`; its derivative by the inputs raises."""

    def refuse(*_: Any) -> Arrays:
        raise refused_once(name)

    # The inputs of `run` get no derivative, and its results get a rule that raises.
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
