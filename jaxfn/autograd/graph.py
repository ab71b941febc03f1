"""Hooks on what is saved for backward: the names of `torch.autograd.graph`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn._methods import BackwardCFunction, settings

__all__ = [
    "Node",
    "disable_saved_tensors_hooks",
    "save_compressed",
    "save_on_cpu",
    "saved_tensors_hooks",
]

Node = BackwardCFunction
"""What contexts are instances of, as in torch; of a graph they know nothing."""


class saved_tensors_hooks:  # noqa: N801  (torch's name)
    """Keep something else than the arrays that are saved for backward.

    While the context is active, every array that a Function saves with
    `save_for_backward` is given to `pack_hook`, and what that returns is kept;
    `unpack_hook` gets it back when backward reads `ctx.saved_tensors`, and returns the
    array to find there. Of nested contexts the innermost counts. The pair is the one
    that is active when `apply` is called, also where backward runs later.

    Not packed: None, NumPy arrays, attributes of ctx, what is saved for jvp, and
    anything in a call that is not differentiated or whose Function has no backward.

    Args:
        pack_hook: from an array of any shape and dtype to any pytree: arrays, and
            static values such as strings or dtypes. It is traced like any JAX function.
        unpack_hook: from that pytree to an array.

    Raises:
        RuntimeError: on entering, where hooks are disabled.

    Differs from torch: hooks are traced once, not run in every iteration; derivatives
    of higher order go through both hooks (and raise where integers are kept, for there
    they would be lost). A jitted function is traced again under other hooks.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jaxfn._examples import ExpDerived
        >>> from jaxfn.autograd.graph import saved_tensors_hooks
        >>> def pack(x):
        ...     print("pack", x.shape)
        ...     return x.astype(jnp.bfloat16), x.dtype
        >>> def unpack(kept):
        ...     return kept[0].astype(kept[1])
        >>> with saved_tensors_hooks(pack, unpack):
        ...     gradient = jax.grad(lambda x: ExpDerived.apply(x).sum())(jnp.zeros(3))
        pack (3,)
        >>> gradient.tolist()
        [1.0, 1.0, 1.0]

    Source: https://docs.pytorch.org/docs/stable/autograd.html#torch.autograd.graph.saved_tensors_hooks
    """

    def __init__(
        self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]
    ) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook
        # A list, since one object may be entered again inside of itself.
        self._leave: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        pair = settings.Hooks(self.pack_hook, self.unpack_hook)
        self._leave.append(settings.push(pair))

    def __exit__(self, *_: object) -> None:  # torch's tests call it without arguments
        # Left once too often, there is nothing to take off. torch would take off the
        # innermost pair, whoever entered it, and fails if there is none.
        if self._leave:
            self._leave.pop()()


class disable_saved_tensors_hooks(contextlib.ContextDecorator):  # noqa: N801  (torch's)
    """Refuse saved-tensor hooks while the context is active.

    It is a decorator too, as in torch: then hooks are refused in calls of the function.

    Args:
        error_message: of the RuntimeError that entering hooks raises.

    Raises:
        RuntimeError: on entering, where hooks are active.

    Example:
        >>> from jaxfn.autograd import graph
        >>> with graph.disable_saved_tensors_hooks("not here"):
        ...     try:
        ...         with graph.save_on_cpu(): ...
        ...     except RuntimeError as error:
        ...         print(error)
        not here

    Source: https://docs.pytorch.org/docs/stable/autograd.html#torch.autograd.graph.disable_saved_tensors_hooks
    """

    def __init__(self, error_message: str) -> None:
        self.error_message = error_message
        self._leave: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        self._leave.append(settings.disable(self.error_message))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave.pop()()


class save_on_cpu(saved_tensors_hooks):  # noqa: N801  (torch's name)
    """Keep what is saved for backward in the memory of the host.

    On a GPU or TPU the arrays are moved to host memory in the forward pass and back in
    the backward pass, inside the compiled program where there is one. On a CPU they are
    there already, and nothing is done.

    Args:
        pin_memory: accepted; the host memory that XLA uses is pinned.
        device_type: accepted and ignored.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jaxfn._examples import ExpDerived
        >>> from jaxfn.autograd.graph import save_on_cpu
        >>> with save_on_cpu():
        ...     gradient = jax.grad(ExpDerived.apply)(jnp.zeros(()))
        >>> float(gradient)
        1.0

    Source: https://docs.pytorch.org/docs/stable/autograd.html#torch.autograd.graph.save_on_cpu
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        del pin_memory, device_type
        super().__init__(_to_host, _to_device)


