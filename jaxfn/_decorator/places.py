"""The arguments of a call with JAX-style rules, and tangents along some of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfn._base import pytree
from jaxfn._engine import Arrays

Rule = Callable[..., Any]


def is_pair(x: Any) -> bool:
    """Say if a rule returned two values."""
    return isinstance(x, (tuple, list)) and len(x) == 2


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """The places of the arguments of a call that take no part in transformations.

    Attributes:
        nondiff: these arguments, by position.
        n: how many arguments the call has in all.
    """

    nondiff: dict[int, Any]
    n: int

    @classmethod
    def of(
        cls, positions: Sequence[int], args: tuple[Any, ...]
    ) -> tuple[Places, tuple[Any, ...]]:
        """Separate the arguments that take no part, at these positions, from others."""
        nondiff = {i: args[i] for i in positions if i < len(args)}
        rest = tuple([x for i, x in enumerate(args) if i not in nondiff])
        return cls(nondiff, len(args)), rest

    def whole(self, rest: Sequence[Any], *fill: Any) -> list[Any]:
        """Put values in the places of the others, beside `fill` or the nondiff ones."""
        values = iter(rest)
        return [
            (fill[0] if fill else self.nondiff[i])
            if i in self.nondiff
            else next(values)
            for i in range(self.n)
        ]


def along(
    f: Rule, args: Rule, primals: Arrays, tangents: Arrays, smooth: Sequence[bool]
) -> list[Any]:
    """Let JAX take the tangents of `f(*args(primals))`.

    Only arguments whose tangent is not None move, and only outputs that have a
    derivative get a tangent: None stands for all others.
    """
    # With zeros in place of None, a rule with symbolic_zeros would be told that all
    # arguments are perturbed.
    moving = [i for i, t in enumerate(tangents) if t is not None]

    def along(*values: Any) -> list[Any]:
        at = list(primals)
        for i, x in zip(moving, values, strict=True):
            at[i] = x
        outs = pytree.outputs(f(*args(at))).arrays
        return [x for x, s in zip(outs, smooth, strict=True) if s]

    at = tuple(primals[i] for i in moving)
    _, dots = jax.jvp(along, at, tuple(tangents[i] for i in moving))
    rest = iter(dots)
    return [next(rest) if s else None for s in smooth]
