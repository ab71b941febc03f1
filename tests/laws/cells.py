"""Cells: a Function of the catalogue, a stack of transformations around it, a mode."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from tests.laws.catalogue import BY_NAME, CASES, SINES, Case
from tests.laws.modes import MODES, Mode
from tests.laws.stacks import PAIRS, TRANSFORMATIONS, Transformation

DEPTH = 3
SEED = 20

# What JAX says where it refuses; those of its next implementation are the later ones.
# test_refusals.py has each without jaxfn.
FORWARD = "can't apply forward-mode autodiff"
LINEARIZED = (
    "rule for 'custom_lin' not implemented"
    "|rule for 'call_hi_primitive_linearized' not implemented"
    "|fallback_linearize_rule.. got multiple values"
)
TRANSPOSED = (
    "Transpose rule .* for '.*' not implemented"
    "|for transpose support, subclass .*CustomVJPTraced.* must implement"
)
COLLECTIVE = "unbound axis name"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One Function under one stack, in one mode.

    Attributes:
        name: of the case.
        stack: names of transformations, the outermost first.
        mode: its name.
    """

    name: str
    stack: tuple[str, ...]
    mode: str = "eager"

    def __str__(self) -> str:
        return f"{self.mode}: {' of '.join((*self.stack, self.name))}"

    @property
    def case(self) -> Case:
        return BY_NAME[self.name]

    @property
    def transformations(self) -> list[Transformation]:
        return [TRANSFORMATIONS[name] for name in self.stack]

    @property
    def levels(self) -> list[Transformation | Mode]:
        """The mode and the transformations, the outermost first."""
        return [MODES[self.mode], *self.transformations]

    @property
    def order(self) -> int:
        """How many derivatives are taken, one of another."""
        return sum(
            2 if n == "hessian" else bool(TRANSFORMATIONS[n].kinds) for n in self.stack
        )

    # ---- what cells there are

    def is_cheap(self) -> bool:
        """Is it of the second order at most, or of the third and run eagerly?"""
        return self.order <= (3 if self.mode == "eager" else 2)

    def is_valid(self) -> bool:
        """Does JAX support this stack for the same mathematics without a Function?"""
        outer: frozenset[str] = frozenset()
        for level in self.levels:
            if isinstance(level, Transformation) and level.refuses & outer:
                return False
            outer |= level.kinds
        linear = [t.linear for t in self.transformations]
        if any(linear[:-1]) or (any(linear) and not self.case.linear):
            return False
        mode = MODES[self.mode]
        if (mode.no_host and self.case.host) or (mode.no_keys and self.case.random):
            return False
        if self.mode == "leaks" and any(t.leaks for t in self.transformations):
            return False
        # Where jvp and backward differ on purpose, only one may be used.
        return self.case.in_forward_mode is None or len(outer) < 2

    # ---- running

    def got(self) -> Any:
        mode = MODES[self.mode]
        with mode.setting():
            f = self.case.call
            for t in reversed(self.transformations):
                f = t.apply(f)
            return _numpy(mode.run(f, self.case.args()))

    def expected(self) -> Any:
        forward = any("forward" in level.kinds for level in self.levels)
        differs = self.case.in_forward_mode is not None and forward
        # Other modes change neither what is right nor its dtype.
        mode = self.mode if self.mode in ("eval_shape", "export", "x64") else "eager"
        return _reference(self.case.math, differs, self.stack, mode)

    # ---- what may be refused, by the list in notebooks/guides/troubleshooting.md

    def may_be_refused(self) -> str | None:
        """A pattern of the messages of JAX that are allowed here."""
        found = []
        kinds = [k for level in self.levels for k in level.kinds]
        if not self.case.forward_mode and "forward" in kinds:
            found += [FORWARD, LINEARIZED]
        branches = {"cond", "switch"} & set(self.stack)
        enough = 1 if self.case.forward_mode or branches else 2
        if self.case.collective and len(kinds) >= enough:
            found.append(COLLECTIVE)
        if not self.case.transposable and any(t.linear for t in self.transformations):
            found.append(TRANSPOSED)
        return "|".join(found) or None

    def must_be_refused(self) -> bool:
        """Is it certain that forward mode meets the Function itself?"""
        inner = [n for n in self.stack if TRANSFORMATIONS[n].kinds][-1:]
        pushes = inner in (["jvp"], ["linearize"], ["jacfwd"])
        # JAX refuses some when it compiles: eval_shape doesn't.
        return pushes and not self.case.forward_mode and self.mode != "eval_shape"


