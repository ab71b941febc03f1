"""Programs that are compiled once and quickly, or evaluated if that is quicker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax

from jaxfn._check.jaxprs import count_equations
from jaxfn._core import internals

MANY = 300
ALIKE = 12
"""Size, and operations per type, from which a program is evaluated one by one.

On a CPU, a single operation takes about 25 ms to compile, one among many 2 ms.
"""


def jit(f: Callable[..., Any]) -> Any:
    """Compile quickly: a program that runs a few times gains little from more."""
    on_cpu = jax.default_backend() == "cpu"  # others don't know the options
    return jax.jit(f, compiler_options=internals.COMPILE_QUICKLY if on_cpu else None)


class Program:
    """A function, compiled if it can be traced."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self._f, self.compiled = f, jit(f)
        self.is_traced = True

    def __call__(self, *args: Any) -> Any:
        if self.is_traced:
            try:
                return self.compile_and_run(*args)
            except Exception:  # noqa: BLE001  (`f` raises the error again)
                self.is_traced = False
        return self._f(*args)

    def compile_and_run(self, *args: Any) -> Any:
        """Return the result; tracing, compiling or running may raise."""
        return self.compiled(*args)

    def jaxpr(self, *args: Any) -> Any:
        return self.compiled.trace(*args).jaxpr


class Once(Program):
    """A program that runs once; a long and repetitive one is not compiled."""

    def compile_and_run(self, *args: Any) -> Any:
        traced = self.compiled.trace(*args)
        if not _is_repetitive(traced.jaxpr):
            return self.compiled(*args)
        return _evaluated(traced, args)


Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""


MOST = 2000
"""Most equations of a joint program, because compile time grows faster than size."""


class Together:
    """Calls that are compiled as one program, or as few, and their results.

    A separate program takes about 25 ms longer to compile than a part of another.

    Args:
        calls: The calls, by name.
    """

    def __init__(self, calls: Mapping[Any, Call]) -> None:
        self._args = {key: args for key, (_, args) in calls.items()}
        self._found: dict[Any, Any] = {}
        group: dict[Any, Any] = {}
        size = 0
        for key, (f, args) in calls.items():
            part = jax.jit(f)
            # Leave out a call that raises. It raises again when called alone.
            with contextlib.suppress(Exception):
                traced = part.trace(*args)
                if _is_repetitive(traced.jaxpr):
                    self._found[key] = _evaluated(traced, args)
                    continue
                more = count_equations(traced.jaxpr)
                if size + more > MOST:
                    self._run(group)
                    group, size = {}, 0
                group[key] = part
                size += more
        self._run(group)

    def _run(self, group: Mapping[Any, Callable[..., Any]]) -> None:
        """Compile and run these calls; leave out those that raise."""
        parts, given = list(group.values()), [self._args[key] for key in group]

        def every(given: list[tuple[Any, ...]]) -> list[Any]:
            return [part(*args) for part, args in zip(parts, given, strict=True)]

        try:
            found = jit(every)(given)
            self._found.update(zip(group, found, strict=True))
        except Exception:  # noqa: BLE001  (one of them raises it again, called alone)
            half = len(group) // 2
            if half:
                keys = list(group)
                self._run({key: group[key] for key in keys[:half]})
                self._run({key: group[key] for key in keys[half:]})

    def __contains__(self, key: Any) -> bool:
        return key in self._found

    def __getitem__(self, key: Any) -> tuple[tuple[Any, ...], Any]:
        """Return the arguments and the result of a call."""
        return self._args[key], self._found[key]


def _evaluated(traced: Any, args: tuple[Any, ...]) -> Any:
    outs = internals.evaluate(traced.jaxpr, jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(traced.out_info), outs)


def _is_repetitive(jaxpr: Any) -> bool:
    eqns = internals.open_jaxpr(jaxpr)[0].eqns
    if len(eqns) < MANY:
        return False
    kinds = {(eqn.primitive, *map(_type, eqn.invars)) for eqn in eqns}
    return len(eqns) > ALIKE * len(kinds)


def _type(x: Any) -> str:
    return str(x.aval)
