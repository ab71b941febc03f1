"""The translation as a module, and as a port that `compare` can call."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._check import CheckResult, compare_arrays, eps_of, worst
from jaxfn.torch._base import BACKWARD, FORWARD, draws_from, from_numpy, to_jax, torch
from jaxfn.torch._compare import CompareReport, OriginalError, compare
from jaxfn.torch._function import from_torch

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
    source: str,
    cls: Any,
    args: Sequence[Any],
    progress: Progress | None = None,
    *,
    draws: Collection[str] = (),
) -> CompareReport:
    """Compare a translation with the class that it is of.

    Args:
        source: the translation.
        cls: the class.
        args: what both are called on, as PyTorch has it.
        progress: called before each row.
        draws: the rules that draw random numbers; then it takes a key.

    Raises:
        ValueError: PyTorch's class raises on these arguments.
    """
    port = _port(source, cls)
    given = functools.partial(port, jax.random.key(0)) if draws else port
    functools.update_wrapper(given, port)
    try:
        report = compare(given, cls, *args, progress=progress)
    except OriginalError as error:
        raise ValueError(str(error)) from error
    if not draws or report.failures:
        return report
    arrays = [to_jax(x) if isinstance(x, torch.Tensor) else x for x in args]
    drawing = _port(source, cls, jax=WithTheseKeys(draws))
    return with_same_draws(report, drawing, cls, arrays)


def _port(source: str, cls: Any, **names: Any) -> Callable[..., Any]:
    """The translated class as a function, of arguments as the original has them.

    Args:
        source: the translation.
        cls: the original.
        names: what its names are to mean.
    """

    @functools.cache
    def module() -> Any:
        found = load(source)  # at the first call: a row says that it can't be
        vars(found).update(names)
        return found

    def port(*args: Any) -> Any:
        given = [_as_jax(x, module()) for x in args]
        return getattr(module(), cls.__name__).apply(*given)

    port.__qualname__ = cls.__name__
    return port


def is_user_object(value: Any) -> bool:
    """Is it one of a class of the user's that can be called, and holds only values?

    A module is none, nor is what holds other objects, which may compute as well.
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
    """The same object, of a class that is another version of its own."""
    made = object.__new__(cls)
    for name, value in vars(x).items():
        object.__setattr__(made, name, converted(value))
    return made


def _array(x: Any) -> Any:
    return to_jax(x) if isinstance(x, torch.Tensor) else x


def _as_jax(x: Any, module: Any) -> Any:
    """What the translation has in place of an object of the original's file."""
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


_SEED = 0


class _Key:
    """A key from which others were split off: for which rule, and how many."""

    def __init__(self, key: Any, rule: int, n: int) -> None:
        self.key, self.rule, self.n = key, rule, n


class _Random:
    """`jax.random`, with the keys that `from_torch` gives to the draws.

    Args:
        rules: the rules that draw. A key as it was given, or split off for backward, is
            an array, which ctx can save; of which rule it is, its shape tells.
    """

    def __init__(self, rules: Collection[str]) -> None:
        self._both = len(rules) > 1
        self._first = FORWARD if "forward" in rules else BACKWARD

    def _as_key(self, key: Any) -> _Key:
        if isinstance(key, _Key):
            return key
        if key.shape:
            return _Key(key[0], BACKWARD, 0)
        return _Key(key, self._first, 0)

    def split(self, key: Any) -> tuple[_Key, Any]:
        """The key for what follows, and that of the next draw, or of backward."""
        old = self._as_key(key)
        if self._both and not isinstance(key, _Key) and old.rule == FORWARD:
            return old, key[None]
        return _Key(old.key, old.rule, old.n + 1), old

    def __getattr__(self, name: str) -> Any:
        function = getattr(jax.random, name)

        def draw(key: Any, *args: Any, **kwargs: Any) -> Any:
            old = self._as_key(key)
            number = next(itertools.islice(draws_from(old.rule), old.n, None))
            folded = jax.random.fold_in(old.key, number)
            # Of dtypes of few digits from_torch draws, as torch does, with more.
            if len(args) > 1 and args[1] in (jnp.float16, jnp.bfloat16):
                wide = (args[0], jnp.float32, *args[2:])
                return function(folded, *wide, **kwargs).astype(args[1])
            return function(folded, *args, **kwargs)

        return draw


class WithTheseKeys:
    """The module `jax` for a translation.

    Args:
        rules: the rules that draw.
    """

    def __init__(self, rules: Collection[str]) -> None:
        self.random = _Random(rules)

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)


def with_same_draws(
    report: CompareReport, port: Callable[..., Any], cls: Any, args: Sequence[Any]
) -> CompareReport:
    """The report, with rows about values and gradients.

    Args:
        report: of what could be compared with PyTorch.
        port: the translation with these keys, as a function of a key and of `args`.
        cls: the original.
        args: what both are called on.
    """
    at = [i for i, x in enumerate(args) if _is_float(x)]
    xs = [args[i] for i in at]

    def value(f: Callable[..., Any]) -> Callable[..., list[Any]]:
        def run(*xs: Any) -> list[Any]:
            given = list(args)
            for i, x in zip(at, xs, strict=True):
                given[i] = x
            return jax.tree.leaves(f(jax.random.key(_SEED), *given))

        return run

    def gradients(f: Callable[..., Any]) -> Callable[..., list[Any]]:
        def run(*xs: Any) -> list[Any]:
            outs, back = jax.vjp(value(f), *xs)
            generator = np.random.default_rng(_SEED)
            return list(back([_cotangent(o, generator) for o in outs]))

        return run

    original = from_torch(cls, random=True).apply
    found = []
    for what, rule, of in (
        ("value", "forward", value),
        ("gradients", "backward", gradients),
    ):
        name = f"{what} with the same draws"
        found.append(_row(name, rule, of(port), of(original), xs))
        if found[-1].status == "ok":
            name = f"{name}, under jit"
            found.append(_row(name, rule, jax.jit(of(port)), of(original), xs))
    told = all(row.status != "skipped" for row in found)
    every = (*report.results, *found)
    refused = "" if told else report.refused
    return dataclasses.replace(report, results=every, refused=refused)


def _row(
    name: str, rule: str, ours: Callable[..., Any], theirs: Callable[..., Any], xs: Any
) -> CheckResult:
    try:
        expected = theirs(*xs)
    except Exception as error:  # noqa: BLE001  (what from_torch can't run)
        return CheckResult(name, rule, "skipped", message=f"from_torch: {error}")
    try:
        got = ours(*xs)
    except Exception as error:  # noqa: BLE001  (whatever the translation raises)
        text = f"the port raises: {type(error).__name__}: {error}"
        return CheckResult(name, rule, "FAIL", message=text)
    if len(got) != len(expected):
        text = f"expected {len(expected)} arrays, got {len(got)}"
        return CheckResult(name, rule, "FAIL", message=text)
    what = "output" if rule == "forward" else "gradient"
    outcome = worst(
        [
            compare_arrays(a, b, f"{what} {i}", eps_of(xs) ** 0.5)
            for i, (a, b) in enumerate(zip(got, expected, strict=True))
        ]
    )
    status, text = ("ok", outcome.note) if outcome.ok else ("FAIL", outcome.where)
    return CheckResult(name, rule, status, outcome.error, outcome.tolerance, text)


def _is_float(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact)


def _cotangent(out: Any, generator: np.random.Generator) -> Any:
    if not jnp.issubdtype(out.dtype, jnp.inexact):
        return np.zeros(out.shape, jax.dtypes.float0)
    return jnp.asarray(generator.standard_normal(out.shape), out.dtype)
