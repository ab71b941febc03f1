"""A setting inside a `with`, for each thread, that caches of jit respect."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax

T = TypeVar("T")


class Scoped(Generic[T]):
    """The setting; its values are hashable.

    The value is that of a JAX user context: each thread has its own, and what was
    traced under another value is traced again. Nothing but that context holds it: a
    context variable, say, changes with the asynchronous task, which JAX's caches don't
    see, and a task would get what was compiled for another.

    The context is made at the first change: making one empties JAX's caches.

    Args:
        default: the value outside of all.
    """

    def __init__(self, default: T) -> None:
        self._default = default
        self._context: Any = None
        self._making = threading.Lock()

    def get(self) -> T:
        """The value here."""
        return self._default if self._context is None else self._context.value

    def set(self, value: T) -> Callable[[], None]:
        """Change the value; return what puts the old one back."""
        if value == self.get():
            return _nothing
        with self._making:
            if self._context is None:
                self._context = jax.make_user_context(self._default)
        scope = self._context(value)
        scope.__enter__()
        return lambda: scope.__exit__(None, None, None)


def _nothing() -> None:
    """Put nothing back."""
