"""Programs that are compiled once, and quickly; or evaluated, where that is quicker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxfn._base import compat

_QUICKLY = {"xla_backend_optimization_level": 0}
"""A program of check runs a few times: compiling it well takes longer than it gains.

It halves the time, on a CPU; other devices don't know the option.
"""

MANY = 300
ALIKE = 12
"""So many operations, of which so many are alike, are evaluated one by one.

On a CPU to compile an operation of its own takes about 25 ms, and one among many 2 ms.
"""


def jit(f: Callable[..., Any]) -> Any:
    on_cpu = jax.default_backend() == "cpu"
    return jax.jit(f, compiler_options=_QUICKLY if on_cpu else None)


class Program:
    """`f`, compiled; or as it is, where it can't be traced."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self._f, self.compiled = f, jit(f)
        self.is_traced = True

    def __call__(self, *args: Any) -> Any:
        if self.is_traced:
            try:
                return self._traced(*args)
            except Exception:  # noqa: BLE001  (`f` raises what is to be seen)
                self.is_traced = False
        return self._f(*args)

    def _traced(self, *args: Any) -> Any:
        return self.compiled(*args)

    def jaxpr(self, *args: Any) -> Any:
        return self.compiled.trace(*args).jaxpr


class Once(Program):
    """A program that runs once: a long one of few operations is not compiled."""

    def _traced(self, *args: Any) -> Any:
        traced = self.compiled.trace(*args)
        if not _is_repetitive(traced.jaxpr):
            return self.compiled(*args)
        outs = compat.evaluate(traced.jaxpr, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(traced.out_info), outs)


def _is_repetitive(jaxpr: Any) -> bool:
    eqns = compat.open_jaxpr(jaxpr)[0].eqns
    if len(eqns) < MANY:
        return False
    kinds = {(eqn.primitive, *map(_type, eqn.invars)) for eqn in eqns}
    return len(eqns) > ALIKE * len(kinds)


def _type(x: Any) -> str:
    return str(x.aval)
