"""Mixed precision for Functions: the names of `torch.amp`.

JAX has no autocast for all operations, and jaxfn adds none. A policy applies to
Functions whose rules are decorated by `custom_fwd` and `custom_bwd`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import jax.numpy as jnp

from jaxfn import _settings as settings
from jaxfn._context import FunctionCtx
from jaxfn._core import split
from jaxfn._function import rewrapped

__all__ = [
    "autocast",
    "custom_bwd",
    "custom_fwd",
    "get_autocast_dtype",
    "is_autocast_enabled",
]


class autocast(contextlib.ContextDecorator):  # noqa: N801  (torch's name)
    """A policy for the Functions called inside it: a context or a decorator.

    The policy that is active when `apply` is called counts, even if forward is traced
    later. Backward runs under the policy of its forward.

    Args:
        device_type: "cuda", "cpu" or any other name. As in torch, it chooses the
            default dtype: float16 for "cuda", else bfloat16. It has no other effect.
        dtype: The dtype of the policy.
        enabled: Whether autocast is on inside.
        cache_enabled: Accepted and ignored.

    Raises:
        ValueError: `device_type` is neither a string nor None.

    Differs from torch: operations outside Functions are not cast.

    Example:
        >>> import jaxfn
        >>> with jaxfn.amp.autocast("cuda"):
        ...     print(jaxfn.amp.is_autocast_enabled(), jaxfn.amp.get_autocast_dtype())
        True float16

    Source: https://docs.pytorch.org/docs/stable/amp.html#torch.autocast
    """

    def __init__(
        self,
        device_type: str | None = None,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        del cache_enabled
        if device_type is not None:
            _check_device_type(device_type)
        if dtype is None:
            dtype = jnp.float16 if device_type == "cuda" else jnp.bfloat16
        self._policy = settings.Policy(enabled=bool(enabled), dtype=jnp.dtype(dtype))
        # A list, because one object may be entered inside itself: as a decorator of a
        # function that calls itself.
        self._leave: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        self._leave.append(settings.policy.set(self._policy))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave.pop()()


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Return whether autocast is on here.

    Args:
        device_type: Accepted and ignored.

    Returns:
        True if the innermost `autocast` is enabled.

    Example:
        >>> import jaxfn
        >>> jaxfn.amp.is_autocast_enabled()
        False
    """
    del device_type
    return settings.policy.get().enabled


def get_autocast_dtype(device_type: str | None = None) -> Any:
    """Return the dtype of the active policy.

    Args:
        device_type: Accepted and ignored.

    Returns:
        A NumPy dtype; bfloat16 outside `autocast`.

    Example:
        >>> import jaxfn
        >>> print(jaxfn.amp.get_autocast_dtype())
        bfloat16
    """
    del device_type
    return settings.policy.get().dtype


def custom_fwd(
    fwd: Callable[..., Any] | None = None,
    *,
    device_type: str,
    cast_inputs: Any = None,
) -> Any:
    """Choose how a Function's forward behaves under `autocast`.

    It decorates the static method (or classmethod) `forward`, in either style, above or
    below `@staticmethod`. Decorate backward by `custom_bwd`.

    Args:
        fwd: The function `forward`. Without it the result is a decorator.
        device_type: Any name; it has no effect.
        cast_inputs: The dtype for float arrays (except float64) among the arguments, if
            autocast is on. Forward and backward then run with autocast off. None: they
            run under the policy of the call, without a cast.

    Returns:
        The decorated function, or a decorator.

    Raises:
        TypeError: `device_type` is missing.
        ValueError: `device_type` is not a string.

    Differs from torch: it works in the separate style too, whose `setup_context` gets
    the cast inputs.

    Example:
        >>> import jax, jax.numpy as jnp, jaxfn
        >>> class Square(jaxfn.Function):
        ...     @staticmethod
        ...     @jaxfn.amp.custom_fwd(device_type="cuda", cast_inputs=jnp.bfloat16)
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...     @staticmethod
        ...     @jaxfn.amp.custom_bwd(device_type="cuda")
        ...     def backward(ctx, grad):
        ...         (x,) = ctx.saved_tensors
        ...         return 2 * x * grad
        >>> x = jnp.float32(3)
        >>> with jaxfn.amp.autocast("cuda"):
        ...     print(Square.apply(x).dtype)
        bfloat16
        >>> print(Square.apply(x).dtype)
        float32

    Source: https://docs.pytorch.org/docs/stable/amp.html#torch.amp.custom_fwd
    """
    _check_device_type(device_type)
    if fwd is None:
        return functools.partial(
            custom_fwd, device_type=device_type, cast_inputs=cast_inputs
        )
    casting = _Casting(None if cast_inputs is None else jnp.dtype(cast_inputs))
    return rewrapped(fwd, functools.partial(_cast, casting=casting))


