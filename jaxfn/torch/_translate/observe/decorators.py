"""Decorators of packages, tried on a function that only notes what it gets."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from jaxfn.torch._base import torch
from jaxfn.torch._translate.source import Unit
from jaxfn.torch._translate.syntax import code
from jaxfn.torch._triton import running

_NUMBERS = {"int": 2, "float": 0.5, "bool": True, "str": "a"}
_DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.int32)


def hands_on(unit: Unit, decorator: Any, function: Any, name: str) -> bool:
    """Return whether a decorator hands on arguments and results as they are.

    It is called four times, as on a GPU, with tensors of several dtypes for all
    parameters that need a value.

    Args:
        unit: Unit in which the decorator stands.
        decorator: Its tree.
        function: What the decorators made of a function.
        name: Name of this function.
    """
    calls: list[Any] = []
    with contextlib.suppress(Exception), torch.no_grad(), running():
        inner = inspect.unwrap(function)
        if inner.__code__.co_name != name:
            return False  # what the decorator made does not lead to the function
        names = {**unit.source.namespace, **unit.closure}
        decorate = eval(code(decorator.decorator), names)
        noting = decorate(_noting(inner, calls))
        for number, dtype in enumerate(_DTYPES, 1):
            given = _arguments(inner, number, dtype)
            found = noting(*given)
            args, kwargs, result = calls[-1]
            handed = _is_same(given, list(args)) and not kwargs
            if len(calls) != number or not handed or not _is_same(found, result):
                return False
        return True
    return False


def _noting(function: Any, calls: list[Any]) -> Callable[..., Any]:
    """Return a function that is called like another one, and notes its calls."""

    def noting(*args: Any, **kwargs: Any) -> Any:
        result = torch.full((2, 5), float(len(calls)))
        calls.append((args, kwargs, result))
        return result

    functools.update_wrapper(noting, function)
    del noting.__wrapped__  # a package may have an entry for the function in a table
    noting.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return noting


def _arguments(function: Any, number: int, dtype: Any) -> list[Any]:
    """Return arguments for the parameters without a default."""
    found: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind = getattr(parameter.annotation, "__name__", parameter.annotation)
        if parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.KEYWORD_ONLY,
            parameter.VAR_KEYWORD,
        ):
            continue
        if name == "ctx":
            found.append(types.SimpleNamespace())
        elif kind in _NUMBERS:
            found.append(_NUMBERS[kind])
        else:
            found.append(torch.full((3, 7), 10 * number + len(found)).to(dtype))
    return found


def _is_same(x: Any, y: Any) -> bool:
    """Return whether it is the same object, or as good as: a contiguous copy."""
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        return x is y or (x.dtype == y.dtype and torch.equal(x, y))
    if isinstance(x, (tuple, list)) and isinstance(y, (tuple, list)):
        return len(x) == len(y) and all(map(_is_same, x, y))
    return x is y
