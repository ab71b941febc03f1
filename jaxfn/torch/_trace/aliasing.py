"""What a rule may do with the memory of tensors, while it is traced.

JAX arrays have no memory. Torch's second pass replaces views and writes by values, and
gets three things wrong without an error, which are handled here: strides of tensors
that are not contiguous, windows (`unfold`), and elements that share a place.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from jaxfn.torch._base import (
    HOST,
    OR_HOST,
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
"""Functions that give a tensor another memory, and their names in messages."""


ADDRESSES = {
    torch.Tensor.data_ptr: "x.data_ptr()",
    torch.Tensor.storage: "x.storage()",
    torch.Tensor.untyped_storage: "x.untyped_storage()",
    torch.Tensor.__dlpack__: "x.__dlpack__()",
}
"""Functions that read the address of a tensor, and their names in messages."""


class Address:
    """The address of a tensor. It tells its alignment, which launchers look at."""

    def __init__(self, tensor: Any, refusal: TorchRefusal) -> None:
        self._offset = int(tensor.storage_offset()) * tensor.element_size()
        self._refusal = refusal

    def __mod__(self, n: Any) -> int:
        if n not in (2, 4, 8, 16):  # the memory itself begins at a multiple of 16
            raise self._refusal
        return self._offset % n

    def __and__(self, mask: Any) -> int:
        return self % (mask + 1)

    def _refuse(self, *_: Any) -> Any:
        raise self._refusal

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __floordiv__ = __rshift__ = _refuse
    __bool__ = __int__ = __index__ = __repr__ = __str__ = __format__ = _refuse


def address(operation: str, place: str) -> TorchRefusal:
    """Return the refusal of one of `ADDRESSES`."""
    return TorchRefusal(
        operation=operation,
        reason="it asks for the memory of a tensor, and JAX arrays have none.",
        way_out=f"Compare tensors by `is`, or values. Or: {OR_HOST}",
        where=place,
    )


def rebound(operation: str, place: str) -> TorchRefusal:
    """Return the refusal of one of `REBOUND`."""
    return TorchRefusal(
        operation=operation,
        reason="it gives a tensor another memory, which JAX arrays don't have.",
        way_out=f"Write y.copy_(…) or y = … in the rule. Or: {OR_HOST}",
        where=place,
    )


def swapped(x: Any, y: Any) -> None:
    """Swap two tensors, as `torch.utils.swap_tensors`, if they are one already.

    `module.to(dtype)` swaps each parameter, even with the same dtype.
    """
    places = [(t.storage_offset(), t.shape, t.stride(), t.dtype) for t in (x, y)]
    numbers = [experimental.storage_number(t) for t in (x, y)]
    if places[0] != places[1] or numbers[0] != numbers[1]:
        raise TorchRefusal(
            operation="module.to(…) or torch.utils.swap_tensors",
            reason="it gives a tensor another memory, which JAX arrays don't have.",
            way_out="Convert the module before from_torch, or x.to(…) in forward.",
            where=place_now(sys._getframe(1)),
        )


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the tensors that an operation writes to."""
    found: list[Any] = []
    if not experimental.writes(func):
        return found
    for i, spec in enumerate(experimental.schema_of(func).arguments):
        if spec.alias_info is not None and spec.alias_info.is_write:
            x = args[i] if i < len(args) else kwargs.get(spec.name)
            found.extend(x if isinstance(x, (list, tuple)) else [x])
    return [x for x in found if isinstance(x, torch.Tensor)]


