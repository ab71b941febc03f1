"""Settings of a `with` block, for each thread and task, that caches of jit respect."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import jax

from jaxfn._base import compat

T = TypeVar("T")


class Scoped(Generic[T]):
    """A setting with hashable values, which a `with` block changes and puts back.

    The value is that of a context variable, so each thread and each asynchronous task
    has its own. A JAX user context follows it, so that what was traced under another
    value is traced again. That context is the thread's: where tasks of one thread take
    turns inside a `with`, it may be another task's. Then it is set right, or, where a
    trace is under way whose result JAX would keep for that other task, refused.

    The context is made at the first change: making one empties JAX's caches.

    Args:
        name: the name of the setting, for messages.
        default: its value outside of all `with` blocks.
    """

    def __init__(self, name: str, default: T) -> None:
        self._name = name
        self._default = default
        self._variable: ContextVar[T] = ContextVar(name)
        self._context: Any = None
        self._making = threading.Lock()

    def get(self) -> T:
        """Return the value that holds here.

        Raises:
            RuntimeError: JAX is tracing under the value of another task.
        """
        value = self._variable.get(self._default)
        # The two differ where another task of this thread took its turn inside a
        # `with`: the variable is the task's own, JAX's context the thread's.
        if self._context is not None and self._context.value != value:
            # What is traced now would be kept under JAX's context, so for the other
            # task. Where nothing is kept, following is enough.
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
        # JAX would find the same cache either way, but the first change of all makes
        # the context, which empties its caches.
        if value == old:
            return _nothing
        self._variable.set(value)
        self._follow(value)

        def undo() -> None:
            self._variable.set(old)
            self._follow(old)

        return undo

    def _follow(self, value: T) -> None:
        """Give JAX's context of this thread the value."""
        # JAX says of make_user_context that it is not safe to call from two threads.
        with self._making:
            if self._context is None:
                self._context = jax.make_user_context(self._default)
        # Entered and never left: tasks may leave in another order than they entered.
        self._context(value).__enter__()


def _nothing() -> None:
    """Put nothing back."""
