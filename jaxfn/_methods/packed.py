"""What saved-tensor hooks make of residuals, and how they are read back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from jaxfn._base import Spec, errors, pytree, type_name
from jaxfn._engine import attach, stop_gradient
from jaxfn._methods.hooks import Hooks

Put = Callable[[Any], Any]
"""A template: given the leaves, the value with them in their places."""


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """What saved-tensor hooks made of the leaves, and how to read it.

    Attributes:
        n: how many leaves there were before.
        kept: the indices of those that were kept as they are; they come first.
        specs: for each value saved for backward and each array in it, the spec of what
            that was packed into, together with its witness (`_witness`).
        unpack: the unpack hook.
        name: the name of the Function.
    """

    n: int
    kept: tuple[int, ...]
    specs: tuple[tuple[Spec, ...], ...]
    unpack: Callable[[Any], Any]
    name: str

    def restore(self, arrays: Sequence[Any]) -> list[Any]:
        """Put the leaves that were kept in their old places, None in all others."""
        leaves: list[Any] = [None] * self.n
        # Not strict: what the others were packed into comes after them.
        for i, x in zip(self.kept, arrays, strict=False):
            leaves[i] = x
        return leaves

    def read(self, puts: Sequence[Put], arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Return what was saved for backward, by calling the unpack hook."""
        rest, values = iter(arrays[len(self.kept) :]), []
        for put, specs in zip(puts, self.specs, strict=True):
            leaves = [
                self._unpacked(spec.join([next(rest) for _ in range(spec.n_arrays)]))
                for spec in specs
            ]
            values.append(put(_InTurn(leaves)))
        return tuple(values)

    def wholes(self, puts: Sequence[Put]) -> list[Any]:
        """What was saved for backward, with the spec of each array in its place."""
        pairs = zip(puts, self.specs, strict=True)
        return [put(_InTurn(specs)) for put, specs in pairs]

    def _unpacked(self, packed: Any) -> Any:
        """One array, from what it was packed into and its witness."""
        value, witness = packed
        x = self.unpack(value)
        if not pytree.is_array(x):
            raise errors.RuleTypeError(
                "Output of saved tensor unpack_hook expected to be a Tensor but "
                f"got result of type {type_name(x)}. `{self.name}.backward` read "
                "ctx.saved_tensors: expected arrays from unpack_hook, got "
                f"{errors.shown(x)}."
            )
        # Attached here, where backward reads, and not where the array was packed: a
        # derivative of jvp, which never unpacks, loses nothing.
        if witness is not None:
            found = stop_gradient([x])
            (x,) = attach(self._refuse, [witness], found, name=self.name)
        return x

    def _refuse(self, *_: Any) -> Any:
        """Stand for the derivative of an array that the hooks have lost."""
        raise NotImplementedError(
            f"`{self.name}.backward` was differentiated where saved-tensor hooks keep "
            "integers: expected first derivatives only, got one of a saved array, "
            "which the hooks would lose. Use hooks that keep floats, or none."
        )


def pack(
    puts: Sequence[Put],
    leaves: Sequence[Any],
    shared: Iterable[int],
    hooks: Hooks,
    *,
    name: str,
) -> tuple[list[Any], Packed]:
    """Call the pack hook; return the new leaves, and how to read them.

    What only backward needs is replaced by what the hook returned; an array that is an
    attribute too is kept beside.

    Args:
        puts: templates of what was saved for backward.
        leaves: the arrays.
        shared: the indices of leaves that jvp or an attribute needs too.
        hooks: the pair of hooks.
        name: the name of the Function.
    """
    kept = tuple(sorted(shared))
    arrays = [leaves[i] for i in kept]
    specs: list[tuple[Spec, ...]] = []
    for put in puts:
        of_put: list[Spec] = []
        for x in _asked(put, leaves):
            value = hooks.pack(x)
            found, spec = pytree.split((value, _witness(x, value)))
            arrays += found
            of_put.append(spec)
        specs.append(tuple(of_put))
    return arrays, Packed(len(leaves), kept, tuple(specs), hooks.unpack, name)


def _asked(put: Put, leaves: Sequence[Any]) -> list[Any]:
    """The leaves that a template puts in place, in the order in which it asks."""
    asked = _Noting(leaves)
    put(asked)
    return asked.given


class _Noting:
    """Leaves that note which of them are asked for."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._leaves = leaves
        self.given: list[Any] = []

    def __getitem__(self, i: int) -> Any:
        self.given.append(self._leaves[i])
        return self.given[-1]


class _InTurn:
    """Leaves that are given in turn, in the order that `_Noting` noted."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._rest = iter(leaves)

    def __getitem__(self, _: int) -> Any:
        return next(self._rest)


def _witness(x: Any, packed: Any) -> Any:
    """Return a zero that depends on `x`, or None where the hooks lose no derivative.

    Integers have no derivative: a second derivative would lose that of `x` in silence.
    So what is unpacked raises where the witness, that is `x`, is differentiated.
    """
    # A sum of no elements is differentiated wherever `x` is, but keeps none of its
    # memory, which is what the hooks are there to save.
    lossy = any(not pytree.is_inexact(a) for a in pytree.split(packed)[0])
    if not lossy or not pytree.is_inexact(x):
        return None
    return jnp.sum(jnp.ravel(x)[:0]) if pytree.is_number(x) else x
