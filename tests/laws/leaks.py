"""JAX's check for leaked tracers, in a process that holds much else."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def checking_leaks() -> Iterator[None]:
    """`jax.checking_leaks`, which collects garbage at the end of every trace.

    What was there before has no part in it, so the collector need not search it.
    """
    gc.freeze()
    try:
        with jax.checking_leaks():
            yield
    finally:
        gc.unfreeze()
