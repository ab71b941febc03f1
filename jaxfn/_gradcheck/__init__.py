"""torch's `gradcheck` and `gradgradcheck`, for any differentiable function.

Read `api` (what users call), `call` (the function and its inputs), `run` (check by
check, with torch's words) and `jacobians` (numerical and analytical). What does the
work is imported at first use. `fast_mode` and the batched checks are missing, because
`jaxfn.check` does both.

It knows nothing of Functions: `_check`, which does, tells which of their rules is
wrong.
"""

from jaxfn._gradcheck.api import gradcheck, gradgradcheck
from jaxfn._gradcheck.errors import GradcheckError
