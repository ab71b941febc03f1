"""The names of `torch.autograd.gradcheck`.

Example:
    >>> from jaxfn.autograd.gradcheck import GradcheckError
"""

from jaxfn._gradcheck import GradcheckError, gradcheck, gradgradcheck

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]
