"""Is the derivative of an output the same for all examples of a vmap?

A value that is not batched is the same for all of them. Its derivative need not be: the
rules may use something that is batched, or give a batched argument a cotangent. Here a
derivative is traced, and then its jaxpr tells.

Some vmaps, and some outputs of the Function, are the bits of a number: the lowest bits
stand for the outputs, 1 << k for the k-th, and those above them for the vmaps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxfn._base import compat
from jaxfn._engine import linearity
from jaxfn._engine.rules import Arrays


class Map(NamedTuple):
    """A derivative of a Function.

    Attributes:
        fun: `fun(outs, *arrays)`, where the Function gave these outs. It is linear in
            the arrays, and returns None for what is zero.
        examples: of the arrays, or their types.
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
        uses: for each of its results that is not zero, what `linearity.uses` says.
    """

    map: Map
    uses: dict[int, dict[int, int]]

    @classmethod
    def trace(
        cls,
        derivative: Map,
        outs: Arrays,
        marks: Sequence[int],
        batches: Callable[[Any], int],
    ) -> Traced:
        """Trace a derivative.

        Args:
            derivative: the derivative.
            outs: of the Function, where it is taken.
            marks: for each of these, bits that say that a coefficient was made of it.
            batches: says for any other value by which vmaps it is batched.
        """
        present: list[int] = []
        n = len(outs)

        def flat(*values: Any) -> list[Any]:
            found = derivative.fun(list(values[:n]), *values[n:])
            present[:] = [i for i, x in enumerate(found) if x is not None]
            return [found[i] for i in present]

        jaxpr, closed_over = compat.trace_flat(flat, [*outs, *derivative.examples])
        own = [*map(batches, closed_over), *marks]
        uses = linearity.uses(jaxpr, own)
        return cls(derivative, dict(zip(present, uses, strict=True)))

    def coefficients(self) -> Iterator[tuple[int, int, int]]:
        """Yield an output, an input, and the bits of the coefficient between them."""
        for result, used in self.uses.items():
            for argument, bits in used.items():
                if self.map.backwards:
                    yield argument, result, bits
                else:
                    yield result, argument, bits


def shared(
    derivatives: Sequence[Traced], lacking: Sequence[int], inputs: Sequence[int]
) -> set[int]:
    """Find the outputs whose derivatives are the same for all examples.

    Args:
        derivatives: of the Function.
        lacking: for each output the vmaps that batch an input, but not this output; 0
            where the output counts as batched by all.
        inputs: for each input the vmaps that batch it.

    Returns:
        The indices of those that are shared by the examples of all vmaps they lack.
    """
    kept = {k: vmaps for k, vmaps in enumerate(lacking) if vmaps}
    while True:
        # An output that is not shared will be batched wherever anything is: so is what
        # was made of it, in all vmaps.
        lost = sum(1 << k for k in range(len(lacking)) if k not in kept)
        # A tangent, of t -> J t, is shared if it depends on no tangent of a batched
        # input, and all its coefficients are shared. In the cotangent of a batched
        # input, of ct -> J^T ct, each example needs its own ct. In that of a shared
        # input JAX sums over the examples:  sum(c ct_i) = c sum(ct_i),  but only if the
        # coefficient c is shared.
        differ = {
            k
            for derivative in derivatives
            for k, i, c in derivative.coefficients()
            if k in kept and (inputs[i] | c) & (kept[k] | lost)
        }
        left = {k: vmaps for k, vmaps in kept.items() if k not in differ}
        for derivative in derivatives:
            if derivative.map.backwards:
                differ |= _added_to_batched(derivative, left, inputs)
        if not differ:
            return set(kept)
        kept = {k: vmaps for k, vmaps in kept.items() if k not in differ}


def _added_to_batched(
    derivative: Traced, shared: dict[int, int], inputs: Sequence[int]
) -> set[int]:
    """Find the shared outputs of which JAX would sum more than the cotangent.

    JAX sums what is batched over the examples. The cotangent of a shared output is a
    sum already: it must not be added to anything that is batched.

    Args:
        derivative: a map of cotangents.
        shared: outputs with the vmaps that they lack.
        inputs: for each input the vmaps that batch it.
    """
    strict = derivative.map.by_jax and compat.REFUSES_SHARED
    found: set[int] = set()
    summed = 0  # the vmaps in which JAX sums the cotangent of an input that they share
    for i, used in derivative.uses.items():
        shared_by_all = -1
        for k in used:
            shared_by_all &= shared.get(k, 0)
        vmaps = ~shared_by_all & ~inputs[i] if used else 0
        summed |= vmaps
        found |= {k for k in used if shared.get(k, 0) & vmaps}
    if strict:  # JAX refuses to sum where any output is shared, whatever the sum
        found |= {k for k, vmaps in shared.items() if vmaps & summed}
    return found
