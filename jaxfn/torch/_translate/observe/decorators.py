"""Decorators of packages, tried on a function that only notes what it gets."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any

from jaxfn.torch._base import torch
from jaxfn.torch._translate.source import Unit
from jaxfn.torch._translate.syntax import code
from jaxfn.torch._triton import running

_NUMBERS = {"int": 2, "float": 0.5, "bool": True, "str": "a"}
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32)
_SHAPES = ((3, 7), (3,), (2, 3, 7), (1, 2, 3, 7))


def hands_on(unit: Unit, decorator: Any, function: Any, name: str) -> bool:
    """Return whether a decorator hands on arguments and results as they are.

    It is called as on a GPU, with tensors of several shapes and dtypes for all
    parameters that need a value. Calls that raise an error tell nothing.

    Args:
        unit: Unit in which the decorator stands.
        decorator: Its tree.
        function: What the decorators made of a function.
        name: Name of this function.
    """
    inner = inspect.unwrap(function)
    if getattr(getattr(inner, "__code__", None), "co_name", "") != name:
        return False  # what the decorator made does not lead to the function
    calls: list[Any] = []
    handed: list[bool] = []
    with contextlib.suppress(Exception), torch.no_grad(), running():
        names = {**unit.source.namespace, **unit.closure}
        noting = eval(code(decorator.decorator), names)(_noting(inner, calls))
        for number, (shape, dtype) in enumerate(itertools.product(_SHAPES, _DTYPES)):
            given = _arguments(inner, number, shape, dtype)
            if not any(isinstance(x, torch.Tensor) for x in given):
                return False
            calls.clear()
            with contextlib.suppress(Exception):
                found = noting(*given)
                handed.append(len(calls) == 1 and _is_same([*given, found], calls[0]))
    return bool(handed) and all(handed)


def _noting(function: Any, calls: list[Any]) -> Callable[..., Any]:
    """Return a function that is called like another one, and notes its calls."""
    numbers = itertools.count()

    def note(*args: Any, **kwargs: Any) -> Any:
        result = torch.full((2, 5), float(next(numbers)))
        calls.append([*args, *kwargs.values(), result])
        return result

    noting: Any = functools.wraps(function)(note)
    del noting.__wrapped__  # a package may have an entry for the function in a table
    noting.__signature__ = inspect.signature(function)
    return noting


def _arguments(
    function: Any, number: int, shape: tuple[int, ...], dtype: Any
) -> list[Any]:
    """Return arguments for the parameters without a default, and two for `*args`."""
    found: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind = getattr(parameter.annotation, "__name__", parameter.annotation)
        is_many = parameter.kind is parameter.VAR_POSITIONAL
        by_position = parameter.kind in (
            parameter.POSITIONAL_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
        )
        if not is_many and (
            not by_position or parameter.default is not parameter.empty
        ):
            continue
        if name == "ctx":
            found.append(types.SimpleNamespace())
        elif kind in _NUMBERS:
            found.append(_NUMBERS[kind])
        else:
            for _ in range(1 + is_many):
                found.append(torch.full(shape, 10 * number + len(found)).to(dtype))
    return found


def _is_same(x: Any, y: Any) -> bool:
    """Return whether it is the same object, or as good as: a contiguous copy."""
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        return x is y or (x.dtype == y.dtype and torch.equal(x, y))
    if isinstance(x, (tuple, list)) and isinstance(y, (tuple, list)):
        return len(x) == len(y) and all(map(_is_same, x, y))
    return x is y
