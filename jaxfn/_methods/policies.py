"""The autocast policy, and its use by `custom_fwd`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxfn._base import Scoped, pytree


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """Whether autocast is on, and its dtype.

    Attributes:
        enabled: Whether autocast is on.
        dtype: Result of `get_autocast_dtype`.
    """

    enabled: bool
    dtype: Any


_policy = Scoped("autocast", Policy(enabled=False, dtype=jnp.dtype(jnp.bfloat16)))


def current() -> Policy:
    return _policy.get()


def enter(policy: Policy) -> Callable[[], None]:
    """Set the policy; return a function that restores the old one."""
    return _policy.set(policy)


class using:  # noqa: N801  (used as a function is; a generator is slower)
    """Set the policy inside a `with` block."""

    __slots__ = ("_policy", "_undo")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __enter__(self) -> None:
        self._undo = enter(self._policy)

    def __exit__(self, *_: object) -> None:
        self._undo()


@dataclasses.dataclass(frozen=True, slots=True)
class Casting:
    """The mark of `custom_fwd` on a forward: an attribute of the function.

    Attributes:
        dtype: Dtype to cast float inputs to if autocast is on; None for no cast.
    """

    dtype: Any

    def cast(self, values: Any) -> Any:
        """Cast the inputs of forward under the current policy."""
        if self.dtype is None or not current().enabled:
            return values
        arrays, spec = pytree.split(values)
        return spec.join([self._cast(x) for x in arrays])

    def inside(self) -> Policy:
        """Return the policy under which forward and backward run."""
        policy = current()
        if self.dtype is None:
            return policy
        # As in torch, nothing inside forward is cast again.
        return Policy(enabled=False, dtype=policy.dtype)

    def _cast(self, x: Any) -> Any:
        # torch doesn't cast float64 either.
        if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype == jnp.float64:
            return x
        return jnp.asarray(x, self.dtype)


def casting(forward: Callable[..., Any]) -> Casting | None:
    """Return the mark of `custom_fwd` on a forward, or None."""
    return getattr(forward, "_jaxfn_casting", None)


def note(ctx: Any, casting: Casting) -> None:
    """Set the attributes of ctx that `custom_bwd` reads, with torch's names."""
    policy = casting.inside()
    ctx._dtype = policy.dtype
    ctx._fwd_used_autocast = policy.enabled
