"""A setting inside a `with`, for each thread and task, that caches of jit respect."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import jax

from jaxfn._base import compat

T = TypeVar("T")


class Scoped(Generic[T]):
    """The setting; its values are hashable.

    The value is that of a context variable, so each thread and each asynchronous task
    has its own. A JAX user context follows it, so that what was traced under another
    value is traced again. That context is the thread's: where tasks of one thread take
    turns inside a `with`, it may be another task's. Then it is set right, or, where a
    trace is under way whose result JAX would keep for that other task, refused.

    The context is made at the first change: making one empties JAX's caches.

    Args:
        name: of the setting, for messages.
        default: the value outside of all.
    """

    def __init__(self, name: str, default: T) -> None:
        self._name = name
        self._default = default
        self._variable: ContextVar[T] = ContextVar(name)
        self._context: Any = None
        self._making = threading.Lock()

    def get(self) -> T:
        """The value here.

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
        """Change the value; return what puts the old one back."""
        old = self.get()
        if value == old:
            return _nothing
        self._variable.set(value)
        self._follow(value)

        def undo() -> None:
            self._variable.set(old)
            self._follow(old)

        return undo

    def _follow(self, value: T) -> None:
        with self._making:
            if self._context is None:
                self._context = jax.make_user_context(self._default)
        # Entered and never left: tasks may leave in another order than they entered.
        self._context(value).__enter__()


def _nothing() -> None:
    """Put nothing back."""
