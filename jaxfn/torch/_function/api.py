"""The function that users call."""

from __future__ import annotations

from typing import Literal

import jaxfn
from jaxfn.torch._base import experimental, torch
from jaxfn.torch._function.call import Settings
from jaxfn.torch._function.function import Bridge


def from_torch(
    cls: type, *, fallback: Literal["host"] | None = None, random: bool = False
) -> type[jaxfn.Function]:
    """Make a `jaxfn.Function` of a `torch.autograd.Function`, without changing it.

    Args:
        cls: The torch class. jaxfn traces its rules once for each signature (shapes,
            dtypes, static arguments), and runs them as JAX operations.
        fallback: "host" runs rules that can't be traced in PyTorch, by a host callback.
            None refuses them.
        random: Set to True if forward draws random numbers. `apply` then takes a PRNG
            key before the arguments.

    Returns:
        A subclass of `jaxfn.Function` with the name of `cls`. Its `apply` takes and
        returns JAX arrays, of the shapes and dtypes of the torch class.

    Raises:
        TypeError: `cls` is no torch Function.
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

    Source: https://docs.pytorch.org/docs/stable/notes/extending.html
    """
    experimental.check()
    if not (isinstance(cls, type) and issubclass(cls, torch.autograd.Function)):
        raise TypeError(
            "from_torch expected a class derived from torch.autograd.Function, got "
            f"{cls!r}. Pass the class itself, not its apply."
        )
    if fallback not in (None, "host"):
        raise ValueError(
            f'from_torch expected fallback=None or "host", got {fallback!r}.'
        )
    bridge = Bridge(cls, Settings("fallback" if fallback else "never", random=random))
    return bridge.made()