def _to_host(x: Any) -> Any:
    """Move `x` to host memory; say if it was moved: on a CPU it is there already."""
    if jax.default_backend() == "cpu":
        return x, False
    return jax.device_put(x, jax.memory.Space.Host), True


def _to_device(kept: Any) -> Any:
    """Move back to the device what was moved to the host."""
    x, moved = kept
    return jax.device_put(x, jax.memory.Space.Device) if moved else x


class save_compressed(saved_tensors_hooks):  # noqa: N801  (like the others)
    """Keep what is saved for backward in fewer bits.

    Float arrays are kept in `dtype` and come back in their own; others are kept as they
    are. With int8 an array is scaled so that its largest absolute value is 127; the
    scale, one number, is kept beside it.

    The error of a gradient is that of the saved values, to first order: the relative
    rounding error is at most 2^-9 = 0.2 % of each value in bfloat16, and at most
    1/254 = 0.4 % of the largest one in int8. Measured on the gradient of four layers
    tanh(W x) with 64 x 64 normal weights of variance 1/64, as norm of the difference by
    norm: 0.4 % in bfloat16, 0.04 % in float16, 1.1 % to 1.4 % in int8 (three seeds).

    Args:
        dtype: bfloat16, float16 or int8.

    Raises:
        ValueError: another dtype.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jaxfn._examples import ExpDerived
        >>> from jaxfn.autograd.graph import save_compressed
        >>> x = jnp.linspace(0, 1, 5)
        >>> with save_compressed(jnp.bfloat16):
        ...     gradient = jax.grad(lambda x: ExpDerived.apply(x).sum())(x)
        >>> bool(jnp.allclose(gradient, jnp.exp(x), rtol=2**-8))
        True
    """

    def __init__(self, dtype: Any = jnp.bfloat16) -> None:
        dtype = jnp.dtype(dtype)
        if dtype not in (jnp.bfloat16, jnp.float16, jnp.int8):
            raise ValueError(
                f"save_compressed got dtype {dtype}: expected bfloat16, float16, int8."
            )
        pair = (_to_int8, _from_int8) if dtype == jnp.int8 else _to_dtype(dtype)
        super().__init__(*pair)


# Cached, so that there is one pair of functions for each dtype: hooks are known by
# identity, and another pair would have every jitted function traced again.
@functools.cache
def _to_dtype(dtype: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Make the hooks that keep float arrays in a float dtype."""

    def pack(x: Any) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x, x.dtype
        return x.astype(dtype), x.dtype

    def unpack(kept: Any) -> Any:
        x, dtype = kept
        return x if x.dtype == dtype else x.astype(dtype)

    return pack, unpack


# With s = max|x| / 127 the kept value is q = round(x / s), between -127 and 127, and
# s q comes back. Rounding moves x / s by at most 1/2, so x by at most s / 2: that is
# 1/254 of the largest value.
def _to_int8(x: Any) -> Any:
    """Scale a float array to integers of 8 bits; leave any other as it is."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x, None, x.dtype
    # An empty array has no largest value, and one of zeros the scale 0: x / 0 would be
    # nan.
    scale = jnp.max(jnp.abs(x), initial=0) / 127
    safe = jnp.where(scale > 0, scale, 1)
    return jnp.round(x / safe).astype(jnp.int8), scale, x.dtype


def _from_int8(kept: Any) -> Any:
    """Undo `_to_int8`, but for the rounding."""
    x, scale, dtype = kept
    return x if scale is None else (x * scale).astype(dtype)
