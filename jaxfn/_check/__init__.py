"""`jaxfn.check`: is each rule of a Function what it must be?

Read `api` (what users call), `case` (the Function and its arguments), `numbers` (how
results are compared), then the checks: `rules` (each rule for itself), `transforms`
(under jit, vmap, scan, ...) and `programs` (second order, several together). `report`
is what users get, `cli` the command line.

Imported at first use. Nothing that a Function needs to run belongs here.
"""

from jaxfn._check import cli
from jaxfn._check.api import check
from jaxfn._check.report import CheckError, CheckReport
