"""Random draws of torch: what tells them apart, and the key that JAX takes for them.

Torch draws from a generator with a state. JAX draws from a key. So each draw of a rule
gets a number, and its key is the key of the call, folded with that number. The number
comes from the state of the generator, so a rule that saves the state and sets it again
draws the same numbers again.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from typing import Any

from jaxfn.torch._base.torch_module import torch

FORWARD, BACKWARD, JVP, VMAP = 1, 2, 3, 4
"""Where the generator begins in each rule."""

KEYS = ("key", "prng_key", "random_key")
"""What forward calls the key that it takes before the arguments of the original."""


def key_name(taken: Collection[str]) -> str:
    """The first of these names that is free."""
    return next((name for name in KEYS if name not in taken), "_key")


def next_draw(generator: Any) -> int:
    """The number of a draw, by the state of the generator, which goes on."""
    state = zlib.crc32(bytes(generator.get_state().tolist())) & 0x7FFFFFFF
    generator.manual_seed(state)
    return state


def draws_from(seed: int) -> Iterator[int]:
    """The numbers of the draws of a rule, one after the other."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield next_draw(generator)


def has_draws(target: Any) -> bool:
    """Does this operation draw random numbers?"""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
