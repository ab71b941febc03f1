"""`jaxfn.check`: check each rule of a Function.

Read `api` (what users call), `runner` (all checks, and how one runs) and `report` (what
users get). `case` is the Function with its arguments, and `compile` runs it. `shared`
compares arrays, `numbers` makes them, `finite_differences` gives slopes. `accuracy`
measures how far a comparison may be off, and `diagnosis` describes a wrong array. The
checks are in `checks`: `first_order` (value, backward and jvp), `second_order`,
`batching` (vmap) and `programs` (scan, checkpoint, low precision).

A new check is a row of `runner.CHECKS`. Add a Function that it must refuse to
tests/check/wrong_functions.py.

`jaxfn.torch.compare` imports outcomes, comparisons, `slopes`, `jumps`, `likeness`,
compiled programs and the report, all from this package.

Imported at first use. Nothing that a Function needs to run belongs here.
"""

from jaxfn._check.accuracy import LARGEST, MOST, jumps
from jaxfn._check.api import check, expect_options, in_float64
from jaxfn._check.case import Case
from jaxfn._check.checks import batching
from jaxfn._check.checks.first_order import backward
from jaxfn._check.compile import Once, Program
from jaxfn._check.diagnosis import is_near, likeness
from jaxfn._check.finite_differences import paired, slopes
from jaxfn._check.jaxprs import least_precise
from jaxfn._check.numbers import copies, direction, like
from jaxfn._check.report import (
    NO_FLOAT_OUTPUTS,
    NO_FLOATS,
    CheckError,
    CheckReport,
    CheckResult,
)
from jaxfn._check.rows import Rows, result_of
from jaxfn._check.runner import CHECKS, Check, Run, refusals
from jaxfn._check.shared import (
    Outcome,
    Skip,
    compare_arrays,
    described,
    eps_of,
    largest,
    name_of,
    wide,
    worst,
)
