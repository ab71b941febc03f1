"""The names of `torch.autograd` that jaxfn has; a port changes only the import.

Example:
    >>> from jaxfn.autograd import Function
    >>> from jaxfn.autograd.function import once_differentiable
    >>> from jaxfn.autograd.graph import saved_tensors_hooks
"""

from jaxfn._function import Function
from jaxfn.autograd import function, graph
from jaxfn.autograd.gradcheck import gradcheck, gradgradcheck

__all__ = ["Function", "function", "gradcheck", "gradgradcheck", "graph"]
