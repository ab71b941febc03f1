"""The ctx that torch rules see while they are traced or run on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxfn.torch._base.torch_module import FunctionCtx, torch

STATE = frozenset(
    [
        "to_save",
        "saved_for_forward",
        "dirty_tensors",
        "non_differentiable",
        "materialize_grads",
        "output_grad_dtypes",
        "_jaxfn_needs",
        "_jaxfn_rule",
        "_jaxfn_saved",
        "_forward_cls",
    ]
)
"""What a ctx holds beside the attributes that rules put there."""


class Ctx(FunctionCtx):
    """What torch's own ctx is to a rule.

    Args:
        cls: the torch class.
        needs: gives `needs_input_grad`.
        rule: which rule it is for.
        saved: what was saved; None in forward.
    """

    output_grad_dtypes: Any = None

    def __init__(
        self,
        cls: Any,
        needs: Callable[[], tuple[bool, ...]],
        rule: str,
        saved: Sequence[Any] | None = None,
    ) -> None:
        self._forward_cls, self._jaxfn_rule = cls, rule
        self._jaxfn_needs, self._jaxfn_saved = needs, saved

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """For each argument, whether it is differentiated."""
        return self._jaxfn_needs()

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved."""
        if self._jaxfn_saved is None:
            raise RuntimeError("ctx.saved_tensors was read in forward.")
        return tuple(self._jaxfn_saved)

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """The same under its old name."""
        return self.saved_tensors

    if hasattr(FunctionCtx, "input_grad_buffers"):

        @property
        def input_grad_buffers(self) -> tuple[None, ...]:
            """None for each argument: JAX has no buffers."""
            if self._jaxfn_rule == "backward":
                return (None,) * len(self._jaxfn_needs())
            raise RuntimeError(
                "input_grad_buffers can only be accessed while autograd is executing "
                "backward()."
            )

    def name(self) -> str:
        """Torch's name of the node."""
        return f"{self._forward_cls.__name__}Backward"


# No methods of Ctx: a rule may give an attribute any name that torch leaves free.
def attributes_of(ctx: Ctx) -> dict[str, Any]:
    """What the rule put there."""
    return {k: v for k, v in ctx.__dict__.items() if k not in STATE}


def given_to(ctx: Ctx, what: str) -> tuple[Any, ...]:
    """What a method of ctx was given, tensors and None."""
    found = getattr(ctx, what, None)
    if found is None:
        return ()
    found = found if isinstance(found, (list, tuple)) else (found,)
    for x in found:
        if x is not None and not isinstance(x, torch.Tensor):
            raise TypeError(
                "save_for_backward can only save variables, but argument is of "
                f"type {type(x).__name__}"
            )
    return tuple(found)


def is_separate(cls: Any) -> bool:
    """Does the class have a setup_context of its own?"""
    base = torch.autograd.Function.setup_context
    return cls.setup_context is not base


def has_vmap(cls: Any) -> bool:
    """Does the class define how it is batched?"""
    return cls.vmap is not torch.autograd.Function.vmap


def is_once_differentiable(rule: Any) -> bool:
    """Does torch's decorator of this name stand around a backward?"""
    made = torch.autograd.function.once_differentiable.__code__.co_consts
    while rule is not None:
        if getattr(rule, "__code__", None) in made:
            return True
        rule = getattr(rule, "__wrapped__", None)
    return False
