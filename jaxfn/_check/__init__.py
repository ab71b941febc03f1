"""`jaxfn.check`: is each rule of a Function what it must be?

Read `api` (what users call), `catalogue` (all checks) and `run` (one of them), `case`
(the Function and its arguments) and `compiled` (how it is run), `numbers`,
`differences` and `accuracy` (how results are compared), then the checks: `rules` (value
and backward), `tangents` (jvp), `transforms` (vmap, second order) and `programs` (scan,
precision).
`report` is what users get, `cli` and `target` the command line.

Imported at first use. Nothing that a Function needs to run belongs here.
"""

from jaxfn._check import cli
from jaxfn._check.api import check
from jaxfn._check.report import CheckError, CheckReport
