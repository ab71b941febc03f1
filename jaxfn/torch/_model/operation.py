"""An operation of `torch.library`, as a torch Function with the same rules."""

from __future__ import annotations

from typing import Any

from jaxfn.torch._base import TorchRefusal, experimental, torch


def function_of(operation: Any) -> type | None:
    """Return a torch Function with the rules of an operation; None if it is none.

    Raises:
        TorchRefusal: The operation writes to its arguments, or takes arguments by
            keyword alone.
    """
    rules = experimental.library_rules(operation)
    if rules is None:
        return None
    schema = experimental.library_schema(operation)
    if schema.is_mutable:
        way_out = "Return the new values."
        raise _refusal(rules.name, "it writes to its arguments.", way_out)
    if any(x.kwarg_only for x in schema.arguments):
        reason = "it has arguments by keyword alone, and apply takes none."
        raise _refusal(rules.name, reason, "Take them by position.")
    members: dict[str, Any] = {
        "__module__": rules.forward.__module__,
        "__doc__": rules.forward.__doc__,
        "forward": staticmethod(rules.forward),
        "setup_context": staticmethod(rules.setup_context or _saves_nothing),
    }
    for rule in ("backward", "vmap"):
        if getattr(rules, rule) is not None:
            members[rule] = staticmethod(getattr(rules, rule))
    return type(rules.name, (torch.autograd.Function,), members)


def _saves_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    del ctx, inputs, output


def _refusal(name: str, reason: str, way_out: str) -> TorchRefusal:
    return TorchRefusal(
        operation="an operation of torch.library", reason=reason, way_out=way_out
    ).of(name, "forward")
