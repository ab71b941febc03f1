"""Effects of a rule on what is not part of the call: they would be lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxfn.torch._base import experimental as _experimental
from jaxfn.torch._base.torch_module import torch
from jaxfn.torch._trace.aliasing import written
from jaxfn.torch._base.refusal import HOST, TorchRefusal


def check_writes(module: Any) -> None:
    """Refuse writes to tensors that are closed over.

    Args:
        module: the graph of the first pass.
    """
    held: set[Any] = set()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            held.add(node)
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        if any(x in held for x in written(node.target, node.args, node.kwargs)):
            raise TorchRefusal(
                operation=str(node.target),
                reason="it writes to a tensor that is not an argument, and the "
                "write would be lost.",
                way_out="Pass it to apply and return its new value. " + HOST,
                where=_experimental.place_of(node),
            )
        for spec, arg in zip(schema.arguments, node.args, strict=False):
            is_view = spec.alias_info is not None and not _is_lifted(node)
            if is_view and isinstance(arg, torch.fx.Node) and arg in held:
                held.add(node)


def _is_lifted(node: Any) -> bool:
    """Is it what torch makes of a constant, which the rule may write to?"""
    return "lift_fresh" in str(node.target)


class Kept:
    """Around a trace: `grad` of these tensors is as it was, or it is a refusal."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._before = [(t, t.grad) for t in tensors if t.is_leaf]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _restore(self) -> bool:
        changed = [(t, g) for t, g in self._before if t.grad is not g]
        for t, g in changed:
            t.grad = g
        return bool(changed)

    def check(self, place: str) -> None:
        """Refuse a rule that changed one of them."""
        if self._restore():
            raise TorchRefusal(
                operation="backward()",
                reason="it adds gradients to tensors that are not arguments (as to the "
                "parameters of a module), which would be lost.",
                way_out="Pass them to apply, and return their gradients. " + HOST,
                where=place,
            )
