"""The names of `torch.autograd.gradcheck`.

Example:
    >>> from jaxfn.autograd.gradcheck import GradcheckError
"""

from jaxfn._base import errors
from jaxfn._gradcheck import gradcheck, gradgradcheck

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]
