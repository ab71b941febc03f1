"""Residuals under saved-tensor hooks: packed after forward, unpacked in backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from jaxfn._base import Spec, errors, pytree, type_name
from jaxfn._engine import attach, without_derivative
from jaxfn._methods.settings import Hooks

Put = Callable[[Any], Any]
"""A template: a function from the leaves to the value that holds them."""


def filled(puts: Sequence[Put], values: Iterable[Any]) -> tuple[Any, ...]:
    """Fill templates with values, in the order in which they read leaves."""
    in_turn = _InTurn(values)
    return tuple([put(in_turn) for put in puts])


class _InTurn:
    """Leaves in the order in which templates read them."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._rest = iter(values)

    def __getitem__(self, _: int) -> Any:
        return next(self._rest)


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """How to unpack the leaves.

    Attributes:
        kept: Number of leaves that stay unpacked; they come first.
        specs: For each array saved for backward, the spec of the pair of packed value
            and witness (`_witness`).
        unpack: The unpack hook.
        name: Name of the Function.
    """

    kept: int
    specs: tuple[Spec, ...]
    unpack: Callable[[Any], Any]
    name: str

    def read(self, puts: Sequence[Put], arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values saved for backward, by calling the unpack hook."""
        rest = iter(arrays[self.kept :])
        pairs = (
            spec.join([next(rest) for _ in range(spec.n_arrays)]) for spec in self.specs
        )
        return filled(puts, map(self._unpacked, pairs))

    def _unpacked(self, packed: Any) -> Any:
        value, witness = packed
        x = self.unpack(value)
        if not pytree.is_array(x):
            raise errors.RuleTypeError(
                "Output of saved tensor unpack_hook expected to be a Tensor but "
                f"got result of type {type_name(x)}. `{self.name}.backward` read "
                "ctx.saved_tensors: expected arrays from unpack_hook, got "
                f"{errors.shown(x)}."
            )
        # Attach the refusal here, not in `pack`: jvp never unpacks, so its derivative
        # loses nothing.
        if witness is not None:
            found = without_derivative([x])
            (x,) = attach(self._refuse, [witness], found, name=self.name)
        return x

    def _refuse(self, *_: Any) -> Any:
        """Refuse the derivative that the hooks lost."""
        raise NotImplementedError(
            f"`{self.name}.backward` was differentiated, but saved-tensor hooks stored "
            "a saved array as integers, so its derivative would be lost. Use hooks "
            "that keep floats, or none."
        )


def pack(
    leaves: Sequence[Any], kept: int, reads: Sequence[int], hooks: Hooks, *, name: str
) -> tuple[list[Any], Packed]:
    """Call the pack hook; return the new leaves, and how to unpack them.

    Args:
        leaves: The arrays.
        kept: Number of leaves that jvp or an attribute reads unpacked; they come first.
        reads: Index of each leaf that backward reads.
        hooks: The pair of hooks.
        name: Name of the Function.
    """
    arrays, specs = list(leaves[:kept]), []
    for i in reads:
        value = hooks.pack(leaves[i])
        found, spec = pytree.split((value, _witness(leaves[i], value)))
        arrays += found
        specs.append(spec)
    return arrays, Packed(kept, tuple(specs), hooks.unpack, name)


def _witness(x: Any, packed: Any) -> Any:
    """Return a zero that depends on `x`, or None if the hooks lose no derivative.

    If a hook returns integers, a second derivative would silently lose the part of `x`.
    So the unpacked array raises if the witness is differentiated.
    """
    # A sum of no elements depends on `x`, but does not keep alive the memory that the
    # hooks should save.
    lossy = any(not pytree.is_inexact(a) for a in pytree.split(packed)[0])
    if not lossy or not pytree.is_inexact(x):
        return None
    return jnp.sum(jnp.ravel(x)[:0]) if pytree.is_number(x) else x