@functools.cache
def _reference(math: str, forward: bool, stack: tuple[str, ...], mode: str) -> Any:
    """What plain JAX computes; cells of the same mathematics share it."""
    case = next(case for case in CASES if case.math == math)
    f = case.in_forward_mode if forward else case.reference
    assert f is not None
    for name in reversed(stack):
        t = TRANSFORMATIONS[name]
        f = (t.plain or t.apply)(f)
    with MODES[mode].setting():
        return _numpy(jax.jit(lambda *args: MODES[mode].plain(f, args))(*case.args()))


def _numpy(outs: Any) -> list[Any]:
    return [np.asarray(x) for x in jax.tree.leaves(outs)]


# ---- which cells run


def pairs(one_in: int = 1) -> list[Cell]:
    """Pairs of a dozen transformations, for a Function of each engine and style.

    Args:
        one_in: 1: each pair for each of the eight Functions. 2: for each engine, in one
            of its two styles by turns. 8: for one Function by turns; each of these has
            each transformation inside of another and outside of another.
    """
    place = {name: i for i, name in enumerate(PAIRS)}
    cells = [
        Cell(case.name, stack)
        for stack in itertools.product(PAIRS, repeat=2)
        for turn, case in enumerate(SINES)
        if (sum(place[n] for n in stack) - turn) % one_in == 0
    ]
    return [cell for cell in cells if cell.is_valid()]


def some(cells: list[Cell]) -> list[Cell]:
    """A tenth of the sample: each transformation, mode and Function.

    The two that are for linear Functions only have a few cells: all are kept. Without
    jit, second derivatives take many seconds.
    """
    of: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.mode == "disable_jit" and cell.order > 1:
            continue
        of.setdefault(cell.name, []).append(cell)
    return [
        cell
        for i, found in enumerate(of.values())
        for k, cell in enumerate(found)
        if k % 10 == i % 10 or any(t.linear for t in cell.transformations)
    ]


@functools.cache
def sample(times: int = 1) -> list[Cell]:
    """A seeded sample of depth 3: each Function meets each transformation and mode."""
    cells: dict[Cell, None] = {}
    for k in range(times):
        for case in CASES:
            chosen = random.Random(f"{SEED} {k} {case.name}")
            cells.update(dict.fromkeys(_cover(case, chosen)))
    return list(cells)


def _cover(case: Case, chosen: random.Random) -> Iterator[Cell]:
    """Cells of one Function in which each transformation and mode is, at least once."""
    todo = [t for t in TRANSFORMATIONS if Cell(case.name, (t,)).is_valid()]
    modes = [m for m in MODES if Cell(case.name, ("jit",), m).is_valid()]
    chosen.shuffle(todo)
    chosen.shuffle(modes)
    while todo or modes:
        cell = _next_cell(case, todo, (modes or ["eager"])[0], chosen)
        todo = [t for t in todo if t not in cell.stack]
        modes = modes[1:]
        yield cell


def _next_cell(case: Case, todo: list[str], mode: str, chosen: random.Random) -> Cell:
    """A cell with as many as it takes of what is still to do, from the first on."""
    cell = Cell(case.name, (), mode)
    for t in todo + chosen.choices(list(TRANSFORMATIONS), k=8):
        if len(cell.stack) == DEPTH:
            break
        stacks = [
            (*cell.stack[:i], t, *cell.stack[i:]) for i in range(len(cell.stack) + 1)
        ]
        chosen.shuffle(stacks)
        cells = [dataclasses.replace(cell, stack=stack) for stack in stacks]
        cell = next((c for c in cells if c.is_valid() and c.is_cheap()), cell)
    return cell
