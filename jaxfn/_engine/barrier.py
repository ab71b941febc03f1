"""Values that refuse a derivative, with the name of the rule to blame.

Forward mode where there is no jvp, and a second derivative after `once_differentiable`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxfn._base import compat, errors
from jaxfn._engine.attachment import attach
from jaxfn._engine.gate import stop_gradient
from jaxfn._engine.linear import linear
from jaxfn._engine.rules import Arrays, spread


def only_transposable(arrays: Arrays, *, name: str) -> list[Any]:
    """Return the arrays, with tangents that can be transposed but not computed.

    JAX, too, refuses to compute the tangents of a custom_vjp, but without its name if
    that happens when it compiles. To refuse earlier than JAX would be wrong: tangents
    that are traced may be transposed yet, as in `jax.grad` of a function whose own rule
    calls `jax.jvp`.
    """

    def refuse(*_: Any) -> Arrays:
        error = TypeError(compat.FORWARD_MODE_REFUSAL)
        error.add_note(errors.NO_JVP_NOTE.format(name=name))
        raise error

    # The tangent map is t -> t, so that its transpose is ct -> ct. Evaluated, it
    # raises: at once where the tangents have values, else when it is compiled.
    def rule(_: Arrays, __: Arrays, dots: Arrays) -> Arrays:
        given = [d for d in dots if d is not None]
        avals = [jax.typeof(d) for d in given]
        outs = linear(refuse, lambda _, cts: cts, [], given, avals, name=name)
        return spread(outs, [d is not None for d in dots])

    return attach(rule, arrays, stop_gradient(arrays), name=name)


def once(run: Callable[[list[Any]], Arrays], inputs: Arrays, *, name: str) -> Arrays:
    """Return `run(inputs)`, which refuses to be differentiated by the inputs."""

    def refuse(*_: Any) -> Arrays:
        raise refused_once(name)

    # JAX never differentiates what runs here, since its inputs have no derivative; the
    # rule that is attached instead raises. To transpose is not to differentiate:
    # cotangents pass through both primitives, so a jvp can be derived from `run`.
    results = run(stop_gradient(inputs))
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
