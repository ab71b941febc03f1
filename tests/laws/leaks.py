"""JAX's check for leaked tracers, in a process that holds much else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from jaxfn._check.checks.programs import small_heap


@contextlib.contextmanager
def checking_leaks() -> Iterator[None]:
    """`jax.checking_leaks`, on a small heap."""
    with small_heap(), jax.checking_leaks():
        yield
