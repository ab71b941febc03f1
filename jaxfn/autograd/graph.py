"""Hooks on saved tensors: the names of `torch.autograd.graph`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp

from jaxfn import _settings as settings
from jaxfn._context import BackwardCFunction

__all__ = [
    "Node",
    "disable_saved_tensors_hooks",
    "save_compressed",
    "save_on_cpu",
    "saved_tensors_hooks",
]

Node = BackwardCFunction
"""The class of contexts, as in torch. A context has no graph."""


class saved_tensors_hooks:  # noqa: N801  (torch's name)
    """Replace the arrays saved for backward, for example by smaller ones.

    While the context is active, `pack_hook` gets every array that a Function saves with
    `save_for_backward`. jaxfn saves its result instead. When backward reads
    `ctx.saved_tensors`, `unpack_hook` gets this result, and returns the array to read.
    Of nested contexts the innermost counts. The hooks active when `apply` is called
    count, even if backward runs later.

    Not packed: None, NumPy arrays, attributes of ctx, and arrays saved for jvp. Nothing
    is packed if the call is not differentiated, or if the Function has no backward.

    Args:
        pack_hook: Function from an array of any shape and dtype to any pytree of arrays
            and static values, such as strings or dtypes. JAX traces it.
        unpack_hook: Function from this pytree to an array.

    Raises:
        RuntimeError: On entering, if hooks are disabled.

    Differs from torch: JAX traces hooks once, and does not run them in every iteration.
    Derivatives of higher order go through both hooks; if a hook returns integers, they
    raise, because they would be lost. Under other hooks JAX traces a jitted function
    again.

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
        # A list, because one object may be entered inside itself.
        self._leave: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        pair = settings.Hooks(self.pack_hook, self.unpack_hook)
        self._leave.append(settings.push(pair))

    def __exit__(self, *_: object) -> None:  # torch's tests call it without arguments
        # If it exits too often, nothing is removed. torch would remove the innermost
        # pair, whoever entered it, and fails if there is none.
        if self._leave:
            self._leave.pop()()


class disable_saved_tensors_hooks(contextlib.ContextDecorator):  # noqa: N801  (torch's)
    """Refuse saved-tensor hooks while the context is active.

    As in torch, it is a decorator too, and refuses hooks in calls of the function.

    Args:
        error_message: The message of the RuntimeError if hooks are entered.

    Raises:
        RuntimeError: On entering, if hooks are active.

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
    """Keep saved arrays in host memory.

    On a GPU or TPU the forward pass moves the arrays to host memory, and the backward
    pass moves them back, also inside a compiled program. On a CPU nothing happens,
    because they are there already.

    Args:
        pin_memory: Accepted and ignored: XLA's host memory is pinned.
        device_type: Accepted and ignored.

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
    """Move `x` to host memory; return also whether it moved (not on a CPU)."""
    if jax.default_backend() == "cpu":
        return x, False
    return jax.device_put(x, jax.memory.Space.Host), True


def _to_device(kept: Any) -> Any:
    """Move an array back to the device, if it was moved."""
    x, moved = kept
    return jax.device_put(x, jax.memory.Space.Device) if moved else x


class save_compressed(saved_tensors_hooks):  # noqa: N801  (like the others)
    """Keep saved arrays in fewer bits.

    Float arrays are saved in `dtype`, and get back their own dtype when read. Other
    arrays stay as they are. With int8 an array is scaled to a largest absolute value of
    127, and its scale, one number, is saved too.

    The relative error of a gradient is about the rounding error of the saved values. It
    is at most 2^-9 = 0.2 % of each value in bfloat16, and at most 1/254 = 0.4 % of the
    largest value in int8. Example: the gradient of four layers tanh(W x), with 64 x 64
    normal weights of variance 1/64. The relative norm of the difference is 0.4 % in
    bfloat16, 0.04 % in float16, and 1.1 % to 1.4 % in int8 (three seeds).

    Args:
        dtype: One of bfloat16, float16 and int8.

    Raises:
        ValueError: The dtype is another one.

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


# Cached, because hooks compare by identity: a new pair of functions would make JAX
# trace every jitted function again.
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


# With s = max|x| / 127 the saved value is q = round(x / s), between -127 and 127, and
# the restored value is s q. Rounding moves x / s by at most 1/2, and so x by at most s
# / 2, which is 1/254 of the largest value.
def _to_int8(x: Any) -> Any:
    """Scale a float array to 8-bit integers; leave any other as it is."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x, None, x.dtype
    # An empty array has no largest value. The scale of zeros is 0, and x / 0 is nan.
    scale = jnp.max(jnp.abs(x), initial=0) / 127
    safe = jnp.where(scale > 0, scale, 1)
    return jnp.round(x / safe).astype(jnp.int8), scale, x.dtype


def _from_int8(kept: Any) -> Any:
    """Undo `_to_int8`, except the rounding."""
    x, scale, dtype = kept
    return x if scale is None else (x * scale).astype(dtype)
