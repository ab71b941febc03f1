"""The functions that users call: `from_torch` and `explain`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp

import jaxfn
from jaxfn.torch._base import (
    TorchRefusal,
    closed_tensors,
    experimental,
    fingerprint,
    to_jax,
    torch,
)
from jaxfn.torch._function import (
    Settings,
    TorchExplanation,
    bridged,
    explain_function,
    refused_graph,
    rule_graph,
)
from jaxfn.torch._model.function import OnArrays
from jaxfn.torch._model.module import TorchModel


@overload
def from_torch(
    source: type,
    *,
    fallback: Literal["host"] | None = None,
    random: bool = False,
    generate_jvp_rule: bool = False,
) -> type[jaxfn.Function]: ...
@overload
def from_torch(
    source: Callable[..., Any],
    *,
    fallback: Literal["host"] | None = None,
    random: bool = False,
    mutable: bool = False,
) -> Any: ...
def from_torch(
    source: Any,
    *,
    fallback: Literal["host"] | None = None,
    random: bool = False,
    mutable: bool = False,
    generate_jvp_rule: bool = False,
) -> Any:
    """Make JAX code of a PyTorch Function, module or function, without changing it.

    Args:
        source: A class derived from `torch.autograd.Function`, or an operation made by
            `torch.library.custom_op`, whose `register_autograd` and `register_vmap`
            rules it gets; a `torch.nn.Module`; or a Python function on tensors. jaxfn
            traces it once for each signature (shapes, dtypes, static arguments), and
            runs it as JAX operations. The derivative of each operation is PyTorch's,
            and a Function inside of a module keeps its own backward.
        fallback: "host" runs what can't be traced in PyTorch, by a host callback. None
            refuses it.
        random: Set to True if it draws random numbers. A PRNG key then comes first:
            `apply(key, ...)`, of a module `apply(params, key, ...)`.
        mutable: Set to True if the forward of a module writes to its buffers, as a
            batch norm does in training. Then `apply` returns a pair of the result and
            the new buffers.
        generate_jvp_rule: Set to True if a Function without a jvp is to get one from
            its backward. Modules and functions always have one.

    Returns:
        For a Function or an operation a subclass of `jaxfn.Function` with its name. Its
        `apply` takes and returns JAX arrays, of PyTorch's shapes and dtypes. For a
        module an object with `params` and `apply(params, *args, **kwargs)`. For a
        function a function.

    Raises:
        TypeError: `source` is none of these.
        ValueError: `fallback` is neither None nor "host".
        ImportError: This PyTorch lacks a function that tracing needs.

    A call raises `TorchRefusal` if a rule can't be traced.

    Example:
        >>> import jax, torch, jaxfn.torch
        >>> class Square(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         (x,) = ctx.saved_tensors
        ...         return 2 * g * x
        >>> float(jax.jit(jax.grad(jaxfn.torch.from_torch(Square).apply))(3.0))
        6.0
        >>> norm = jaxfn.torch.from_torch(lambda x: torch.nn.functional.normalize(x))
        >>> norm(jax.numpy.ones((1, 4)))
        Array([[0.5, 0.5, 0.5, 0.5]], dtype=float32)

    Source: https://docs.pytorch.org/docs/stable/notes/extending.html
    """
    experimental.check()
    if fallback not in (None, "host"):
        raise ValueError(
            f'from_torch expected fallback=None or "host", got {fallback!r}.'
        )
    settings = Settings("fallback" if fallback else "never", random=random)
    is_module = isinstance(source, torch.nn.Module)
    if mutable and not is_module:
        raise TypeError("from_torch takes mutable=True for a torch.nn.Module alone.")
    source = function_of(source) or source
    if generate_jvp_rule and not isinstance(source, type):
        raise TypeError(
            "from_torch takes generate_jvp_rule=True for a torch.autograd.Function "
            "alone. A module or a function has a jvp without it."
        )
    if is_module:
        return TorchModel(source, settings, mutable=mutable)
    if isinstance(source, type):
        return bridged(source, settings, generate_jvp_rule=generate_jvp_rule)
    if callable(source):
        return _function(source, settings)
    raise TypeError(
        "from_torch expected a class derived from torch.autograd.Function, a module or "
        f"a function on tensors, got {source!r}."
    )


def _function(source: Any, settings: Settings) -> Any:
    """Return the function on arrays of a function on tensors."""
    name = getattr(source, "__name__", type(source).__name__)
    for x in closed_tensors(source):
        if x.requires_grad:
            raise TypeError(
                f"`{name}` closes over a tensor of shape {tuple(x.shape)} that "
                "requires a gradient, which would be lost. Pass it as an argument. If "
                "it is a parameter, give from_torch the module; or call "
                "module.requires_grad_(False) if it is a constant."
            )
    on_arrays = OnArrays(
        lambda args, kwargs: source(*args, **kwargs),
        name,
        settings,
        state=lambda: fingerprint(source),
    )

    @functools.wraps(source)
    def call(*args: Any, **kwargs: Any) -> Any:
        return on_arrays(args, kwargs)

    return call


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


def function_of(operation: Any) -> type | None:
    """Return a torch Function with the rules of an operation; None if it is none.

    Raises:
        TorchRefusal: The operation writes to its arguments, or takes arguments by
            keyword alone.
    """
    rules = experimental.library_rules(operation)
    if rules is None:
        return None
    schema = experimental.library_schema(operation)
    if schema.is_mutable:
        way_out = "Return the new values."
        raise _refusal(rules.name, "it writes to its arguments.", way_out)
    if any(x.kwarg_only for x in schema.arguments):
        reason = "it has arguments by keyword alone, and apply takes none."
        raise _refusal(rules.name, reason, "Take them by position.")
    members: dict[str, Any] = {
        "__module__": rules.forward.__module__,
        "__doc__": rules.forward.__doc__,
        "forward": staticmethod(rules.forward),
        "setup_context": staticmethod(rules.setup_context or _saves_nothing),
    }
    for rule in ("backward", "vmap"):
        if getattr(rules, rule) is not None:
            members[rule] = staticmethod(getattr(rules, rule))
    return type(rules.name, (torch.autograd.Function,), members)


def _saves_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    del ctx, inputs, output


def _refusal(name: str, reason: str, way_out: str) -> TorchRefusal:
    return TorchRefusal(
        operation="an operation of torch.library", reason=reason, way_out=way_out
    ).of(name, "forward")
