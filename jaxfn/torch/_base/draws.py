"""The numbers and the keys of random draws.

Torch draws from a generator with a state; JAX draws from a key. So each draw of a rule
gets a number, and its key is the key of the call, folded with that number. The number
comes from the state of the generator. A rule that saves the state and restores it
therefore draws the same numbers again.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from typing import Any

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


def has_draws(target: Any) -> bool:
    """Return whether this operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
