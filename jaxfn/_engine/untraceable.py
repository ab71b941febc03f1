"""A part of forward that needs values, and so can't be traced, differentiated again.

It runs on values without derivative. The derivative of an input or an output that it
saved is known all the same. Anything else that it saved must not be differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from jaxfn._base import as_jax, errors, is_inexact
from jaxfn._engine.attachment import attach
from jaxfn._engine.rules import Arrays

T = TypeVar("T")


def attempt(trace: Callable[[], T]) -> tuple[T | None, str]:
    """Return what `trace` gives, or None and the kind of its error.

    An error of ours passes: it says what is wrong with the rule.
    """
    try:
        return trace(), ""
    except errors.RuleError:
        raise
    except Exception as error:  # noqa: BLE001  (what needs values may raise anything)
        return None, type(error).__name__


def refusing_a_derivative(
    rule: str,
    why: str,
    run: Any,
    leaves: Arrays,
    inputs: Arrays,
    arrays: Arrays,
    again: Callable[[list[Any]], Any],
    *,
    may_be_numpy: bool,
) -> list[Any]:
    """Return what a run with values saved; what it computed refuses a derivative.

    Args:
        rule: Name of the method that ran, for messages.
        why: Kind of the error that tracing it raised.
        run: The `Run`.
        leaves: Its leaves.
        inputs: Its inputs, which had no derivative.
        arrays: The arguments of the call.
        again: Runs it once more, on other inputs.
        may_be_numpy: Whether it may fail under jax.jvp, because it is written in NumPy.

    Raises:
        NotImplementedError: The derivative of something that it saved would be lost.
    """
    for what, places in (
        ("NumPy values", run.constants),
        ("objects that hide arrays", run.opaque),
    ):
        if places:
            raise NotImplementedError(
                f"`{rule}` was differentiated again, saved {what} in "
                f"{' and '.join(places)}, and can't be traced. The derivative of these "
                "would be lost. Save inputs, or outputs that are JAX arrays, and "
                "compute the rest in the rules; keep constants outside of ctx."
            )
    _check_sources(rule, run, inputs, again, may_be_numpy=may_be_numpy)

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(
            f"`{rule}` saved a value that it computed, can't be traced ({why}), and "
            "was differentiated again. The derivative of that value is the one of what "
            "ran: that takes jax.numpy operations that need no values of arrays, as "
            "under jit. Save inputs or outputs, and compute the rest in the rules."
        )

    kept = []
    for leaf, (kind, _) in zip(leaves, run.sources, strict=True):
        if kind == "other" and is_inexact(leaf):
            (leaf,) = attach(refuse, arrays, [as_jax(leaf)], name=rule)
        kept.append(leaf)
    return kept


def _check_sources(
    rule: str,
    run: Any,
    inputs: Arrays,
    again: Callable[[list[Any]], Any],
    *,
    may_be_numpy: bool,
) -> None:
    """Refuse a run that saved lax.stop_gradient of an input or an output.

    On values lax.stop_gradient(x) is x, and counts as the input. Under jax.jvp it is
    another object: one more run there finds other sources.
    """
    nonzero = [i for i, x in enumerate(inputs) if is_inexact(x)]
    sources: list[Any] = []

    def trace(*values: Any) -> tuple[()]:
        at = list(inputs)
        for i, value in zip(nonzero, values, strict=True):
            at[i] = value
        sources.append(again(at).sources)
        return ()

    primals = tuple(inputs[i] for i in nonzero)
    try:
        jax.jvp(trace, primals, primals)
    except Exception:
        if may_be_numpy:  # then it has no lax.stop_gradient
            return
        raise
    if sources[-1] != run.sources:
        raise NotImplementedError(
            f"`{rule}` was differentiated again, saved lax.stop_gradient of a value, "
            "and can't be traced. Write it without operations that need values, as "
            "under jit."
        )
