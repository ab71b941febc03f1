"""JAX's check for leaked tracers, in a process that holds much else."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def small_heap() -> Iterator[None]:
    """What was there before is not searched by the garbage collector.

    JAX collects garbage at the end of every trace that it checks for leaks, and what
    was there before has no part in them.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def checking_leaks() -> Iterator[None]:
    """`jax.checking_leaks`, on a small heap."""
    with small_heap(), jax.checking_leaks():
        yield
