"""Choices, recorded so that what was made of them can be made again, and smaller.

A generator asks for one number after another, each below a bound. Zero is the simplest
answer to every question, and what a list that has ended goes on with. So any list of
numbers makes something valid, and smaller lists make simpler things.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Numbers from a seed, or those of a list.

    The seed is a text, which Python turns into the same numbers on every machine.

    Attributes:
        made: the numbers given out.
    """

    def __init__(self, source: str | Sequence[int]) -> None:
        self.made: list[int] = []
        self._random = random.Random(source) if isinstance(source, str) else None
        self._given = iter(()) if isinstance(source, str) else iter(source)

    def below(self, n: int) -> int:
        """One of 0 to n - 1."""
        if self._random is not None:
            x = self._random.randrange(n)
        else:
            x = min(next(self._given, 0), n - 1)
        self.made.append(x)
        return x

    def one(self, items: Sequence[T]) -> T:
        """One of these; the first is the simplest."""
        return items[self.below(len(items))]

    def chance(self, percent: int) -> bool:
        """True as often as that; False is simpler."""
        return self.below(100) >= 100 - percent


# ---- shrinking


def shrink(
    made: Sequence[int], fails: Callable[[list[int]], list[int] | None], seconds: float
) -> list[int]:
    """A small list that still fails, found in this time.

    Args:
        made: a list that fails.
        fails: what was made from a list, if that fails, else None.
        seconds: how long to try.
    """
    best, end = list(made), time.monotonic() + seconds
    tried: set[tuple[int, ...]] = set()
    better = True
    while better:
        better = False
        for candidate in _smaller(best):
            if time.monotonic() > end:
                return best
            if tuple(candidate) in tried:
                continue
            tried.add(tuple(candidate))
            found = fails(candidate)
            if found is not None and _size(found) < _size(best):
                best, better = found, True
                break
    return best


def _size(made: Sequence[int]) -> tuple[int, Sequence[int]]:
    return len(made), made


def _smaller(made: Sequence[int]) -> Iterator[list[int]]:
    """Without a part, big parts first; then with zeros for a part."""
    n = len(made)
    width = n // 2
    while width:
        for start in range(0, n, width):
            yield [*made[:start], *made[start + width :]]
        width //= 2
    for width in (4, 1):
        for start in range(0, n, width):
            part = made[start : start + width]
            if any(part):
                yield [*made[:start], *[0] * len(part), *made[start + width :]]
