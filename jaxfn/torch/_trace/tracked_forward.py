"""Around a forward whose derivative torch records: nothing is cut off from it."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from jaxfn.torch._base import (
    TorchFunctionMode,
    TorchRefusal,
    experimental,
    place_now,
    torch,
)

_CUTS = {
    torch.Tensor.detach: lambda x: x.view_as(x),
    torch.detach: lambda x: x.view_as(x),
    torch.Tensor.data.__get__: lambda x, *_: x.view_as(x),
    torch.Tensor.detach_: lambda x: x,
}
_COPIES = (torch.tensor, torch.Tensor.new_tensor)


class TrackedForward(TorchFunctionMode):
    """Around a forward whose derivative is recorded.

    Torch runs forward without recording it. So `detach`, `x.data` and `no_grad` change
    nothing there, and they must not cut anything off from a derivative here.
    """

    def __init__(self) -> None:
        super().__init__()
        # A nested Function runs its forward with recording off. What it switches on
        # there ends there.
        self._switched_on = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is experimental.name("_set_grad_enabled"):
            return self._set_grad_enabled(*args)
        if torch.is_inference_mode_enabled():
            raise TorchRefusal(
                operation="torch.inference_mode",
                reason="a derivative of forward is taken, and torch records nothing "
                "in that mode.",
                way_out="Leave it out, or use torch.no_grad.",
                where=place_now(sys._getframe(1)),
            )
        if not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func in _CUTS:
            return _CUTS[func](*args)
        data = kwargs.get("data", args[-1] if args else None)
        if func in _COPIES and isinstance(data, torch.Tensor):
            like = {k: v for k, v in kwargs.items() if k in ("dtype", "device")}
            return data.clone().to(**like) if like else data.clone()
        if func is torch.Tensor.requires_grad_ and not args[0].is_leaf:
            args[0].retain_grad()  # it is a leaf for the rule
            return args[0]
        if func is torch.autograd.grad:
            kwargs = {**kwargs, "create_graph": True}
        if func in (torch.autograd.backward, torch.Tensor.backward):
            with warnings.catch_warnings():  # of a cycle of references
                warnings.simplefilter("ignore", UserWarning)
                return func(*args, **{**kwargs, "create_graph": True})
        return func(*args, **kwargs)

    def _set_grad_enabled(self, mode: bool) -> None:
        switch = experimental.name("_set_grad_enabled")
        if mode and not torch.is_grad_enabled():
            self._switched_on += 1
            switch(True)
        elif not mode and self._switched_on:
            self._switched_on -= 1
            switch(False)
