"""Settings of a `with` block: the autocast policy and the saved-tensor hooks.

Each thread has its own, and `jax.jit` respects them: a JAX user context holds each, so
JAX traces a function again under another value.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from types import MethodType
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")


class Scoped(Generic[T]):
    """A setting with hashable values, which a `with` block changes and restores.

    JAX's context is made at the first change, because making it empties JAX's caches.

    Args:
        default: Value outside all `with` blocks.
    """

    def __init__(self, default: T) -> None:
        self._default = default
        self._context: Any = None
        self._making = threading.Lock()

    def get(self) -> T:
        """Return the current value."""
        return self._default if self._context is None else self._context.value

    def set(self, value: T) -> Callable[[], None]:
        """Set the value; return a function that restores the old one."""
        old = self.get()
        if value == old:
            return lambda: None
        # jax.make_user_context is not thread-safe.
        with self._making:
            if self._context is None:
                self._context = jax.make_user_context(self._default)
        # Never exit: contexts that were entered by hand may exit in any order.
        self._context(value).__enter__()
        return lambda: self._context(old).__enter__() and None


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """Whether autocast is on, and its dtype.

    Attributes:
        enabled: Whether autocast is on.
        dtype: Result of `get_autocast_dtype`.
    """

    enabled: bool
    dtype: Any


policy = Scoped(Policy(enabled=False, dtype=jnp.dtype(jnp.bfloat16)))


def under(value: Policy, function: Callable[..., Any], /, *args: Any, **kw: Any) -> Any:
    """Call a function under this policy."""
    undo = policy.set(value)
    try:
        return function(*args, **kw)
    finally:
        undo()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Hooks:
    """A pair of saved-tensor hooks.

    Pairs of the same functions are equal, so entering a context again does not retrace.

    Attributes:
        pack: Function from a saved array to any pytree.
        unpack: Function from this pytree to the array that backward reads.
    """

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hooks) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        # A method is a new object at each access. Other callables compare by identity:
        # their own == may equate different hooks, and they may have no hash.
        return tuple(
            (id(f.__self__), id(f.__func__)) if isinstance(f, MethodType) else id(f)
            for f in (self.pack, self.unpack)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ActiveHooks:
    """The active pairs.

    Attributes:
        stack: The pairs, the innermost last: only this one packs, as in torch.
        disabled: The message that refuses new pairs; None if they are allowed.
    """

    stack: tuple[Hooks, ...] = ()
    disabled: str | None = None


hooks = Scoped(ActiveHooks())


def push(pair: Hooks) -> Callable[[], None]:
    """Push a pair of hooks; return a function that removes it.

    Raises:
        RuntimeError: Hooks are disabled.
    """
    active = hooks.get()
    if active.disabled is not None:
        raise RuntimeError(active.disabled)
    hooks.set(ActiveHooks((*active.stack, pair)))

    def remove() -> None:
        # Contexts that were entered by hand may exit in any order.
        stack = list(hooks.get().stack)
        if pair in stack:
            del stack[len(stack) - 1 - stack[::-1].index(pair)]
        hooks.set(ActiveHooks(tuple(stack)))

    return remove


def disable(message: str) -> Callable[[], None]:
    """Refuse new hooks; return a function that allows them again.

    Raises:
        RuntimeError: Hooks are active.
    """
    if hooks.get().stack:
        raise RuntimeError(message)
    return hooks.set(ActiveHooks((), message))
