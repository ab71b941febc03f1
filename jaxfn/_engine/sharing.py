"""Is the derivative of an output the same for all examples of a vmap?

A value that is not batched is the same for all of them. Its derivative need not be: the
rules may use something that is batched, or give a batched argument a cotangent. Here a
derivative is traced, and then its jaxpr tells.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jaxfn._base import compat
from jaxfn._engine import linearity
from jaxfn._engine.rules import Arrays


class Map(NamedTuple):
    """A derivative of a Function.

    Attributes:
        fun: `fun(outs, *arrays)`, where the Function gave these outs. It is linear in
            the arrays, and returns None for what is zero.
        examples: of the arrays.
        backwards: does it map cotangents of outputs to those of inputs?
        by_jax: is it the bwd of a custom_vjp, of which JAX sums what is batched?
    """

    fun: Callable[..., Sequence[Any]]
    examples: Arrays
    backwards: bool
    by_jax: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Traced:
    """A derivative, traced.

    Attributes:
        map: the derivative.
        jaxpr: of it; its first inputs are the outs.
        present: indices of its results that are not zero.
    """

    map: Map
    jaxpr: Any
    present: list[int]

    @classmethod
    def trace(cls, derivative: Map, outs: Arrays) -> Traced:
        """Trace a derivative, taken where the Function gave these outs."""
        present: list[int] = []

        def flat(outs: Arrays, args: Arrays) -> list[Any]:
            found = derivative.fun(outs, *args)
            present[:] = [i for i, x in enumerate(found) if x is not None]
            return [found[i] for i in present]

        jaxpr = jax.make_jaxpr(flat)(list(outs), list(derivative.examples))
        return cls(derivative, jaxpr, present)

    def shared(
        self,
        ks: set[int],
        batched: frozenset[int] | set[int],
        is_batched: Callable[[Any], bool],
        outs: Sequence[bool],
    ) -> set[int]:
        """Find those of the outputs that it treats alike in all examples of a vmap.

        Args:
            ks: indices of outputs that are not batched.
            batched: indices of the inputs that are.
            is_batched: is this value, which the derivative uses?
            outs: is what the Function gave, where the derivative uses it?
        """
        flags = [*map(is_batched, compat.constants(self.jaxpr)), *outs]
        uses = linearity.uses(self.jaxpr, flags)
        found = dict(zip(self.present, uses, strict=True))
        if self.map.backwards:
            strict = self.map.by_jax and compat.REFUSES_SHARED
            return _shared_backwards(ks, batched, found, strict=strict)
        # Forwards, t -> J t: tangent k is shared if it depends on no tangent of a
        # batched input, and all its coefficients are shared.
        return ks - {k for k, (used, mixed) in found.items() if used & batched or mixed}


def _shared_backwards(
    ks: set[int],
    batched: frozenset[int] | set[int],
    results: dict[int, tuple[set[int], set[int]]],
    *,
    strict: bool,
) -> set[int]:
    """Find those of the outputs that a map ct -> J^T ct treats alike in all examples.

    Args:
        ks: indices of outputs that are not batched.
        batched: indices of the inputs that are.
        results: for each input, what `linearity.uses` says of its cotangent.
        strict: does JAX refuse to sum where any output is shared, whatever the sum?
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
            for k in (shared if strict else used & shared)
        }
        if not lost:
            return shared
        shared -= lost
