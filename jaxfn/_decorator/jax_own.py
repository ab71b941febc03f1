"""The methods, options and attributes of the installed JAX's decorators, by name.

A newer JAX may have some that `custom_function` has no code for. jaxfn looks them up in
JAX itself, and repeats the calls on JAX's own decorator (`JaxRules.by_jax`). So methods
of future versions work too.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax

custom_vmap = jax.custom_batching.custom_vmap

DECORATORS: tuple[Any, ...] = (jax.custom_vjp, jax.custom_jvp, custom_vmap)

KNOWN = ("defvjp", "defjvp", "defjvps", "def_vmap")
"""The methods that custom_function defines itself, and can combine."""

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
        """Whether only JAX knows its method, or one of its options."""
        return self.method not in KNOWN or bool(self._foreign_options())

    def _foreign_options(self) -> list[str]:
        """Return the names of active options that only JAX knows."""
        used = [key for key, value in self.options.items() if value]
        return [key for key in used if key not in _KNOWN_OPTIONS]

    def __str__(self) -> str:
        own = [] if self.method not in KNOWN else self._foreign_options()
        options = ", ".join([f"{key}={self.options[key]}" for key in own])
        return f"{self.method}({options})" if options else self.method


def decorator_of(method: str) -> Any:
    """Return JAX's decorator that has this `def*` method, or None."""
    if not method.startswith("def"):
        return None
    return next((d for d in DECORATORS if callable(getattr(d, method, None))), None)


@functools.cache
def names(decorator: Any) -> frozenset[str]:
    """Return the names of public attributes of a function with this decorator."""
    # The decorators set some attributes (symbolic_zeros) in __init__, so the class does
    # not have them.
    found = dir(decorator(lambda: None))
    return frozenset([name for name in found if not name.startswith("_")])
