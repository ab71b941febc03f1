"""What a rule may do with the memory of tensors, while it is traced.

JAX arrays have no memory that a rule could look at. Torch's second pass makes values
of views and writes, and gets three things wrong in silence that are seen to here:
strides are taken for those of a contiguous tensor, windows (`unfold`) are written as
their sum, and elements that share a place are written once each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from jaxfn.torch._base import (
    HOST,
    OR_HOST,
    TorchDispatchMode,
    TorchRefusal,
    experimental,
    place_now,
    torch,
)

_aten = torch.ops.aten
REBOUND = {
    torch.Tensor.data.__set__: "y.data = …",
    torch.Tensor.resize_: "y.resize_(…)",
    torch.Tensor.resize_as_: "y.resize_as_(…)",
    torch.Tensor.as_strided_: "y.as_strided_(…)",
}
"""What gives a tensor another memory, and what it is called."""


ADDRESSES = {
    torch.Tensor.data_ptr: "x.data_ptr()",
    torch.Tensor.storage: "x.storage()",
    torch.Tensor.untyped_storage: "x.untyped_storage()",
}
"""What asks where a tensor lies, and what it is called."""


def address(operation: str, place: str) -> TorchRefusal:
    """The refusal for it."""
    return TorchRefusal(
        operation=operation,
        reason="it asks for the memory of a tensor, and JAX arrays have none.",
        way_out=f"Compare tensors by `is`, or values. Or: {OR_HOST}",
        where=place,
    )


def rebound(operation: str, place: str) -> TorchRefusal:
    """The refusal for it."""
    return TorchRefusal(
        operation=operation,
        reason="it gives a tensor another memory, which JAX arrays don't have.",
        way_out=f"Write y.copy_(…) or y = … in the rule. Or: {OR_HOST}",
        where=place,
    )


def written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """What an operation writes to; nodes of a graph, if its arguments are nodes."""
    found: list[Any] = []
    for i, spec in enumerate(experimental.schema_of(func).arguments):
        if spec.alias_info is not None and spec.alias_info.is_write:
            x = args[i] if i < len(args) else kwargs.get(spec.name)
            found.extend(x if isinstance(x, (list, tuple)) else [x])
    return [x for x in found if isinstance(x, (torch.Tensor, torch.fx.Node))]


class Memory:
    """Looks at each operation of a trace before it runs."""

    def __init__(self) -> None:
        self._windows: dict[int, Any] = {}

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation, or a refusal."""
        if func.overloadpacket is _aten.set_:
            raise rebound("y.set_(…)", _place())
        if func is _aten.as_strided.default and experimental.is_fake(args[0]):
            return _strided(*args, **kwargs)
        self._check_written(func, args, kwargs)
        result = func(*args, **kwargs)
        self._note_windows(func, args, result)
        return result

    # Refused before it runs: while tracing, torch does write to tensors with values.
    def _check_written(self, func: Any, args: Any, kwargs: Any) -> None:
        for x in written(func, args, kwargs):
            if not experimental.is_fake(x):
                raise TorchRefusal(
                    operation=str(func),
                    reason="it writes to a tensor that is not an argument, and the "
                    "write would be lost.",
                    way_out=f"Pass it to apply and return its new value. {HOST}",
                    where=_place(),
                )
            if id(x) in self._windows or _shares_places(x):
                raise TorchRefusal(
                    operation=str(func),
                    reason="it writes to windows of a tensor, or where elements share "
                    "a place.",
                    way_out=f"Write to the tensor itself, by index. Or: {OR_HOST}",
                    where=_place(),
                )

    def _note_windows(self, func: Any, args: Any, result: Any) -> None:
        """Keep what is a view of windows."""
        of_window = self._windows and any(id(x) in self._windows for x in args)
        if func is _aten.unfold.default or (of_window and _is_view(func)):
            views = result if isinstance(result, (list, tuple)) else (result,)
            self._windows.update((id(x), x) for x in views)


class HiddenWrites(TorchDispatchMode):
    """While it lasts, no write may hide from the derivative that torch records.

    Torch differentiates nothing in forward, so a rule may write through `y.data` or
    `y.detach()` there; what it then saves has not the derivative that is recorded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._detached: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for x in written(func, args, kwargs):
            if id(x) in self._detached:
                raise TorchRefusal(
                    operation=str(func),
                    reason="it writes through what was detached, and there is no "
                    "derivative of that.",
                    way_out="Write to the tensor itself.",
                    where=_place(),
                )
        result = func(*args, **kwargs)
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if source is not None and _is_view(func):
            cut = func is _aten.detach.default and source.requires_grad
            if cut or id(source) in self._detached:
                views = result if isinstance(result, (list, tuple)) else (result,)
                self._detached.update((id(x), x) for x in views)
        return result


def _is_view(func: Any) -> bool:
    return any(
        spec.alias_info is not None for spec in experimental.schema_of(func).returns
    )


def _place() -> str:
    return place_now(sys._getframe(2))


def _strided(x: Any, size: Any, stride: Any, offset: Any = None) -> Any:
    """The same elements, counted in a contiguous tensor."""
    offset = x.storage_offset() if offset is None else offset
    root = experimental.whole_of(x)
    order = sorted(range(root.ndim), key=lambda d: (-root.stride(d), -root.shape[d]))
    whole = root if order == list(range(root.ndim)) else root.permute(order)
    n = root.untyped_storage().nbytes() // root.element_size()
    if not whole.is_contiguous() or root.storage_offset() or n != root.numel():
        raise TorchRefusal(
            operation="as_strided",
            reason="it reads by strides what is no whole tensor.",
            way_out=f"Write x.contiguous().as_strided(…), or index it. Or: {OR_HOST}",
            where=_place(),
        )
    return _aten.as_strided.default(whole, size, stride, offset)


def _shares_places(x: Any) -> bool:
    """May two elements lie at one place? Sizes that are not known don't tell."""
    if not all(type(n) is int for n in (*x.shape, *x.stride())):
        return False
    reach = 0
    for stride, n in sorted(zip(x.stride(), x.shape, strict=True)):
        if n > 1:
            if stride <= reach:
                return True
            reach += stride * (n - 1)
    return False


def check_writes(module: Any) -> None:
    """Refuse writes to tensors that are closed over.

    Args:
        module: the graph of the first pass.
    """
    held: set[Any] = set()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            held.add(node)
        schema = experimental.schema_of(node.target)
        if node.op != "call_function" or schema is None:
            continue
        if any(x in held for x in written(node.target, node.args, node.kwargs)):
            raise TorchRefusal(
                operation=str(node.target),
                reason="it writes to a tensor that is not an argument, and the "
                "write would be lost.",
                way_out="Pass it to apply and return its new value. " + HOST,
                where=experimental.place_of(node),
            )
        for spec, arg in zip(schema.arguments, node.args, strict=False):
            is_view = spec.alias_info is not None and not _is_lifted(node)
            if is_view and isinstance(arg, torch.fx.Node) and arg in held:
                held.add(node)


def _is_lifted(node: Any) -> bool:
    """Is it what torch makes of a constant, which the rule may write to?"""
    return "lift_fresh" in str(node.target)


class ParameterGradGuard:
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
