"""LibCST itself, as an object without static types.

It is an extra: type checkers run where it is not installed.
"""

from __future__ import annotations

import importlib
from typing import Any

cst: Any = importlib.import_module("libcst")
metadata: Any = importlib.import_module("libcst.metadata")
