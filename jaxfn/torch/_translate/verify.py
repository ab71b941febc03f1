"""The file of a translation, and the translation as a port that `compare` can call."""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn.torch._base import from_numpy, to_jax, torch
from jaxfn.torch._compare import CompareReport, OriginalError, compare

Progress = Callable[[int, int, str], None]


def as_torch(args: Sequence[Any]) -> list[Any]:
    """Return the arguments, with tensors in place of arrays."""
    return [
        from_numpy(np.asarray(x)) if isinstance(x, (jax.Array, np.ndarray)) else x
        for x in args
    ]


def load(source: str, name: str = "translated") -> Any:
    """Return the translation as a module."""
    module, before = types.ModuleType(name), sys.modules.get(name)
    sys.modules[name] = module  # dataclasses look up their module when they are defined
    try:
        exec(compile(source, f"<{name}>", "exec"), vars(module))
    finally:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
    return module


def compared(
    source: str, cls: Any, args: Sequence[Any], progress: Progress | None = None
) -> CompareReport:
    """Compare a translation with the class that it was made from.

    Raises:
        ValueError: PyTorch's class raises on these arguments.
    """
    try:
        return compare(_port(source, cls), cls, *args, progress=progress)
    except OriginalError as error:
        raise ValueError(str(error)) from error


def _port(source: str, cls: Any) -> Callable[..., Any]:
    """Return the translated class as a function of the original's arguments."""

    @functools.cache
    def module() -> Any:
        return load(source)  # at the first call: a row reports its errors

    def port(*args: Any) -> Any:
        given = [_as_jax(x, module()) for x in args]
        return getattr(module(), cls.__name__).apply(*given)

    port.__qualname__ = cls.__name__
    return port


def is_user_object(value: Any) -> bool:
    """Return whether it is callable, of a user's class, and has only values.

    A module is none, nor is an object that has other objects: they may compute too.
    """
    cls = type(value)
    package = cls.__module__.split(".")[0]
    known = package in ("builtins", "torch", "numpy", "scipy", "functools", "jax")
    called = inspect.isfunction(inspect.getattr_static(cls, "__call__", None))
    if known or not called or isinstance(value, torch.nn.Module):
        return False
    return hasattr(value, "__dict__") and all(map(_is_value, vars(value).values()))


def _is_value(x: Any) -> bool:
    if isinstance(x, (tuple, list)):
        return all(map(_is_value, x))
    return x is None or isinstance(x, (bool, int, float, complex, str, torch.Tensor))


def of_class(
    x: Any, cls: type, converted: Callable[[Any], Any] = lambda value: value
) -> Any:
    """Return the same object, as an instance of another version of its class."""
    made = object.__new__(cls)
    for name, value in vars(x).items():
        object.__setattr__(made, name, converted(value))
    return made


def _array(x: Any) -> Any:
    return to_jax(x) if isinstance(x, torch.Tensor) else x


def _as_jax(x: Any, module: Any) -> Any:
    """Return the translation's version of an argument."""
    if hasattr(x, "__code__"):
        return getattr(module, x.__name__, x)
    if is_user_object(x) and hasattr(module, type(x).__name__):
        return of_class(x, getattr(module, type(x).__name__), _array)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        made = getattr(module, type(x).__name__, type(x))
        return made(*[_as_jax(y, module) for y in x])
    if isinstance(x, torch.Size):
        return tuple(x)
    if type(x) in (tuple, list):
        return type(x)([_as_jax(y, module) for y in x])
    if isinstance(x, enum.Enum) and hasattr(module, type(x).__name__):
        return getattr(module, type(x).__name__)[x.name]
    if isinstance(x, torch.dtype):
        return jnp.dtype(str(x).removeprefix("torch."))
    return x
