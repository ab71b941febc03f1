"""How many of many cells a test gets: some in a normal run, all with `--full`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def times(config: pytest.Config) -> int:
    """How many times the samples are asked for."""
    return config.option.sample or 1


def parametrize(
    metafunc: pytest.Metafunc,
    name: str,
    normal: Iterable[Any],
    full: Callable[[int], Iterable[Any]],
) -> None:
    """Give a test cells.

    Args:
        metafunc: the test.
        name: of its parameter.
        normal: those of a normal run.
        full: makes all of them, with so many times the samples.
    """
    if name not in metafunc.fixturenames:
        return
    some = dict.fromkeys(normal)
    cells: list[Any] = [pytest.param(x, marks=pytest.mark.thinned(1)) for x in some]
    if metafunc.config.option.full:
        more = dict.fromkeys(full(times(metafunc.config)))
        rest = [x for x in more if x not in some]
        cells += [pytest.param(x, marks=pytest.mark.full) for x in rest]
    metafunc.parametrize(name, cells, ids=str)


def only(items: Iterable[Any], normal: Callable[[Any], bool]) -> list[Any]:
    """All of these, of which a normal run has some.

    Args:
        items: parameters; a tuple is one of several values.
        normal: which of them a normal run has.
    """
    return [
        x
        if normal(x)
        else pytest.param(
            *(x if isinstance(x, tuple) else (x,)), marks=pytest.mark.full
        )
        for x in items
    ]
