"""Settings of a `with` block: the autocast policy and the saved-tensor hooks.

Each thread and task has its own, and `jax.jit` respects them (`Scoped`).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import MethodType
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp

from jaxfn._base import compat

T = TypeVar("T")


class Scoped(Generic[T]):
    """A setting with hashable values, which a `with` block changes and restores.

    A context variable holds it, so each thread and each asynchronous task has its own.
    A JAX user context follows it, because JAX must retrace under another value. But
    JAX's context belongs to the thread: if tasks of one thread alternate inside a
    `with`, it may hold another task's value. Then `get` corrects it, or raises during a
    trace that JAX would cache for the other task.

    JAX's context is made at the first change, because making it empties JAX's caches.

    Args:
        name: Name of the setting, for messages.
        default: Value outside all `with` blocks.
    """

    def __init__(self, name: str, default: T) -> None:
        self._name = name
        self._default = default
        self._variable: ContextVar[T] = ContextVar(name)
        self._context: Any = None
        self._making = threading.Lock()

    def get(self) -> T:
        """Return the current value.

        Raises:
            RuntimeError: JAX is tracing under the value of another task.
        """
        value = self._variable.get(self._default)
        if self._context is not None and self._context.value != value:
            if compat.is_staging():
                raise RuntimeError(
                    f"A function is being compiled here under the {self._name} of "
                    "another asynchronous task (or of the one that started this "
                    "thread), and JAX would cache it for that task: expected no await "
                    f"between entering {self._name} and leaving it. Enter it in the "
                    "task or thread that calls the function, around that call alone."
                )
            self._follow(value)
        return value

    def set(self, value: T) -> Callable[[], None]:
        """Set the value; return a function that restores the old one."""
        old = self.get()
        # Don't make the context, which would empty JAX's caches.
        if value == old:
            return lambda: None
        self._variable.set(value)
        self._follow(value)

        def undo() -> None:
            self._variable.set(old)
            self._follow(old)

        return undo

    def _follow(self, value: T) -> None:
        """Set JAX's context of this thread."""
        # jax.make_user_context is not thread-safe.
        with self._making:
            if self._context is None:
                self._context = jax.make_user_context(self._default)
        # Never exit: tasks may exit in another order than they entered.
        self._context(value).__enter__()


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """Whether autocast is on, and its dtype.

    Attributes:
        enabled: Whether autocast is on.
        dtype: Result of `get_autocast_dtype`.
    """

    enabled: bool
    dtype: Any


policy = Scoped("autocast", Policy(enabled=False, dtype=jnp.dtype(jnp.bfloat16)))


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


hooks = Scoped("saved-tensor hooks", ActiveHooks())


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
