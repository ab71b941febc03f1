"""PyTorch Functions in JAX, unmodified.

`from_torch` makes a `jaxfn.Function` of a `torch.autograd.Function`: its own forward,
backward and jvp run as JAX operations, under every transformation, compiled by XLA.
`compare` says whether a port that was written by hand equals its original; `translate`
writes one. It takes `pip install 'jaxfn[torch]'`.

The rooms, each with a door that says how it works, from the bottom up:

`_base`       torch itself, and what tensors, arguments, draws and refusals are
`_ops`        the table of operations: how JAX computes what torch's graphs are made of
`_trace`      from the Python of a rule to a program in JAX
`_function`   `from_torch` and `explain`: a class with such programs as its rules
`_compare`    `compare`: a port beside its original
`_translate`  `translate`: the source text of a port
"""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ImportError(
        "jaxfn.torch needs PyTorch, which is not installed here: "
        "pip install 'jaxfn[torch]'."
    )

from jaxfn.torch._base import TorchRefusal
from jaxfn.torch._compare import CompareReport, OriginalError, compare
from jaxfn.torch._function import TorchExplanation, explain, from_torch
from jaxfn.torch._translate import Translation, translate

__all__ = [
    "CompareReport",
    "OriginalError",
    "TorchExplanation",
    "TorchRefusal",
    "Translation",
    "compare",
    "explain",
    "from_torch",
    "translate",
]
