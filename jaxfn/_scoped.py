"""A setting inside a `with`, for each thread and task, that caches of jit respect."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import cached_property
from typing import Any, Generic, TypeVar

import jax

T = TypeVar("T")


class Scoped(Generic[T]):
    """The setting; its values are hashable.

    The value is a context variable's: that is right in threads and in asynchronous
    tasks. A JAX user context follows it, so that what was traced under another value is
    traced again. It is made at the first change: making one empties JAX's caches.

    Args:
        name: of the context variable.
        default: the value outside of all.
    """

    def __init__(self, name: str, default: T) -> None:
        self._variable: ContextVar[T] = ContextVar(name)
        self._default = default

    @cached_property
    def _in_cache_keys(self) -> Any:
        return jax.make_user_context(self._default)

    def get(self) -> T:
        """The value here."""
        return self._variable.get(self._default)

    def set(self, value: T) -> Callable[[], None]:
        """Change the value; return what puts the old one back."""
        token = self._variable.set(value)
        self._follow()

        def undo() -> None:
            self._variable.reset(token)
            self._follow()

        return undo

    def _follow(self) -> None:
        # Entered and never left: tasks may leave in another order than they entered.
        self._in_cache_keys(self.get()).__enter__()
