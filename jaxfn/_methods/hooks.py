"""The saved-tensor hooks that are active."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import MethodType
from typing import Any

from jaxfn._base import Scoped


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Hooks:
    """A pair of saved-tensor hooks.

    Two pairs of the same functions are equal: what was traced under the one serves the
    other, also when a context is entered again and again.

    Attributes:
        pack: from an array that is saved to what is kept instead, any pytree.
        unpack: from what was kept to the array that backward finds.
    """

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hooks) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        # A method is a new object at each access, so it is known by what it is made of.
        # Any other callable is known by identity: it may have an == of its own that
        # makes two different hooks equal, or no hash.
        return tuple(
            (id(f.__self__), id(f.__func__)) if isinstance(f, MethodType) else id(f)
            for f in (self.pack, self.unpack)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """The pairs that are active, and the message with which new ones are refused.

    Attributes:
        stack: the pairs, the innermost last.
        disabled: the message; None where hooks are allowed.
    """

    stack: tuple[Hooks, ...] = ()
    disabled: str | None = None


_state = Scoped("saved-tensor hooks", State())


def current() -> Hooks | None:
    """Return the innermost pair; None outside of all."""
    # Only this one packs, as in torch: an outer pair does not see what it made.
    stack = _state.get().stack
    return stack[-1] if stack else None


def push(hooks: Hooks) -> Callable[[], None]:
    """Make a pair the innermost; return what takes it off again.

    Raises:
        RuntimeError: hooks are disabled here, with the message given there.
    """
    state = _state.get()
    if state.disabled is not None:
        raise RuntimeError(state.disabled)
    _state.set(State((*state.stack, hooks), None))
    return lambda: _remove(hooks)


def _remove(hooks: Hooks) -> None:
    """Take a pair off; it need not be the innermost."""
    # Contexts that are held open by hand may be left in any order, so that the last
    # pair need not be the one that leaves.
    stack = list(_state.get().stack)
    if hooks in stack:
        del stack[len(stack) - 1 - stack[::-1].index(hooks)]
    _state.set(State(tuple(stack), None))


def disable(message: str) -> Callable[[], None]:
    """Refuse hooks from now on; return what allows them again.

    Raises:
        RuntimeError: hooks are active.
    """
    state = _state.get()
    if state.stack:
        raise RuntimeError(message)
    return _state.set(State((), message))
