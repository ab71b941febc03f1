"""torch itself, as an object without static types: its public names.

Type checkers run in environments without torch, which is an optional dependency.
"""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")
importlib.import_module("torch.nn.attention")
forward_ad: Any = importlib.import_module("torch.autograd.forward_ad")
FunctionCtx: Any = torch.autograd.function.FunctionCtx
TorchFunctionMode: Any = importlib.import_module("torch.overrides").TorchFunctionMode
