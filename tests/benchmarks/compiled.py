"""What XLA makes of a Function, against the hand-written definition of its twin."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from tests.benchmarks import peers
from tests.benchmarks.eager import arrays
from tests.benchmarks.rows import Pair, Row, measured
from tests.benchmarks.timing import Call, Effort, Spread, Times, interleaved
from tests.jaxprs import hlo
from tests.twins import TWINS, Twin, by_hand, gradient, ours, stacked, tangent

Fun = Callable[..., Any]
SIZES = (16, 10_000, 10_000_000)


@dataclasses.dataclass(frozen=True)
class Program:
    """One transformation of ours and of the twin.

    Attributes:
        rule: of our Function, and what is beside it: "backward" or "jvp".
        hand: the rule of the twin.
        transform: makes the program of a function and its arguments.
        arguments: of the program, from those of the function.
    """

    rule: str
    hand: str
    transform: Callable[[Fun, Any], Fun]
    arguments: Callable[[Any], Any] = lambda args: args

    def pair(self, twin: Twin, style: str) -> tuple[Fun, Fun]:
        """The programs of ours and of the twin."""
        args = twin.arguments(16)
        mine = ours(twin, rule=self.rule, style=style)
        return tuple(
            self.transform(f, args) for f in (mine, by_hand(twin, rule=self.hand))
        )


PROGRAMS = {
    "forward": Program("backward", "backward", lambda f, _: f),
    "grad": Program("backward", "backward", gradient),
    "grad by jvp": Program("jvp", "jvp", gradient),
    "grad of both": Program("both", "backward", gradient),
    "jvp": Program("jvp", "jvp", lambda f, _: tangent(f)),
    "jvp of both": Program("both", "jvp", lambda f, _: tangent(f)),
    "vmap of grad": Program(
        "backward", "backward", lambda f, args: jax.vmap(gradient(f, args)), stacked
    ),
}


def texts() -> Iterator[Row]:
    """For each program, how many of the Functions compile to the same HLO."""
    for what, program in PROGRAMS.items():
        for style in ("combined", "separate"):
            unequal = []
            for name, twin in TWINS.items():
                args = program.arguments(twin.arguments(16))
                one, other = (hlo(f, *args) for f in program.pair(twin, style))
                if one != other:
                    unequal.append(name)
            yield count(f"optimised HLO of {what}", style, program.hand, unequal)


def nested_texts() -> Iterator[Row]:
    """The same for a Function with a vmap rule, against nested definitions."""
    args = arrays(16)
    for mine, hand, programs in (
        (
            "Function, vmap",
            "custom_vjp over custom_vmap",
            {
                "forward": lambda f: f,
                "grad": lambda f: gradient(f, args),
                "vmap": jax.vmap,
                "vmap of grad": lambda f: jax.vmap(jax.grad(f, (0, 1))),
                "grad of vmap": lambda f: gradient(jax.vmap(f), args),
            },
        ),
        (
            "Function, jvp, vmap",
            "custom_jvp over custom_vmap",
            {
                "forward": lambda f: f,
                "jvp": tangent,
                "vmap of jvp": lambda f: jax.vmap(tangent(f)),
                "jvp of vmap": lambda f: tangent(jax.vmap(f)),
                "vmap of grad": lambda f: jax.vmap(jax.grad(f, (0, 1))),
            },
        ),
    ):
        unequal = [
            what
            for what, transform in programs.items()
            if hlo(transform(peers.ALL[mine]()), *args)
            != hlo(transform(peers.ALL[hand]()), *args)
        ]
        title = f"optimised HLO of {', '.join(programs)}: equal"
        yield counted(title, mine, hand, unequal, len(programs))


def count(what: str, style: str, hand: str, unequal: list[str]) -> Row:
    """How many of the twins are equal."""
    mine = "Function" if style == "combined" else "Function, separate"
    hand = "custom_vjp" if hand == "backward" else "custom_jvp"
    return counted(f"{what}: equal", mine, hand, unequal, len(TWINS))


def counted(what: str, mine: str, hand: str, unequal: list[str], total: int) -> Row:
    """How many are equal; all should be."""
    return Row(
        "compiled",
        what,
        mine,
        hand,
        Spread.of([float(total - len(unequal))]),
        target=float(total),
        at_least=True,
        unit=f"of {total}",
        note=f"unequal: {', '.join(unequal)}" if unequal else "",
    )


def compiled(twin: Twin, n: int, program: Program) -> list[Any]:
    """Ours and the twin's, compiled for this size."""
    args = program.arguments(twin.arguments(n))
    return [jax.jit(f).lower(*args).compile() for f in program.pair(twin, "combined")]


def run_time(effort: Effort) -> Iterator[Row]:
    """Time of the compiled gradient, and of the compiled tangent, by size.

    The programs are equal, so what each pair differs by is noise: the target is for
    their geometric mean.
    """
    for n in SIZES[:2] if effort.quick else SIZES:
        for what in ("grad", "jvp") if n == 10_000 else ("grad",):
            yield from run_at_size("compiled", what, n, effort.for_size(n))


def run_at_size(part: str, what: str, n: int, effort: Effort) -> Iterator[Row]:
    """Time of all twins at one size, and their geometric mean."""
    hand = f"custom_{'vjp' if what == 'grad' else 'jvp'}"
    merged: dict[str, list[float]] = {}
    rows = []
    for name, twin in TWINS.items():
        calls = _calls(twin, n, what, f"Function, {name}", f"{hand}, {name}")
        times = interleaved(calls, effort)
        merged |= times.seconds
        pair = Pair(*calls)
        row = Row(part, f"run {what} of {name}, {n:,} elements", against=hand)
        rows.append(measured(row, times, pair))
    yield Row(
        part,
        f"run {what}, {n:,} elements: geometric mean of {len(TWINS)}",
        against=hand,
        value=Times(merged).overall(
            [(f"Function, {name}", f"{hand}, {name}") for name in TWINS]
        ),
        target=1.0,
        within=True,
    )
    yield from rows


def _calls(twin: Twin, n: int, what: str, *names: str) -> dict[str, Call]:
    args = twin.arguments(n)
    pair = compiled(twin, n, PROGRAMS[what])
    return {
        name: Call(lambda _, f=f: f(*args)) for name, f in zip(names, pair, strict=True)
    }


def memory(effort: Effort) -> Iterator[Row]:
    """Peak memory of the compiled gradient, where XLA tells."""
    for n in SIZES[:2] if effort.quick else SIZES:
        unequal, peaks = [], []
        for name, twin in TWINS.items():
            one, other = (peak(c) for c in compiled(twin, n, PROGRAMS["grad"]))
            peaks.append(one)
            if one != other:
                unequal.append(f"{name}: {one} to {other} bytes")
        row = count(
            f"peak memory of grad, {n:,} elements", "combined", "backward", unequal
        )
        yield dataclasses.replace(row, note=row.note or f"up to {max(peaks):,} bytes")


def peak(program: Any) -> int:
    """Bytes of arguments, results and temporaries."""
    found = program.memory_analysis()
    return (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        + found.temp_size_in_bytes
        - found.alias_size_in_bytes
    )


def rows(effort: Effort) -> Iterator[Row]:
    """All measurements of compiled programs."""
    yield from texts()
    yield from nested_texts()
    yield from memory(effort)
    yield from run_time(effort)
