"""A setup_context that can't be traced, and runs again for each derivative."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxfn._base import compat, errors
from jaxfn._engine import Perturbed, are_other_values
from jaxfn._methods.styles import Saved


class Again:
    """Refuses a run that saves something else than the first, where values are known.

    The derivative of the outputs would be that of another run: of another random mask,
    say.

    Args:
        rule: what messages call setup_context.
    """

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._first: dict[Hashable, list[Any]] = {}

    def check(self, saved: Saved, leaves: Sequence[Any], perturbed: Perturbed) -> None:
        """Compare what a run saved with what the first one did."""
        # With other arguments differentiated it may save something else.
        key = perturbed if saved.needs_read else None
        found = list(_values(saved, leaves))
        first = self._first.setdefault(key, found)
        if first is found:  # nothing to compare it with
            return
        for x, y in zip(first, found, strict=False):
            if x is not None and y is not None and are_other_values(x, y):
                raise errors.RuleValueError(
                    f"`{self._rule}` saved something else when it ran again for a "
                    f"derivative, as it does where it can't be traced: expected {x}, "
                    f"got {y}. Make it a function of the inputs and outputs: pass "
                    "random numbers, or a PRNG key, to apply; or write it so that it "
                    "can be traced, as under jax.jit."
                )


def _values(saved: Saved, leaves: Sequence[Any]) -> Iterator[Any]:
    """Yield the arrays that a run saved; None for what has no value that is known."""
    layout = saved.layout
    for put in (
        *layout.for_backward,
        *layout.for_forward,
        *layout.attributes.values(),
    ):
        for x in jax.tree.leaves(put(leaves)):
            x = compat.known_value(x)
            known = isinstance(x, (jax.Array, np.ndarray)) and not compat.is_tracer(x)
            yield x if known and x.dtype != object else None
