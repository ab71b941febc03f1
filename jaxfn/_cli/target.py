"""The Function and the arguments that a command line names."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxfn._check import name_of
from jaxfn._core import short

_SPEC = re.compile(r"(bool|bf16|[fiuc]\d+)\[(\d*(?:,\d+)*)\](:.*)?")
_NEARLY = re.compile(r"\w+\s*\[|(bool|bf16|[fiuc]\d+)\s*[\](){}]")
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex"}


class UsageError(Exception):
    """A name or argument of the command line can't be found or understood."""


def load(target: str) -> Any:
    """Load the object of `file.py:Name` or `module:Name`; Name may have dots."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(
            f"{target!r} is no target: expected FILE_OR_MODULE:NAME, such as "
            "rules.py:Square or package.rules:Square."
        )
    found = module(place)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise UsageError(f"{place} has no {name}: {error}.") from error
    if not callable(found):
        raise UsageError(
            f"{target} is {short(found)}: expected a Function or another callable."
        )
    return found


def module(place: str) -> Any:
    """Import a module, by file or by name."""
    path = Path(place)
    if path.suffix != ".py":
        if "" not in sys.path:
            sys.path.insert(0, "")  # `python -m` has the current folder, a script not
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise UsageError(f"there is no module {place}: {error}.") from error
        except Exception as error:
            raise UsageError(_not_imported(place, error)) from error
    if not path.is_file():
        raise UsageError(f"there is no file {place}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, made)  # dataclasses look their module up
    sys.path.insert(0, str(path.parent.resolve()))  # as `python file.py` does
    try:
        spec.loader.exec_module(made)
    except Exception as error:
        if sys.modules.get(path.stem) is made:
            del sys.modules[path.stem]
        raise UsageError(_not_imported(place, error)) from error
    return made


def _not_imported(place: str, error: Exception) -> str:
    """Describe in one line an error of code while it is imported."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    inside = frame.filename.startswith("<") or isinstance(error, SyntaxError)
    at = "" if inside else f" ({frame.filename}:{frame.lineno})"
    text = " ".join(str(error).split())
    return f"{place} can't be imported: {type(error).__name__}: {text}{at}."


def argument(text: str, generator: np.random.Generator) -> Any:
    """Make a random array for `f32[3,4]`, else a Python value or a string.

    Words after a colon restrict the values: `i32[5]:0:10`, `f32[3]:positive:sorted`.
    """
    match = _SPEC.fullmatch(text.replace(" ", ""))
    if match is None:
        return _literal(text)
    name, sizes, restriction = match.groups()
    shape = tuple(int(n) for n in sizes.split(",") if n)
    dtype = _dtype(name)
    if restriction is not None:
        numbers = _restricted(text, dtype, restriction[1:].split(":"), shape, generator)
        return np.asarray(numbers, dtype)
    if name == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if name[0] in "iu":
        return np.asarray(generator.integers(0, 3, shape), dtype)
    numbers: Any = generator.standard_normal(shape)
    if name[0] == "c":
        numbers = numbers + 1j * generator.standard_normal(shape)
    return np.asarray(numbers, dtype)


def _restricted(text: str, dtype: Any, words: Any, shape: Any, random: Any) -> Any:
    """Draw numbers that are positive, in a range, probabilities, or sorted."""
    floats = jnp.issubdtype(dtype, jnp.floating)
    if words[-1] == "sorted" and shape:
        words = words[:-1] or (["-2", "2"] if floats else ["0", "3"])
        return np.sort(_restricted(text, dtype, words, shape, random))
    if words == ["positive"]:
        words = ["0.1", "2"] if floats else ["1", "4"]
    if words == ["probabilities"] and floats and shape:
        numbers = random.uniform(0.1, 1, shape)
        return numbers / numbers.sum(-1, keepdims=True)
    try:
        low, high = (float(word) if floats else int(word) for word in words)
        limits: Any = jnp.finfo(dtype) if floats else jnp.iinfo(dtype)
        if not limits.min <= low < high <= limits.max:
            raise ValueError
    except ValueError:
        raise UsageError(
            f"{text!r}: {dtype} can't be {':'.join(words)}. Known are :positive, "
            ":LOW:HIGH, :probabilities (floats, no scalar) and :sorted (no scalar, "
            "also after another), as in f32[3]:positive or i32[5]:0:10. A string that "
            "looks like one needs quotes inside."
        ) from None
    return (random.uniform if floats else random.integers)(low, high, shape)


def _dtype(name: str) -> Any:
    long = {"bf16": "bfloat16", "bool": "bool"}.get(name)
    try:
        return jnp.dtype(long or f"{_KINDS[name[0]]}{name[1:]}")
    except TypeError as error:
        raise UsageError(f"there is no dtype {name}.") from error


def _literal(text: str) -> Any:
    """Read a Python value; return other text as it is, unless it looks like a typo."""
    if _NEARLY.match(text):
        raise UsageError(
            f"{text!r} is no array type: expected one such as f32[3,4], bf16[], "
            "c64[2], i32[5], bool[3]. A string that looks like one needs quotes inside."
        )
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        if text[:1] in ("[", "(", "{"):
            raise UsageError(f"{text!r} is no Python literal: {error}.") from error
        if re.match(r"[A-Za-z_]\w*=", text):
            raise UsageError(
                f"{text!r} looks like a keyword argument: expected arguments by "
                "position. A string that looks so needs quotes inside."
            ) from error
        return text


def expect_fits(fun: Any, args: Sequence[Any]) -> None:
    """Refuse a wrong number of arguments, before `fun` is called."""
    call: Callable[..., Any] = getattr(fun, "apply", fun)
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return  # a builtin may have no signature
    try:
        signature.bind(*args)
    except TypeError as error:
        raise UsageError(
            f"`{name_of(fun)}` takes {signature}: got {len(args)} arguments, {error}."
        ) from error


def torch_functions(target: str, args: Sequence[Any]) -> list[Any]:
    """Return the named class, or all Functions that the file defines."""
    base = importlib.import_module("jaxfn.torch._base").torch.autograd.Function
    found = load(target) if ":" in target else module(target)
    if ":" in target:
        if isinstance(found, type) and issubclass(found, base):
            return [found]
        raise UsageError(f"{target} is no torch.autograd.Function: got {found!r}.")
    classes = [
        value
        for value in vars(found).values()
        if isinstance(value, type)
        and issubclass(value, base)
        and value.__module__ == found.__name__
    ]
    if not classes:
        raise UsageError(f"{target} defines no torch.autograd.Function.")
    if args and len(classes) > 1:
        names = ", ".join(cls.__name__ for cls in classes)
        raise UsageError(
            f"{target} defines {len(classes)} Functions ({names}): name the one that "
            f"the arguments are for, as in {target}:{classes[0].__name__}."
        )
    return classes
