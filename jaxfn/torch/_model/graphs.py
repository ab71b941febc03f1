"""`explain`: the graphs of what `from_torch` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn.torch._base import TorchRefusal, to_jax, torch
from jaxfn.torch._function import (
    TorchExplanation,
    explain_function,
    refused_graph,
    rule_graph,
)
from jaxfn.torch._model.api import from_torch
from jaxfn.torch._model.operation import function_of


def explain(
    source: Any,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    random: bool = False,
    mutable: bool = False,
) -> TorchExplanation:
    """Show the graphs of a PyTorch Function or module, and refusals with their places.

    Args:
        source: A torch class, an operation of torch.library, or a module.
        *args: The arguments of its `apply` (of the call of a module), with JAX arrays
            or tensors, without a key.
        kwargs: Keyword arguments of a module.
        random: Whether it may draw random numbers.
        mutable: Whether a module may write to its buffers.

    Returns:
        The graphs of forward and backward, as torch's operations, without values.

    Example:
        >>> import jax.numpy as jnp, torch, jaxfn.torch
        >>> class Square(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         (x,) = ctx.saved_tensors
        ...         return 2 * g * x
        >>> report = jaxfn.torch.explain(Square, jnp.ones(3))
        >>> report.ok, report.backward.operations
        (True, {'aten.mul.Tensor': 2})
    """
    if not isinstance(source, torch.nn.Module):
        return explain_function(function_of(source) or source, *args, random=random)
    model = from_torch(source, random=random, mutable=mutable)
    args, kwargs = jax.tree.map(_to_jax, (args, dict(kwargs or {})))
    name = type(source).__name__
    values = {**model.buffers, **model.frozen, **model.params}
    function, arrays = model._traced(values, args, kwargs)
    try:
        forward = rule_graph("forward", function.graph.program(arrays))
    except TorchRefusal as refusal:
        return TorchExplanation(name, refused_graph("forward", refusal), None)
    mask = tuple([jnp.issubdtype(x.dtype, jnp.inexact) for x in arrays])
    try:
        tree = function.gradient((mask, None)).program(arrays)
    except TorchRefusal as refusal:
        return TorchExplanation(name, forward, refused_graph("backward", refusal))
    return TorchExplanation(name, forward, rule_graph("forward and backward", tree))


def _to_jax(x: Any) -> Any:
    return to_jax(x) if isinstance(x, torch.Tensor) else x
