"""What the decorators of the installed JAX have, by name.

A newer JAX has `def*` methods, options and attributes that `custom_function` has no
code for. jaxfn looks them up in JAX itself, and repeats the calls on JAX's own
decorator. So the methods of the next version work too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

custom_vmap = jax.custom_batching.custom_vmap

DECORATORS: tuple[Any, ...] = (jax.custom_vjp, jax.custom_jvp, custom_vmap)

KNOWN = ("defvjp", "defjvp", "defjvps", "def_vmap")
"""The methods that custom_function has itself, and can combine."""

_KNOWN_OPTIONS = ("symbolic_zeros", "optimize_remat")


class Call(NamedTuple):
    """A call of a `def*` method, which can be repeated on JAX's decorator.

    Attributes:
        method: Name of the method.
        args: Its positional arguments.
        options: Its keyword arguments.
    """

    method: str
    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def decorator(self) -> Any:
        """JAX's decorator whose method it is."""
        return decorator_of(self.method)

    @property
    def is_foreign(self) -> bool:
        """Say if only JAX knows its method, or one of its options."""
        return self.method not in KNOWN or bool(self._foreign_options())

    def _foreign_options(self) -> list[str]:
        """Name the options that are switched on and that only JAX knows."""
        given = [key for key, value in self.options.items() if value]
        return [key for key in given if key not in _KNOWN_OPTIONS]

    def __str__(self) -> str:
        own = [] if self.method not in KNOWN else self._foreign_options()
        options = ", ".join([f"{key}={self.options[key]}" for key in own])
        return f"{self.method}({options})" if options else self.method


def decorator_of(method: str) -> Any:
    """Find the decorator of JAX that has this `def*` method, or None."""
    if not method.startswith("def"):
        return None
    return next((d for d in DECORATORS if callable(getattr(d, method, None))), None)


@functools.cache
def names(decorator: Any) -> frozenset[str]:
    """Name the public methods and attributes of what this decorator makes."""
    # Of an instance, since the decorators set some attributes (symbolic_zeros) in
    # __init__: the class does not have them.
    found = dir(decorator(lambda: None))
    return frozenset([name for name in found if not name.startswith("_")])


def decorated(
    decorator: Any,
    fun: Callable[..., Any],
    nondiff: Sequence[int],
    calls: Iterable[Call],
) -> Any:
    """Put JAX's decorator around `fun`, and make those calls that are its own.

    Only JAX knows what its method does to the decorator. So the calls are the user's,
    in their order.
    """
    options = {} if decorator is custom_vmap else {"nondiff_argnums": nondiff}
    f = decorator(fun, **options)
    for call in calls:
        if call.decorator is decorator:
            getattr(f, call.method)(*call.args, **call.options)
    return f


def attribute(
    name: str, fun: Callable[..., Any], nondiff: Sequence[int], calls: Sequence[Call]
) -> Any:
    """Return the value that JAX's decorators give this attribute after these calls.

    If several have one of that name, the first whose rule is defined counts.

    Raises:
        AttributeError: none has it.
    """
    having = [d for d in DECORATORS if name in names(d)]
    if not having:
        raise AttributeError(name)
    used = [d for d in having if any(call.decorator is d for call in calls)]
    return getattr(decorated([*used, *having][0], fun, nondiff, calls), name)
