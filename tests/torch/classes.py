"""Functions of torch made of their rules in a line, for tests that need many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.autograd import Function

from tests.build import function


def torch_class(
    forward: Any, backward: Any = None, name: str = "Made", **rules: Any
) -> Any:
    """A class of these rules; without a backward if that is None."""
    rules = {"backward": backward, **rules} if backward else rules
    return function(name, Function, forward=forward, **rules)


def saves(value: Callable[..., Any]) -> Callable[..., Any]:
    """A forward with this value of its arguments, which are tensors: it saves them."""

    def forward(ctx: Any, *xs: Any) -> Any:
        ctx.save_for_backward(*xs)
        return value(*xs)

    return forward
