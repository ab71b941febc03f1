"""What users call."""

from __future__ import annotations

from typing import Literal

import jaxfn
from jaxfn.torch._base import experimental, torch
from jaxfn.torch._function.call import Settings
from jaxfn.torch._function.function import Bridge


def from_torch(
    cls: type, *, fallback: Literal["host"] | None = None, random: bool = False
) -> type[jaxfn.Function]:
    """Make a `jaxfn.Function` of a `torch.autograd.Function`, which stays as it is.

    Args:
        cls: the torch class. Its forward, setup_context, backward (or vjp) and jvp are
            recorded at the first call of each kind, and run as JAX operations.
        fallback: "host" runs the rules in PyTorch on the host, by a callback, where
            they can't be recorded; None refuses them.
        random: may forward draw random numbers? Then `apply` takes a PRNG key before
            the arguments.

    Returns:
        A subclass of `jaxfn.Function` of the same name. `apply` takes JAX arrays of the
        shapes and dtypes that the torch class takes, and gives JAX arrays.

    Raises:
        TypeError: `cls` is no torch Function.
        ValueError: `fallback` is neither None nor "host".
        ImportError: this PyTorch lacks what recording needs.

    A call raises `TorchRefusal` where a rule can't be recorded.

    TensorSpec:
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
