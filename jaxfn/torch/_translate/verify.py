"""The translation as a module, and as a port that `compare` can call."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import itertools
import linecache
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfn._check import CheckResult, compare_arrays, eps_of, worst
from jaxfn.torch._base import FORWARD, draws_from, from_numpy, to_jax, torch
from jaxfn.torch._compare import CompareReport, OriginalError, compare
from jaxfn.torch._function import from_torch

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
    # Triton reads the text of its kernels.
    file = f"<{name} {hash(source)}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    try:
        exec(compile(source, file, "exec"), vars(module))
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
    keyed: bool = False,
) -> CompareReport:
    """Compare a translation with the class that it was made from.

    Raises:
        ValueError: PyTorch's class raises on these arguments.
    """
    port = _port(source, cls)
    given = functools.partial(port, jax.random.key(0)) if keyed else port
    functools.update_wrapper(given, port)
    try:
        report = compare(given, cls, *args, progress=progress)
    except OriginalError as error:
        raise ValueError(str(error)) from error
    if not keyed or report.failures:
        return report
    found = _with_same_draws(_port(source, cls, jax=_SameKeys()), cls, args)
    told = all(row.status != "skipped" for row in found)
    every = (*report.results, *found)
    return dataclasses.replace(
        report, results=every, refused="" if told else report.refused
    )


def _port(source: str, cls: Any, **names: Any) -> Callable[..., Any]:
    """Return the translated class as a function of the original's arguments."""

    @functools.cache
    def module() -> Any:
        found = load(source)  # at the first call: a row reports its errors
        vars(found).update(names)
        return found

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


# ---- the very same draws
#
# JAX can't draw PyTorch's random numbers. But `from_torch(cls, random=True)` runs the
# original in JAX, with a key for each draw, and a translation calls the same functions
# of `jax.random`. With the same keys, both draw the same numbers.


class _SameKeys:
    """A module like `jax`, whose `random` draws with the keys of `from_torch`.

    A key is a pair here: the key of the call, and the number of the next draw.
    """

    def __init__(self) -> None:
        self.random = self

    def split(self, key: Any) -> tuple[Any, Any]:
        key, n = key if isinstance(key, tuple) else (key, 0)
        return (key, n + 1), (key, n)

    def __getattr__(self, name: str) -> Any:
        function = getattr(jax.random, name, None)
        if function is None:
            return getattr(jax, name)

        def draw(key: Any, *args: Any, **kwargs: Any) -> Any:
            key, n = key if isinstance(key, tuple) else (key, 0)
            number = next(itertools.islice(draws_from(FORWARD), n, None))
            folded = jax.random.fold_in(key, number)
            # Like torch, from_torch draws half precision in float32.
            if len(args) > 1 and args[1] in (jnp.float16, jnp.bfloat16):
                wide = (args[0], jnp.float32, *args[2:])
                return function(folded, *wide, **kwargs).astype(args[1])
            return function(folded, *args, **kwargs)

        return draw


def _with_same_draws(
    port: Callable[..., Any], cls: Any, args: Sequence[Any]
) -> list[CheckResult]:
    """Return rows for values and gradients, with the same keys on both sides."""
    arrays = [_array(x) for x in args]
    floats = [isinstance(x, jax.Array) and _is_inexact(x) for x in arrays]
    xs = [x for x, is_float in zip(arrays, floats, strict=True) if is_float]

    def value(f: Callable[..., Any], *xs: Any) -> list[Any]:
        left = iter(xs)
        given = [next(left) if d else x for x, d in zip(arrays, floats, strict=True)]
        return jax.tree.leaves(f(jax.random.key(0), *given))

    def gradients(f: Callable[..., Any], *xs: Any) -> list[Any]:
        outs, back = jax.vjp(functools.partial(value, f), *xs)
        generator = np.random.default_rng(0)
        return list(back([_cotangent(o, generator) for o in outs]))

    original = from_torch(cls, random=True).apply
    found: list[CheckResult] = []
    for what, rule, of in (
        ("value", "forward", value),
        ("gradients", "backward", gradients),
    ):
        name, ours = f"{what} with the same draws", functools.partial(of, port)
        theirs = functools.partial(of, original)
        found.append(_row(name, rule, ours, theirs, xs))
        if found[-1].status == "ok":
            under_jit = jax.jit(ours)
            found.append(_row(f"{name}, under jit", rule, under_jit, theirs, xs))
    return found


def _row(
    name: str, rule: str, ours: Callable[..., Any], theirs: Callable[..., Any], xs: Any
) -> CheckResult:
    try:
        expected = theirs(*xs)
    except Exception as error:  # noqa: BLE001  (whatever from_torch raises)
        return CheckResult(name, rule, "skipped", message=f"from_torch: {error}")
    try:
        pairs = list(zip(ours(*xs), expected, strict=True))
    except Exception as error:  # noqa: BLE001  (whatever the translation raises)
        text = f"the port raises: {type(error).__name__}: {error}"
        return CheckResult(name, rule, "FAIL", message=text)
    what, accuracy = "output" if rule == "forward" else "gradient", eps_of(xs) ** 0.5
    each = [
        compare_arrays(a, b, f"{what} {i}", accuracy) for i, (a, b) in enumerate(pairs)
    ]
    outcome = worst(each)
    status, text = ("ok", outcome.note) if outcome.ok else ("FAIL", outcome.where)
    return CheckResult(name, rule, status, outcome.error, outcome.tolerance, text)


def _is_inexact(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _cotangent(out: Any, generator: np.random.Generator) -> Any:
    if not _is_inexact(out):
        return np.zeros(out.shape, jax.dtypes.float0)
    return jnp.asarray(generator.standard_normal(out.shape), out.dtype)
