"""Settings of a `with` block, for each thread and task, that `jax.jit` respects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import jax

from jaxfn._base import compat

T = TypeVar("T")


class Scoped(Generic[T]):
    """A setting with hashable values, which a `with` block changes and restores.

    A context variable holds it, so each thread and each asynchronous task has its own.
    A JAX user context follows, so that JAX retraces under another value. But JAX's
    context belongs to the thread: if tasks of one thread alternate inside a `with`, it
    may hold another task's value. Then `get` corrects it, or raises during a trace that
    JAX would cache for the other task.

    The first change makes JAX's context, because this empties JAX's caches.

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
                    "thread), and would be kept for it: expected no await between "
                    f"entering {self._name} and leaving it. Enter it in the task or "
                    "thread that calls the function, around that call alone."
                )
            self._follow(value)
        return value

    def set(self, value: T) -> Callable[[], None]:
        """Set the value; return a function that restores the old one."""
        old = self.get()
        # Avoid making the context, which would empty JAX's caches.
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
