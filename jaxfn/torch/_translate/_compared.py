"""The translation as a module, and as a port that `compare` can call."""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn.torch._compare import CompareReport, OriginalError, compare
from jaxfn.torch._dtypes import from_numpy
from jaxfn.torch._lib import torch

Progress = Callable[[int, int, str], None]


def as_torch(args: Sequence[Any]) -> list[Any]:
    """Arguments with tensors in place of arrays."""
    return [
        from_numpy(np.asarray(x)) if isinstance(x, (jax.Array, np.ndarray)) else x
        for x in args
    ]


def load(source: str, name: str = "translated") -> Any:
    """The translation as a module."""
    module, before = types.ModuleType(name), sys.modules.get(name)
    sys.modules[name] = module  # dataclasses look their module up while they are made
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
    """Compare a translation with the class that it is of.

    Raises:
        ValueError: PyTorch's class raises on these arguments.
    """
    try:
        return compare(_port(source, cls), cls, *args, progress=progress)
    except OriginalError as error:
        raise ValueError(str(error)) from error


def _port(source: str, cls: Any) -> Callable[..., Any]:
    """The translated class as a function, of arguments as the original has them."""

    @functools.cache
    def module() -> Any:
        return load(source)  # at the first call: a row says that it can't be

    def port(*args: Any) -> Any:
        given = [_as_jax(x, module()) for x in args]
        return getattr(module(), cls.__name__).apply(*given)

    port.__qualname__ = cls.__name__
    return port


def _as_jax(x: Any, module: Any) -> Any:
    """What the translation has in place of an object of the original's file."""
    if hasattr(x, "__code__"):
        return getattr(module, x.__name__, x)
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
