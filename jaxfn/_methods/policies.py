"""The autocast policy, and what `custom_fwd` makes of it."""

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
        enabled: whether it is on.
        dtype: the dtype that `get_autocast_dtype` gives.
    """

    enabled: bool
    dtype: Any


_policy = Scoped("autocast", Policy(enabled=False, dtype=jnp.dtype(jnp.bfloat16)))


def current() -> Policy:
    """Return the policy that holds here."""
    return _policy.get()


def enter(policy: Policy) -> Callable[[], None]:
    """Make this the policy; return what puts the old one back."""
    return _policy.set(policy)


class using:  # noqa: N801  (used as a function is; a generator is slower)
    """Make this the policy inside of a `with` block."""

    __slots__ = ("_policy", "_undo")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __enter__(self) -> None:
        self._undo = enter(self._policy)

    def __exit__(self, *_: object) -> None:
        self._undo()


@dataclasses.dataclass(frozen=True, slots=True)
class Casting:
    """The mark that `custom_fwd` leaves on a forward, as an attribute of the function.

    Attributes:
        dtype: the dtype to cast float inputs to where autocast is on; None to leave
            them as they are.
    """

    dtype: Any

    def cast(self, values: Any) -> Any:
        """Cast the values as forward is to see them under the current policy."""
        if self.dtype is None or not current().enabled:
            return values
        arrays, spec = pytree.split(values)
        return spec.join([self._cast(x) for x in arrays])

    def inside(self) -> Policy:
        """Return the policy under which forward and backward run."""
        policy = current()
        if self.dtype is None:
            return policy
        # Forward has its inputs in the dtype that it asked for: as in torch, nothing
        # inside of it is cast again.
        return Policy(enabled=False, dtype=policy.dtype)

    def _cast(self, x: Any) -> Any:
        # torch leaves float64 as it is, too.
        if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype == jnp.float64:
            return x
        return jnp.asarray(x, self.dtype)


def casting(forward: Callable[..., Any]) -> Casting | None:
    """Return the mark of a forward that `custom_fwd` decorates, or None."""
    return getattr(forward, "_jaxfn_casting", None)


def note(ctx: Any, casting: Casting) -> None:
    """Leave on ctx what `custom_bwd` will need, under torch's names."""
    policy = casting.inside()
    ctx._dtype = policy.dtype
    ctx._fwd_used_autocast = policy.enabled
