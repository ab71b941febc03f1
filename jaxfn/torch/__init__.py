"""PyTorch Functions in JAX, unmodified.

`from_torch` makes a `jaxfn.Function` of a `torch.autograd.Function`: its own forward,
backward and jvp run as JAX operations, under every transformation, compiled by XLA.
`compare` says whether a port that was written by hand equals its original.
`translate` writes one: source text for JAX, compared with the original.

    pip install 'jaxfn[torch]'

A call goes through `_bridge` (the Function that JAX gets), `_call` (its arguments),
`_body` (a rule as a JAX function), `_trace` (its Python, while `_watch` looks),
`_building` and `_program` (steps) and `_table` (a step in JAX: an operation is a row
there, tested by torch's samples). `_gradients` checks what backward returned, and
`_batching` what vmap did. A class that can't be traced runs by `_on_host`, a single
rule or derivative by `_host`. `_refusal` is the form of a refusal; its words stand
where it is raised. `_compare` and `_translate` are rooms of their own; names of torch
that the translator knows are rows in `_translate/_names`.
"""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ImportError(
        "jaxfn.torch needs PyTorch, which is not installed here: "
        "pip install 'jaxfn[torch]'."
    )

from jaxfn.torch._compare import CompareReport, OriginalError, compare
from jaxfn.torch._explain import TorchExplanation, explain
from jaxfn.torch._from_torch import from_torch
from jaxfn.torch._refusal import TorchRefusal
from jaxfn.torch._translation import Translation, translate

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
