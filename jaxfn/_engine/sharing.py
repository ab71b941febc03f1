"""Is the derivative of an output the same for all examples of a vmap?

A value that is not batched is the same for all of them. Its derivative need not be: the
rules may use something that is batched, or give a batched argument a cotangent. Here a
derivative is traced, and then its jaxpr tells.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn._base import compat
from jaxfn._engine import linearity
from jaxfn._engine.rules import Arrays

Map = tuple[Callable[..., Sequence[Any]], Arrays, bool]
"""A derivative: a linear function of arrays (None for what is zero), examples of its
arguments, and whether it goes backwards."""


@dataclasses.dataclass(frozen=True, slots=True)
class Traced:
    """A derivative, traced.

    Attributes:
        jaxpr: of it.
        present: indices of its results that are not zero.
        backwards: does it map cotangents of outputs to those of inputs?
    """

    jaxpr: Any
    present: list[int]
    backwards: bool

    @classmethod
    def trace(
        cls, fun: Callable[..., Sequence[Any]], examples: Arrays, backwards: bool
    ) -> Traced:
        """Trace a `Map`."""
        present: list[int] = []

        def flat(*args: Any) -> list[Any]:
            found = fun(*args)
            present[:] = [i for i, x in enumerate(found) if x is not None]
            return [found[i] for i in present]

        return cls(jax.make_jaxpr(flat)(*examples), present, backwards)

    def shared(self, ks: set[int], batched: set[int], axis: int) -> set[int]:
        """Find those of the outputs that it treats alike in all examples of a vmap.

        Args:
            ks: indices of outputs that are not batched.
            batched: indices of the inputs that are.
            axis: the vmap, as `compat.batch_axes` names it.
        """
        flags = [axis in compat.batch_axes(x) for x in compat.constants(self.jaxpr)]
        uses = linearity.uses(self.jaxpr, flags)
        found = dict(zip(self.present, uses, strict=True))
        if self.backwards:
            return _shared_backwards(ks, batched, found)
        # Forwards, t -> J t: tangent k is shared if it depends on no tangent of a
        # batched input, and all its coefficients are shared.
        return ks - {k for k, (used, mixed) in found.items() if used & batched or mixed}


def _shared_backwards(
    ks: set[int], batched: set[int], results: dict[int, tuple[set[int], set[int]]]
) -> set[int]:
    """Find those of the outputs that a map ct -> J^T ct treats alike in all examples.

    Args:
        ks: indices of outputs that are not batched.
        batched: indices of the inputs that are.
        results: for each input, what `linearity.uses` says of its cotangent.
    """
    # A result belongs to an input, and an argument to an output. In the cotangent of a
    # batched input each example needs its own ct. In that of a shared input JAX sums
    # over the examples:  sum(c ct_i) = c sum(ct_i),  but only if the coefficient c is
    # shared.
    shared = set(ks)
    for i, (used, mixed) in results.items():
        shared -= used if i in batched else mixed
    # JAX sums what is batched over the examples. The cotangent of a shared output is a
    # sum already: it must not be added to anything that is batched.
    while True:
        lost = {
            k
            for i, (used, _) in results.items()
            if i not in batched and used - shared
            for k in used & shared
        }
        if not lost:
            return shared
        shared -= lost
