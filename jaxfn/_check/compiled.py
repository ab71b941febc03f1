"""Programs that are compiled once, and quickly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxfn._base import compat

_QUICKLY = {"xla_backend_optimization_level": 0}
"""A program of check runs a few times: compiling it well takes longer than it gains.

It halves the time, on a CPU; other devices don't know the option.
"""


def jit(f: Callable[..., Any]) -> Callable[..., Any]:
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
                return self.compiled(*args)
            except Exception:  # noqa: BLE001  (`f` raises what is to be seen)
                self.is_traced = False
        return self._f(*args)

    def is_batched_by_jax(self, *args: Any) -> bool:
        """Is there no batching rule of a user in it, as far as can be told?"""
        try:
            return compat.is_batched_by_jax(self.compiled.trace(*args).jaxpr)
        except Exception:  # noqa: BLE001  (it can't be told)
            return False
