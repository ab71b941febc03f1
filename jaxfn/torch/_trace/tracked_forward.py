"""A mode for a forward that torch differentiates: no operation cuts the derivative."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from jaxfn.torch._base import (
    TorchFunctionMode,
    TorchRefusal,
    experimental,
    is_users,
    place_now,
    torch,
)

_DETACHED = (torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__)
_DETACHED_IN_PLACE = (torch.Tensor.detach_, torch.detach_)
_COPIES = (torch.tensor, torch.Tensor.new_tensor)
# Torch's answers for a tensor that forward computed.
_SHOWN = {
    torch.Tensor.requires_grad.__get__: False,
    torch.Tensor.is_leaf.__get__: True,
    torch.Tensor.grad_fn.__get__: None,
}
_DERIVATIVES = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)


class TrackedForward(TorchFunctionMode):
    """A mode for a forward that torch differentiates.

    Torch runs forward without autograd. There `detach`, `x.data` and `no_grad` change
    nothing, so they must not cut the derivative here. They do count in a derivative
    that forward itself takes, which is refused.

    Args:
        inputs: The tensors that forward gets.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()
        self._inputs = inputs
        # A nested Function runs its forward with autograd off. If it turns it on, that
        # ends with it.
        self._switched_on = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is experimental.name("_set_grad_enabled"):
            return self._set_grad_enabled(*args)
        caller = sys._getframe(1)
        if torch.is_inference_mode_enabled():
            reason = "autograd is off in that mode"
            raise _refusal("torch.inference_mode", reason, "use no_grad", caller)
        if func in _DERIVATIVES or experimental.in_forward_mode():
            reason = "detach and no_grad count in a derivative that forward takes"
            way = "take it in backward, from saved tensors, or write it as a formula"
            raise _refusal("a derivative in forward", reason, way, caller)
        x = args[0] if args else kwargs.get("input")
        if func in _SHOWN and is_users(caller.f_code.co_filename):
            is_input = any(x is known for known in self._inputs)
            return func(*args) if is_input else _SHOWN[func]
        if not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func in _DETACHED:
            return x.view_as(x)
        if func in _DETACHED_IN_PLACE:
            return x
        data = kwargs.get("data", args[-1] if args else None)
        if func in _COPIES and isinstance(data, torch.Tensor):
            like = {k: v for k, v in kwargs.items() if k in ("dtype", "device")}
            return data.clone().to(**like) if like else data.clone()
        return func(*args, **kwargs)

    def _set_grad_enabled(self, mode: bool) -> None:
        switch = experimental.name("_set_grad_enabled")
        if mode and not torch.is_grad_enabled():
            self._switched_on += 1
            switch(True)
        elif not mode and self._switched_on:
            self._switched_on -= 1
            switch(False)


def _refusal(operation: str, reason: str, way: str, caller: Any) -> TorchRefusal:
    return TorchRefusal(
        operation=operation,
        reason=f"the derivative of forward is taken, and {reason}.",
        way_out=f"Instead, {way}.",
        where=place_now(caller),
    )
