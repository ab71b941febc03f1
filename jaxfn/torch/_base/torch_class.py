"""A torch class: the ctx that its rules get here, and questions about the class."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from jaxfn.torch._base.cache_key import RULES, names_in, reached_by
from jaxfn.torch._base.refusal import TorchRefusal
from jaxfn.torch._base.torch_module import FunctionCtx, torch

STATE = frozenset(
    ("to_save", "saved_for_forward", "dirty_tensors", "non_differentiable")
    + ("materialize_grads", "output_grad_dtypes", "_forward_cls")
    + ("_jaxfn_needs", "_jaxfn_rule", "_jaxfn_saved")
)
"""The attributes of a ctx that rules did not set."""

_GRAPH = frozenset(
    ("next_functions", "metadata", "requires_grad", "register_hook", "register_prehook")
    + ("apply", "apply_boxed", "apply_jvp", "maybe_clear_saved_tensors")
    + ("_raw_saved_tensors", "_sequence_nr", "_input_metadata")
)
"""The attributes of torch's ctx that belong to its graph of nodes."""


class Ctx(FunctionCtx):
    """A ctx for torch rules, with the interface of torch's own.

    Args:
        cls: The torch class.
        needs_input_grad: Returns the value of `ctx.needs_input_grad`.
        rule: The rule that gets this ctx.
        saved: The saved tensors; None in forward.
    """

    output_grad_dtypes: Any = None
    to_save: Any = None
    saved_for_forward: Any = None
    dirty_tensors: Any = None
    non_differentiable: Any = None

    def __init__(
        self,
        cls: Any,
        needs_input_grad: Callable[[], tuple[bool, ...]],
        rule: str,
        saved: Sequence[Any] | None = None,
    ) -> None:
        self._forward_cls, self._jaxfn_rule = cls, rule
        self._jaxfn_needs, self._jaxfn_saved = needs_input_grad, saved

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """For each argument, whether it is differentiated."""
        return self._jaxfn_needs()

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The saved tensors. In forward: those that are saved up to now."""
        saved = self._jaxfn_saved
        return given_to(self, "to_save") if saved is None else tuple(saved)

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """The saved tensors, under the old name; in backward only."""
        return self.saved_tensors if self._jaxfn_rule == "backward" else ()

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
        """Return torch's name of the node."""
        return f"{self._forward_cls.__name__}Backward"

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _GRAPH:
            raise TorchRefusal(
                operation=f"ctx.{attribute}",
                reason="it belongs to torch's graph of nodes, and a trace has none.",
            )
        raise AttributeError(
            f"'{self._forward_cls.__name__}Backward' object has no attribute "
            f"{attribute!r}",
            name=attribute,
            obj=self,
        )


# The next two are no methods of Ctx, because rules may use any name for an attribute.
def attributes_of(ctx: Ctx) -> dict[str, Any]:
    """Return the attributes that rules set."""
    return {k: v for k, v in ctx.__dict__.items() if k not in STATE}


def given_to(ctx: Ctx, what: str) -> tuple[Any, ...]:
    """Return the tensors (and None) that a rule passed to a method of ctx."""
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
    """Return whether the class defines setup_context."""
    base = torch.autograd.Function.setup_context
    return cls.setup_context is not base


def has_vmap(cls: Any) -> bool:
    """Return whether the class defines vmap."""
    return cls.vmap is not torch.autograd.Function.vmap


def backward_of(cls: Any) -> Any:
    """Return the backward of a class, which may also have the name vjp."""
    own = cls.vjp is not torch.autograd.Function.vjp
    return cls.vjp if own else cls.backward


def is_once_differentiable(rule: Any) -> bool:
    """Return whether torch's decorator `once_differentiable` wraps this backward."""
    while rule is not None:
        if _is_made_by_once(rule):
            return True
        rule = getattr(rule, "__wrapped__", None)
    return False


def _is_made_by_once(rule: Any) -> bool:
    made = torch.autograd.function.once_differentiable.__code__.co_consts
    return getattr(rule, "__code__", None) in made


def without_once(rule: Any) -> Any:
    """Return a backward without torch's decorator `once_differentiable`.

    The decorator also forbids the derivative by the cotangents, which forward mode
    needs. jaxfn itself refuses every other derivative of such a backward.

    Raises:
        TorchRefusal: It stands below another decorator, and autograd is on.
    """
    if _is_made_by_once(rule):
        return rule.__wrapped__
    if is_once_differentiable(rule) and torch.is_grad_enabled():
        raise TorchRefusal(
            operation="the derivative of backward",
            reason="it is marked with @once_differentiable, below another decorator.",
            way_out="Write @once_differentiable as the first decorator.",
        )
    return rule


def nests(cls: Any) -> bool:
    """Return whether a rule may call a Function that asks what is differentiated."""
    own = [getattr(getattr(cls, rule), "__code__", None) for rule in RULES]
    reached = [code for code in reached_by(cls) if code not in own]
    return any("needs_input_grad" in names_in(code) for code in reached)


def type_test(cls: Any) -> str:
    """Return the line of a rule that asks whether a type *is* torch.Tensor, if any.

    While a rule is traced, its tensors are of a class derived from that.
    """
    for code in reached_by(cls):
        if {"type", "Tensor"} <= {*names_in(code)}:
            with contextlib.suppress(OSError, SyntaxError):
                tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
                for node in filter(_compares_type, ast.walk(tree)):
                    line = code.co_firstlineno + getattr(node, "lineno", 1) - 1
                    return f"{code.co_filename}:{line}"
    return ""


def _compares_type(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare):
        return False
    sides = [ast.unparse(x) for x in (node.left, *node.comparators)]
    is_of_type = any(re.fullmatch(r"type\(\w+\)", x) for x in sides)
    kind = r"(torch\.|nn\.)*(Tensor|Parameter)"
    return is_of_type and any(re.fullmatch(rf"\(?({kind}(, )?)+\)?", x) for x in sides)
