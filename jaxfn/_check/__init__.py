"""`jaxfn.check`: is each rule of a Function what it must be?

Read `api` (what users call), `catalogue` (all checks) and `run` (one of them), `case`
(the Function and its arguments; `labels`: their names) and `compiled` (how it is run),
`numbers`, `looks`, `differences` and `accuracy` (how results are compared), then the
checks: `rules` (value and backward), `tangents` (jvp), `transforms` (vmap), `second`
(derivatives of rules) and `programs` (scan, precision). `report` is what users get.

A new check is a row of `catalogue.CHECKS`; tests/check/wrong_functions.py gets a
Function that it finds.

`jaxfn.torch.compare` takes its numbers, messages and report from here. Imported at
first use. Nothing that a Function needs to run belongs here.
"""

from jaxfn._check.accuracy import MOST, jumps
from jaxfn._check.api import check, expect_options
from jaxfn._check.case import subsets
from jaxfn._check.catalogue import CHECKS
from jaxfn._check.differences import slopes
from jaxfn._check.labels import name_of
from jaxfn._check.looks import is_near, likeness
from jaxfn._check.noise import LARGEST
from jaxfn._check.numbers import (
    Outcome,
    Skip,
    compare_arrays,
    eps_of,
    is_close,
    largest,
    wide,
    worst,
)
from jaxfn._check.report import CheckError, CheckReport, CheckResult
