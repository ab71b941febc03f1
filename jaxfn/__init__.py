"""PyTorch's `torch.autograd.Function` for JAX.

A class defines a value, its reverse and forward derivative, and its batching. Its
`apply` works under every JAX transformation, in every order.

Example:
    >>> import jax, jax.numpy as jnp, jaxfn
    >>> class Square(jaxfn.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         (x,) = ctx.saved_tensors
    ...         return 2 * x * grad
    >>> float(jax.grad(Square.apply)(jnp.float32(3)))
    6.0
"""

import importlib
import pathlib
from typing import TYPE_CHECKING, Any

from jaxfn import amp, autograd
from jaxfn._context import BackwardCFunction, FunctionCtx
from jaxfn._core import internals
from jaxfn._core.messages import (
    ClosedOverError,
    HostDerivativeError,
    NoGraphError,
    NoRulesError,
    RuleError,
    RuleTypeError,
    RuleValueError,
    SecondDerivativeError,
)
from jaxfn._custom_function import custom_function
from jaxfn._function import Function, FunctionMeta, once_differentiable
from jaxfn._host_function import host_function
from jaxfn._kernels import KernelDerivativeError
from jaxfn._legacy import InplaceFunction, NestedIOFunction

if TYPE_CHECKING:
    from jaxfn._check import CheckError, CheckReport, check
    from jaxfn._explain import Explanation, explain
    from jaxfn._partitioned import partitioned
    from jaxfn._triton import InterpreterWarning, triton_call

__version__ = "0.1.0"

__all__ = [
    "BackwardCFunction",
    "CheckError",
    "CheckReport",
    "Explanation",
    "Function",
    "FunctionCtx",
    "FunctionMeta",
    "InplaceFunction",
    "InterpreterWarning",
    "NestedIOFunction",
    "RuleError",
    "amp",
    "autograd",
    "check",
    "custom_function",
    "explain",
    "host_function",
    "once_differentiable",
    "partitioned",
    "triton_call",
]

# Tracebacks show the names by which users can catch these.
for _error in (
    ClosedOverError,
    HostDerivativeError,
    KernelDerivativeError,
    NoGraphError,
    NoRulesError,
    RuleError,
    RuleTypeError,
    RuleValueError,
    SecondDerivativeError,
):
    _error.__module__ = __name__

internals.hide_frames(str(pathlib.Path(__file__).parent))

_TOOLS = {
    "CheckError": "jaxfn._check",
    "CheckReport": "jaxfn._check",
    "Explanation": "jaxfn._explain",
    "InterpreterWarning": "jaxfn._triton",
    "check": "jaxfn._check",
    "explain": "jaxfn._explain",
    "partitioned": "jaxfn._partitioned",
    "triton_call": "jaxfn._triton",
}
"""Modules of names that most programs never use; they are imported at first use."""


_ELSEWHERE = {
    "torch": "`import jaxfn.torch`, which needs PyTorch",
    "function": "jaxfn.once_differentiable, or jaxfn.autograd.function",
    "custom_vjp": "jaxfn.custom_function, which has defvjp",
    "custom_jvp": "jaxfn.custom_function, which has defjvp and defjvps",
    "custom_vmap": "jaxfn.custom_function, which has def_vmap",
}
"""What to write for names that jaxfn has under another name."""


def __getattr__(name: str) -> Any:
    if name not in _TOOLS:
        text = f"module {__name__!r} has no attribute {name!r}"
        if name in _ELSEWHERE:
            text += f": write {_ELSEWHERE[name]}"
        raise AttributeError(text)
    value = getattr(importlib.import_module(_TOOLS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