@dataclasses.dataclass(frozen=True, slots=True)
class _Casting:
    """The mark of `custom_fwd` on a forward: its attribute `_jaxfn_casting`.

    Attributes:
        dtype: Dtype to cast float inputs to if autocast is on; None for no cast.
    """

    dtype: Any

    def note(self, ctx: Any) -> None:
        """Set the attributes of ctx that `custom_bwd` reads, with torch's names."""
        policy = self.inside()
        ctx._dtype = policy.dtype
        ctx._fwd_used_autocast = policy.enabled

    def cast(self, values: Any) -> Any:
        """Cast the inputs of forward under the current policy."""
        if self.dtype is None or not settings.policy.get().enabled:
            return values
        arrays, spec = split(values)
        return spec.join([self._cast(x) for x in arrays])

    def inside(self) -> settings.Policy:
        """Return the policy under which forward and backward run."""
        policy = settings.policy.get()
        if self.dtype is None:
            return policy
        # As in torch, nothing inside forward is cast again.
        return settings.Policy(enabled=False, dtype=policy.dtype)

    def _cast(self, x: Any) -> Any:
        # torch doesn't cast float64 either.
        if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype == jnp.float64:
            return x
        return jnp.asarray(x, self.dtype)


def _cast(forward: Callable[..., Any], *, casting: _Casting) -> Callable[..., Any]:
    @functools.wraps(forward)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        ctx = _first(args)
        # In the separate style forward has no ctx: `setup` writes on it later.
        if isinstance(ctx, FunctionCtx):
            casting.note(ctx)
        args, kwargs = casting.cast((args, kwargs))
        return settings.under(casting.inside(), forward, *args, **kwargs)

    marked: Any = decorated
    marked._jaxfn_casting = casting
    return marked


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Any:
    """Run a Function's backward under the policy of its forward.

    It decorates the static method `backward` (or `vjp`) of a Function with a forward
    decorated by `custom_fwd`.

    Args:
        bwd: The function `backward`. Without it the result is a decorator.
        device_type: Any name; it has no effect.

    Returns:
        The decorated function, or a decorator.

    Raises:
        TypeError: `device_type` is missing.
        ValueError: `device_type` is not a string.
        AttributeError: When backward runs, if forward is not decorated.

    Example:
        >>> import jaxfn
        >>> @jaxfn.amp.custom_bwd(device_type="cuda")
        ... def backward(ctx, grad):
        ...     return jaxfn.amp.is_autocast_enabled()
        >>> ctx = jaxfn.FunctionCtx()
        >>> ctx._fwd_used_autocast, ctx._dtype = True, "float16"
        >>> backward(ctx, 1.0)
        True

    Source: https://docs.pytorch.org/docs/stable/amp.html#torch.amp.custom_bwd
    """
    _check_device_type(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)
    return rewrapped(bwd, _under_policy_of_forward)


def _under_policy_of_forward(backward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(backward)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        ctx = _first(args)
        if not hasattr(ctx, "_fwd_used_autocast"):
            raise AttributeError(
                f"{type(ctx).__name__!r} object has no attribute '_fwd_used_autocast'. "
                f"custom_bwd needs to know the policy of `{_function(ctx)}.forward`: "
                "decorate it with jaxfn.amp.custom_fwd(device_type=...)."
            )
        # Not the current policy: backward runs later, after the `with` of its forward,
        # or inside another.
        policy = settings.Policy(enabled=ctx._fwd_used_autocast, dtype=ctx._dtype)
        return settings.under(policy, backward, *args, **kwargs)

    return decorated


def _first(args: tuple[Any, ...]) -> Any:
    """Return the first argument after the class, which only a classmethod gets."""
    rest = iter(args)
    first = next(rest, None)
    return next(rest, None) if isinstance(first, type) else first


def _function(ctx: Any) -> str:
    """Return the name of the Function from its context."""
    return type(ctx).__name__.removesuffix("Backward")


def _check_device_type(device_type: Any) -> None:
    if not isinstance(device_type, str):
        raise ValueError(
            f"Expected `device_type` of type `str`, got: `{type(device_type)}`"
        )
