"""The names of `torch.autograd.gradcheck`.

Example:
    >>> from jaxfn.autograd.gradcheck import GradcheckError
"""

from jaxfn._gradcheck import gradcheck, gradgradcheck
from jaxfn._gradcheck_run import GradcheckError

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]
