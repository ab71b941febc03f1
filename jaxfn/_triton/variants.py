"""The configurations of a launch `kernel[grid](*args, **kwargs)`, without a GPU.

`triton.autotune` and `triton.heuristics` around a kernel fill in arguments. Each
configuration of an autotuner gives one binding of arguments to the kernel.
"""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxfn._triton import experimental


@dataclass(frozen=True, eq=False)
class Binding:
    """One configuration of a launch.

    Attributes:
        kernel: The `triton.JITFunction`.
        arguments: The value of each of its parameters, defaults included.
        options: Options for compiling: `num_warps` and others.
        grid: Number of programs along each axis.
        config: The `triton.Config` that it comes from, or None. Triton calls its
            `pre_hook` before the kernel, with all arguments.
    """

    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, Any]
    grid: tuple[int, int, int]
    config: Any = None

    @property
    def hook(self) -> Callable[[dict[str, Any]], Any] | None:
        """The function that Triton calls before the kernel, or None."""
        return None if self.config is None else self.config.pre_hook


def bindings(
    kernel: Any, args: Sequence[Any], kwargs: dict[str, Any], grid: Any
) -> list[Binding]:
    """Return the configurations of a launch, in the autotuner's order.

    Args:
        kernel: A kernel: functions with `triton.jit`, `triton.autotune` and
            `triton.heuristics`, in any nesting.
        args: Positional arguments.
        kwargs: Arguments by keyword, and options.
        grid: Number of programs along each axis, or a function of the arguments.

    Raises:
        KeyError: A keyword is neither a parameter nor an option, as in Triton.
        TypeError: An argument is missing, or `kernel` is no kernel.
        ValueError: The grid, or the autotuner, can't be used.
        NotImplementedError: The kernel has hooks that run around each launch.
    """
    return [
        _bound(fn, args, full, grid, config)
        for fn, full, config in _configurations(kernel, args, kwargs)
    ]


def _configurations(
    kernel: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[tuple[Any, dict[str, Any], Any]]:
    """Yield each kernel with the keywords that it gets, and its configuration."""
    if isinstance(kernel, experimental.name("Autotuner")):
        for config in _configs(kernel, args, kwargs):
            full = {**kwargs, **config.all_kwargs()}
            for fn, inner, _ in _configurations(kernel.fn, args, full):
                yield fn, inner, config
    elif isinstance(kernel, experimental.name("Heuristics")):
        full = dict(kwargs)
        for name, value in kernel.values.items():
            named = dict(zip(kernel.arg_names, args, strict=False))
            full[name] = value({**named, **full})
        yield from _configurations(kernel.fn, args, full)
    elif experimental.is_jit_function(kernel):
        yield kernel, dict(kwargs), None
    else:
        raise TypeError(_not_a_kernel(kernel))


def _not_a_kernel(kernel: Any) -> str:
    what = {
        "InterpretedFunction": "was made while TRITON_INTERPRET=1 was set, so it can't "
        "be compiled. Unset the variable: on a CPU jaxfn interprets kernels",
        "GluonJITFunction": "is written in Gluon. Write it in triton.language",
    }.get(type(kernel).__name__)
    if what is not None:
        return f"The kernel `{kernel.__name__}` {what}."
    return (
        "expected a kernel: a function with the decorator triton.jit, perhaps with "
        f"triton.autotune and triton.heuristics, got {kernel!r}."
    )


def _configs(tuner: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return the configurations that an autotuner would time."""
    name = experimental.name_of(tuner.base_fn)
    if experimental.has_own_hooks(tuner):
        raise NotImplementedError(
            f"The autotuner of `{name}` has a pre_hook or post_hook of its own, which "
            "runs around each timed launch. Leave it out, or give hooks to the "
            "configurations."
        )
    found = list(tuner.configs)
    if len(found) > 1:
        with experimental.LOCK:
            tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
            try:
                found = list(tuner.prune_configs(kwargs))
            finally:
                tuner.nargs = None
    twice = sorted({k for config in found for k in config.kwargs if k in kwargs})
    if twice:
        raise ValueError(
            f"Conflicting meta-parameters: {', '.join(twice)}. The configurations of "
            f"`{name}` set them; leave them out of the call."
        )
    if not all(_does_same(c.pre_hook, found[0].pre_hook) for c in found):
        raise NotImplementedError(
            f"The configurations of `{name}` have different pre_hooks. Give all of "
            "them the same."
        )
    return found


def _does_same(a: Any, b: Any) -> bool:
    """Return whether two functions are the same, or have the same code and values."""
    if a is b:
        return True
    if not (inspect.isfunction(a) and inspect.isfunction(b)):
        return False
    return a.__code__ is b.__code__ and all(
        _same(x, y) for x, y in itertools.zip_longest(_held(a), _held(b))
    )


def _held(function: Any) -> Iterator[Any]:
    """Yield the values that a function closes over, and its defaults."""
    yield from (cell.cell_contents for cell in function.__closure__ or ())
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _bound(
    kernel: Any, args: Sequence[Any], kwargs: dict[str, Any], grid: Any, config: Any
) -> Binding:
    name = experimental.name_of(kernel)
    own = {p.name for p in experimental.parameters(kernel)}
    if kernel.pre_run_hooks:
        raise NotImplementedError(
            f"The kernel `{name}` has hooks that run before each launch "
            "(add_pre_run_hook). Remove them, and do their work before the launch."
        )
    if changed := experimental.changed_globals(kernel):
        raise RuntimeError(
            f"Global variable {', '.join(changed)} has changed since `{name}` was "
            "compiled. Make it an argument of the kernel: constants are part of a "
            "compiled kernel."
        )
    known = experimental.option_names()
    for key in kwargs:
        if key not in own and key not in known:
            raise KeyError(f"Keyword argument {key} was specified but unrecognised")
    try:
        bound = kernel.signature.bind(
            *args, **{k: v for k, v in kwargs.items() if k in own}
        )
    except TypeError as error:
        raise TypeError(f"`{name}`: {error}") from None
    bound.apply_defaults()
    arguments = {k: _plain(v) for k, v in bound.arguments.items()}
    # A parameter that has the name of an option is both, as in Triton.
    options = {k: v for k, v in kwargs.items() if k in known}
    return Binding(kernel, arguments, options, _grid(name, grid, arguments), config)


def _plain(value: Any) -> Any:
    constexpr = experimental.language().constexpr
    return value.value if isinstance(value, constexpr) else value


def _grid(name: str, grid: Any, arguments: dict[str, Any]) -> tuple[int, int, int]:
    """Convert the user's grid to three numbers."""
    if callable(grid):
        grid = grid(dict(arguments))
    sizes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    try:
        numbers = [operator.index(_plain(x)) for x in sizes]
    except (TypeError, ValueError):
        numbers = []
    if not 1 <= len(numbers) <= 3 or min(numbers) < 0:
        raise ValueError(
            f"The grid of `{name}` must be one to three integers that are known before "
            f"the kernel runs, got {grid!r}. It can't depend on values of arrays."
        )
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def split(found: Sequence[Binding]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the arguments that all bindings share, and the others of each binding.

    Only constants may differ between bindings.
    """
    first = found[0].arguments
    shared = {
        k: v for k, v in first.items() if all(_same(b.arguments[k], v) for b in found)
    }
    return shared, [
        {k: v for k, v in b.arguments.items() if k not in shared} for b in found
    ]


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    plain = (bool, int, float, str)
    return isinstance(a, plain) and type(a) is type(b) and a == b
