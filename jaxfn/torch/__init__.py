"""PyTorch Functions in JAX, unmodified.

`from_torch` makes a `jaxfn.Function` of a `torch.autograd.Function`: its own forward,
backward and jvp run as JAX operations, under every transformation, compiled by XLA.
`compare` says whether a port that was written by hand equals its original; `translate`
writes one. It takes `pip install 'jaxfn[torch]'`.

A call goes through `_bridge` (the Function that JAX gets), `_call` (its arguments),
`_body` (a rule as a JAX function), `_trace` (its Python, while `_watch` looks),
`_building` and `_program` (steps) and `_table` (a step in JAX). `_gradients` and
`_batching` check what backward and vmap gave. What can't be traced: a class runs by
`_on_host`, one rule by `_host`, or it ends in a `_refusal`, worded where it is raised.
"""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ImportError(
        "jaxfn.torch needs PyTorch, which is not installed here: "
        "pip install 'jaxfn[torch]'."
    )

from jaxfn.torch._compare import CompareReport, OriginalError, compare
from jaxfn.torch._function.explain import TorchExplanation, explain
from jaxfn.torch._function.api import from_torch
from jaxfn.torch._base.refusal import TorchRefusal
from jaxfn.torch._translate.translation import Translation, translate

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
