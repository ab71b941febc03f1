"""PyTorch Functions in JAX, unmodified.

`from_torch` makes a `jaxfn.Function` of a `torch.autograd.Function`. Its own forward,
backward and jvp run as JAX operations, under every transformation, compiled by XLA. It
takes a whole module too, or a function on tensors.
`compare` checks a port against its PyTorch original. `translate` writes a port.
Install it with `pip install 'jaxfn[torch]'`.

The packages, from the bottom up. The docstring of each says how it works:

- `_base`: torch itself; tensors, arguments, random draws and refusals
- `_ops`: the table of operations, which says how JAX computes each one of torch's
- `_triton`: Triton kernels that a rule launches
- `_trace`: from the Python of a rule to a program in JAX
- `_function`: a class with such programs as its rules
- `_model`: `from_torch` and `explain`; a module or a function with such a program
- `_compare`: `compare`; a port beside its original
- `_translate`: `translate`; the source text of a port
"""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ImportError(
        "jaxfn.torch needs PyTorch, which is not installed here: "
        "pip install 'jaxfn[torch]'."
    )

from jaxfn.torch._base import TorchRefusal
from jaxfn.torch._compare import CompareReport, OriginalError, compare
from jaxfn.torch._function import TorchExplanation
from jaxfn.torch._model import TorchModel, explain, from_torch
from jaxfn.torch._translate import Translation, translate

__all__ = [
    "CompareReport",
    "OriginalError",
    "TorchExplanation",
    "TorchModel",
    "TorchRefusal",
    "Translation",
    "compare",
    "explain",
    "from_torch",
    "translate",
]
