"""torch's `gradcheck` and `gradgradcheck`, for any differentiable function.

Read `api` (what users call), `call` (the function and its inputs), `run` (check by
check, in torch's words) and `jacobians` (numerical and analytical). All but `api` is
imported at first use. `fast_mode` and the batched checks are missing, because
`jaxfn.check` does both.

It accepts any function. `_check` knows Functions, and tells which rule is wrong.
"""

from jaxfn._gradcheck.api import gradcheck, gradgradcheck
from jaxfn._gradcheck.errors import GradcheckError
