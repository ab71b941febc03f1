"""torch itself, as an object without static types.

It is an extra: type checkers run where it is not installed.
"""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")
importlib.import_module("torch.nn.attention")
forward_ad: Any = importlib.import_module("torch.autograd.forward_ad")
fx_traceback: Any = importlib.import_module("torch.fx.traceback")
FunctionCtx: Any = torch.autograd.function.FunctionCtx
TorchDispatchMode: Any = importlib.import_module(
    "torch.utils._python_dispatch"
).TorchDispatchMode
TorchFunctionMode: Any = importlib.import_module("torch.overrides").TorchFunctionMode
