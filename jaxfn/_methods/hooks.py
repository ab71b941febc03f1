"""The active saved-tensor hooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import MethodType
from typing import Any

from jaxfn._base import Scoped


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
class State:
    """The active pairs.

    Attributes:
        stack: The pairs, the innermost last.
        disabled: The message that refuses new pairs; None if they are allowed.
    """

    stack: tuple[Hooks, ...] = ()
    disabled: str | None = None


_state = Scoped("saved-tensor hooks", State())


def current() -> Hooks | None:
    """Return the innermost pair, or None. Only this pair packs, as in torch."""
    stack = _state.get().stack
    return stack[-1] if stack else None


def push(hooks: Hooks) -> Callable[[], None]:
    """Push a pair; return a function that removes it.

    Raises:
        RuntimeError: Hooks are disabled.
    """
    state = _state.get()
    if state.disabled is not None:
        raise RuntimeError(state.disabled)
    _state.set(State((*state.stack, hooks), None))
    return lambda: _remove(hooks)


def _remove(hooks: Hooks) -> None:
    # Contexts that were entered by hand may exit in any order.
    stack = list(_state.get().stack)
    if hooks in stack:
        del stack[len(stack) - 1 - stack[::-1].index(hooks)]
    _state.set(State(tuple(stack), None))


def disable(message: str) -> Callable[[], None]:
    """Refuse new hooks; return a function that allows them again.

    Raises:
        RuntimeError: Hooks are active.
    """
    state = _state.get()
    if state.stack:
        raise RuntimeError(message)
    return _state.set(State((), message))
