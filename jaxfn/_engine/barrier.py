"""Values that refuse a derivative, with the name of the rule to blame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxfn._base import compat, errors
from jaxfn._engine.attachment import attach, stop_gradient
from jaxfn._engine.linear import linear
from jaxfn._engine.rules import Arrays, spread


def only_transposable(arrays: Arrays, *, name: str) -> list[Any]:
    """The arrays, with tangents that can be transposed but not computed.

    JAX says the same of what a custom_vjp makes of them, but without a name where it
    compiles. It must not be said before: tangents that are traced may be transposed
    yet, as in `jax.grad` of a function whose own rule calls `jax.jvp`.
    """

    def refuse(*_: Any) -> Arrays:
        error = TypeError(compat.FORWARD_MODE_REFUSAL)
        error.add_note(errors.NO_JVP_NOTE.format(name=name))
        raise error

    def rule(_: Arrays, __: Arrays, dots: Arrays) -> Arrays:
        given = [d for d in dots if d is not None]
        avals = [jax.typeof(d) for d in given]
        outs = linear(refuse, lambda _, cts: cts, [], given, avals, name=name)
        return spread(outs, [d is not None for d in dots])

    return attach(rule, arrays, stop_gradient(arrays), name=name)


def once(run: Callable[[list[Any]], Arrays], inputs: Arrays, *, name: str) -> Arrays:
    """`run(inputs)`, refusing to be differentiated with respect to the inputs."""

    def refuse(*_: Any) -> Arrays:
        raise refused_once(name)

    results = run(stop_gradient(inputs))
    kept = [r for r in results if r is not None]
    kept = attach(refuse, inputs, kept, name=f"{name}.backward")
    return spread(kept, [r is not None for r in results])


def refused_once(name: str) -> errors.SecondDerivativeError:
    """The error of differentiating a backward that is `once_differentiable`."""
    return errors.SecondDerivativeError(
        f"{errors.ONCE}. `{name}.backward` was differentiated: expected "
        "first derivatives only, got a derivative of the gradient. Remove the "
        "decorator if its operations can be differentiated."
    )
