"""The numbers and the keys of random draws.

Torch draws from a generator with a state; JAX draws from a key. So each draw of a rule
gets a number, and its key is the key of the call, folded with that number. The number
comes from the state of the generator. A rule that saves the state and restores it
therefore draws the same numbers again.
"""

from __future__ import annotations

import contextlib
import functools
import random
import zlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from jaxfn.torch._base.refusal import TorchRefusal
from jaxfn.torch._base.torch_module import torch

FORWARD, BACKWARD, JVP, VMAP = 1, 2, 3, 4
"""The seed of the generator in each rule."""

KEYS = ("key", "prng_key", "random_key")
"""Names of the key that forward takes before the arguments of the original."""


def key_name(taken: Collection[str]) -> str:
    """Return the first of these names that is free."""
    return next((name for name in KEYS if name not in taken), "_key")


def next_draw(generator: Any) -> int:
    """Return the number of a draw from the generator's state, and advance it."""
    state = zlib.crc32(bytes(generator.get_state().tolist())) & 0x7FFFFFFF
    generator.manual_seed(state)
    return state


@contextlib.contextmanager
def draws_by_torch() -> Iterator[None]:
    """Refuse draws from the global generators of Python and NumPy while this lasts."""
    before = _states()
    yield
    if _states() != before:
        raise TorchRefusal(
            operation="a draw by Python's random or numpy.random",
            reason="a trace would keep its number for all calls, and each rule of a "
            "call would draw another one. (Or another thread drew meanwhile.)",
            way_out="Draw with torch, and pass random=True to from_torch. Or draw "
            "before the call, and pass the number as an argument.",
        )


def _states() -> Any:
    kind, state, *rest = np.random.get_state()
    return random.getstate(), kind, bytes(state), rest


@functools.cache
def has_draws(target: Any) -> bool:
    """Return whether this operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