class Memory:
    """A check of each operation of a trace, before it runs.

    A rule must not write to closed-over tensors or to windows, nor to their views.
    Therefore it tracks the origin of each view.
    """

    def __init__(self) -> None:
        self._origins: dict[int, tuple[Any, str]] = {}

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of an operation, or refuse it."""
        if func.overloadpacket is _aten.set_:
            raise rebound("y.set_(…)", _place())
        if func.overloadpacket in _STATISTICS:
            _check_statistics(func, args)
        if func is _aten.as_strided.default and experimental.is_fake(args[0]):
            return self._viewed(func, args, _strided(*args, **kwargs))
        # Check before it runs: while tracing, torch does write to tensors with values.
        written = _written(func, args, kwargs)
        for x in written:
            self._check_write(func, x)
        found = self._viewed(func, args, func(*args, **kwargs))
        for x in written:
            experimental.forget_numbers(x)
        return found

    def _viewed(self, func: Any, args: Any, result: Any) -> Any:
        """Return the result, noted if it is a view that a rule must not write to."""
        if _is_view(func):
            origin = _WINDOWS if func is _aten.unfold.default else self._origin(args)
            if origin:
                views = result if isinstance(result, (list, tuple)) else (result,)
                self._origins.update((id(x), (x, origin)) for x in views)
        return result

    def _origin(self, args: Any) -> str:
        """Return the origin of the tensor that a view is taken of."""
        x = args[0] if args else None
        if isinstance(x, torch.Tensor) and not experimental.is_fake(x):
            return _CLOSED_OVER
        return self._origins.get(id(x), (x, ""))[1]

    def _check_write(self, func: Any, x: Any) -> None:
        origin = self._origin([x])
        if origin == _CLOSED_OVER:
            raise TorchRefusal(
                operation=str(func),
                reason="it writes to a tensor that is not an argument, and the "
                "write would be lost.",
                way_out=f"Pass it to apply and return its new value. {HOST}",
                where=_place(),
            )
        if origin == _WINDOWS or _shares_places(x):
            raise TorchRefusal(
                operation=str(func),
                reason="it writes to windows of a tensor, or to elements that share "
                "a place.",
                way_out=f"Write to the tensor itself, by index. Or: {OR_HOST}",
                where=_place(),
            )


_CLOSED_OVER, _WINDOWS = "closed over", "windows"
_STATISTICS = (
    _aten.native_batch_norm,
    _aten.cudnn_batch_norm,
    _aten.miopen_batch_norm,
)


# These operations write to their arguments, although their schemas don't say so.
def _check_statistics(func: Any, args: Any) -> None:
    mean, training = args[3], args[5]
    if mean is not None and training:
        raise TorchRefusal(
            operation=str(func),
            reason="it writes new running statistics, which would be lost.",
            way_out=f"Compute them in the rule, and return them. Or: {OR_HOST}",
            where=_place(),
        )


@functools.cache
def _is_view(func: Any) -> bool:
    """Return whether the result is a view that a rule must not write to."""
    # Torch copies a constant by lift_fresh, so a rule may write to the result.
    returns = experimental.schema_of(func).returns
    is_alias = any(spec.alias_info is not None for spec in returns)
    return is_alias and func is not _aten.lift_fresh.default


def _place() -> str:
    return place_now(sys._getframe(2))


def _strided(x: Any, size: Any, stride: Any, offset: Any = None) -> Any:
    """Return the same elements, counted in a contiguous tensor."""
    offset = x.storage_offset() if offset is None else offset
    root = experimental.whole_of(x)
    order = sorted(range(root.ndim), key=lambda d: (-root.stride(d), -root.shape[d]))
    whole = root if order == list(range(root.ndim)) else root.permute(order)
    n = root.untyped_storage().nbytes() // root.element_size()
    if not whole.is_contiguous() or root.storage_offset() or n != root.numel():
        raise TorchRefusal(
            operation="as_strided",
            reason="it reads by strides from memory that is no whole tensor.",
            way_out=f"Write x.contiguous().as_strided(…), or index it. Or: {OR_HOST}",
            where=_place(),
        )
    return _aten.as_strided.default(whole, size, stride, offset)


def _shares_places(x: Any) -> bool:
    """Return whether two elements may share a place; False if sizes are unknown."""
    if not all(type(n) is int for n in (*x.shape, *x.stride())):
        return False
    reach = 0
    for stride, n in sorted(zip(x.stride(), x.shape, strict=True)):
        if n > 1:
            if stride <= reach:
                return True
            reach += stride * (n - 1)
    return False


class ParameterGradGuard:
    """A context around a trace that restores `grad` of these tensors."""

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
                reason="it adds gradients to tensors that are not arguments (for "
                "example, parameters of a module), and they would be lost.",
                way_out="Pass them to apply, and return their gradients. " + HOST,
                where=place,
            )
