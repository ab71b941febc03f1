"""`jaxfn.explain`: show what JAX does with a call of a Function.

Read `api` (what users call), `target` (the Function, its rules, its arguments and the
names of its residuals), `trace` (residuals, jaxprs and cost) and `report` (what users
get).

Imported at first use. Nothing that a Function needs to run belongs here.
"""

from jaxfn._explain.api import explain
from jaxfn._explain.report import Explanation
