"""Functions of torch as `from_torch` makes them, beside their ports by hand and torch.

The ten pairs are those of `tests/torch/ports.py`, each compiled, on the same arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from tests.benchmarks import peers, torch_twins
from tests.benchmarks.rows import Pair, Row, measured
from tests.benchmarks.timing import Call, Effort, Spread, Times, interleaved
from tests.benchmarks.torch_twins import COMPILED, EAGER, Twin
from tests.jaxprs import instructions

PART, OURS, PORT = "from_torch", "from_torch", "port by hand"
KINDS = {"forward": False, "forward and backward": True}
MOST = 1.05
"""A target: so many times as long as its port a Function may take."""
ALIKE = 0.02
"""How far apart numbers of instructions may be, relative to those of the port."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A Function of torch, twice in JAX, and what they are called on.

    Attributes:
        name: of the Function.
        ours: made by `from_torch`.
        port: by hand.
        original: what torch calls.
        xs: arguments, in NumPy.
        cts: cotangents of what it returns.
    """

    name: str
    ours: Any
    port: Any
    original: Any
    xs: list[np.ndarray]
    cts: list[np.ndarray]


def cases() -> list[Case]:
    """All pairs. Torch must be installed."""
    from jaxfn.torch import from_torch
    from tests.torch.ports import PAIRS

    found = []
    for pair in PAIRS:
        xs = [np.asarray(x) for x in pair.args()]
        outs = jax.tree.leaves(jax.eval_shape(pair.port.apply, *xs))
        rng = np.random.default_rng(0)
        cts = [rng.normal(size=o.shape).astype(o.dtype) for o in outs]
        ours, original = from_torch(pair.torch), pair.torch.apply
        found.append(Case(pair.name, ours.apply, pair.port.apply, original, xs, cts))
    return found


def calls(
    case: Case, *, backward: bool, compiler: bool
) -> tuple[dict[str, Call], dict[str, int], str]:
    """What to time, numbers of instructions, and why torch.compile is missing."""
    found, numbers = {}, {}
    for name, f in ((OURS, case.ours), (PORT, case.port)):
        twin = Twin(f, lambda _: case.original)
        found[name] = torch_twins.ours(twin, case.xs, case.cts, backward=backward)
        program = torch_twins.step(twin, backward=backward)
        args = [case.xs, case.cts]
        numbers[name] = instructions(program.lower(*args).compile())
    group, gap = torch_twins.beside(
        Twin(case.ours, lambda _: case.original), found, case.xs, case.cts, "cpu",
        compiler=compiler, backward=backward,
    )  # fmt: skip
    return group, numbers, gap


def rows(effort: Effort) -> Iterator[Row]:
    """Forward, and forward and backward, compiled."""
    if gap := peers.GAPS["torch"]:
        for kind in KINDS:
            for other in (PORT, EAGER, COMPILED):
                yield Row(PART, kind, OURS, other, gap=gap)
        return
    gap = torch_twins.compiler_gap(effort)
    some = cases()[:2] if effort.quick else cases()
    with jax.default_device(jax.devices("cpu")[0]):
        for kind in KINDS:
            yield from of_kind(kind, some, gap, effort)


def of_kind(kind: str, some: list[Case], gap: str, effort: Effort) -> Iterator[Row]:
    """Each Function, and what holds for all.

    Equal programs on small arrays are told apart by no wall clock on a busy machine:
    they are timed in CPU seconds, apart from torch, whose threads use some to wait.
    """
    merged: dict[str, dict[str, list[float]]] = {PORT: {}, EAGER: {}, COMPILED: {}}
    unequal = []
    for case in some:
        group, numbers, reason = calls(case, backward=KINDS[kind], compiler=not gap)
        if abs(numbers[OURS] - numbers[PORT]) > ALIKE * numbers[PORT]:
            unequal.append(f"{case.name} {numbers[OURS]} to {numbers[PORT]}")
        alone = interleaved({key: group[key] for key in (OURS, PORT)}, effort)
        del group[PORT]
        beside = interleaved(group, effort.walled())
        what = f"{kind} of {case.name}"
        for row, times, best in each(what, alone, beside, reason or gap):
            if best:
                merged[row.against] |= {
                    f"{case.name}, {OURS}": times.seconds[OURS],
                    f"{case.name}, {row.against}": times.seconds[best],
                }
            yield row
    yield alike(kind, len(some), unequal)
    for other, seconds in merged.items():
        if seconds:
            yield overall(kind, other, Times(seconds))


def each(
    what: str, alone: Times, beside: Times, gap: str
) -> Iterator[tuple[Row, Times, str]]:
    """The rows of one Function, with the times and the call that it is compared with.

    Args:
        what: is timed.
        alone: the times of ours and of the port.
        beside: those of ours and of torch.
        gap: why torch.compile is missing.
    """
    port = Row(PART, what, OURS, PORT, target=MOST)
    yield measured(port, alone, Pair(OURS, PORT)), alone, PORT
    for other in (EAGER, COMPILED):
        row = Row(PART, what, OURS, other)
        row, best = torch_twins.beside_torch(row, beside, other, gap)
        yield row, beside, best


def alike(kind: str, total: int, unequal: list[str]) -> Row:
    """How many have as many instructions as their port."""
    return Row(
        PART,
        f"instructions of {kind}, within {ALIKE:.0%}",
        OURS,
        PORT,
        Spread.of([float(total - len(unequal))]),
        target=float(total),
        at_least=True,
        unit=f"of {total}",
        note=", ".join(unequal),
    )


def overall(kind: str, other: str, times: Times) -> Row:
    """The geometric mean of the ratios, and which Functions are slower."""
    names = [key.partition(",")[0] for key in times.seconds if key.endswith(OURS)]
    pairs = [(f"{name}, {OURS}", f"{name}, {other}") for name in names]
    ratios = {pair: times.ratio(*pair).median for pair in pairs}
    most = MOST if other == PORT else 1.0
    slower = [
        f"{ours.partition(',')[0]} {ratio:.2f}"
        for (ours, _), ratio in ratios.items()
        if ratio > most
    ]
    return Row(
        PART,
        f"{kind}: geometric mean of {len(pairs)}",
        OURS,
        other,
        times.overall(pairs),
        target=MOST if other == PORT else None,
        note=f"above {most}: {', '.join(slower) or 'none'}",
    )
