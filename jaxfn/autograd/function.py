"""The names of `torch.autograd.function`.

Example:
    >>> from jaxfn.autograd.function import InplaceFunction
"""

from jaxfn._context import BackwardCFunction, FunctionCtx
from jaxfn._function import Function, FunctionMeta, once_differentiable
from jaxfn._legacy import InplaceFunction, NestedIOFunction

__all__ = [
    "BackwardCFunction",
    "Function",
    "FunctionCtx",
    "FunctionMeta",
    "InplaceFunction",
    "NestedIOFunction",
    "once_differentiable",
]

# torch's private names, which some code uses.
_ContextMethodMixin = FunctionCtx
_SingleLevelFunction = Function
