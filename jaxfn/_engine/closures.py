"""What a function with a batch rule closes over, as arguments before its own.

JAX asserts that no value that such a function closes over is batched, and says no more.
But it batches a constant with all else where it computes both branches of a cond, say;
and what closes over a value that differs among examples is to be told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxfn._base import Outputs, OutSpec, compat, errors
from jaxfn._engine.rules import Arrays, Batch, Fun


def traced(fun: Fun, arrays: Sequence[Any]) -> tuple[Arrays, compat.Staged, OutSpec]:
    """Trace `fun(*arrays)`.

    Returns:
        What it closes over; the traced function, which takes first these and then the
        arrays; and the structure of its outputs.
    """
    static: list[OutSpec] = []

    def flat(*arrays: Any) -> list[Any]:
        outs = fun(*arrays)
        static[:] = [outs.static]
        return outs.arrays

    held, staged = compat.Staged.trace(flat, (), *arrays)
    return held, staged, static[0]


def are_constants(held: Sequence[Any]) -> tuple[bool, ...]:
    """Tell which of the values that a function closes over are constants."""
    return tuple(map(compat.is_constant, held))


def beside(fixed: Sequence[bool], fun: Fun, batch: Batch, name: str) -> Batch:
    """Return the batch rule of a function whose first arguments it has closed over.

    The user's rule is told of the other arguments alone, so no value that was closed
    over may differ among examples. A constant never does.

    Args:
        fixed: which of the values are constants.
        fun: the function; it is called where no other argument is batched.
        batch: the user's rule.
        name: of the function.
    """
    n = len(fixed)

    def rule(
        size: int, batched: Sequence[bool], values: list[Any]
    ) -> tuple[Outputs, Outputs]:
        if any(b and not f for b, f in zip(batched, fixed, strict=False)):
            raise errors.ClosedOverError(errors.BATCHED_CLOSURE.format(name=name))
        if any(batched[n:]):
            return batch(size, batched[n:], values[n:])
        # A constant that is batched has the same value for all examples.
        outs = fun(*[x[0] if b else x for x, b in zip(values, batched, strict=True)])
        return outs, Outputs([False] * len(outs.arrays), outs.static)

    return rule
