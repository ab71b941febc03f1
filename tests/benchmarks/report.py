"""Rows as JSON and as a Markdown table."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

import jaxfn
from tests.benchmarks import peers
from tests.benchmarks.rows import Row

METHOD = """\
A ratio is ours over the other, so less is better unless the target says ≥. All of a
group is timed in every round of one process, in alternating order; shown are the median
of the ratios of each round and their quartiles. The garbage collector is off while a
call is timed, and runs between rounds, for all alike. Eager calls, traces, dispatch
with small arrays, and from_torch beside ports by hand are timed in CPU seconds of the
process, the rest with a wall clock.
Programs that are equal have a target of 1.00, which is met where it is not below the
lower quartile."""


def machine() -> dict[str, Any]:
    """Where this was measured."""
    found = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "devices": [str(d) for d in jax.devices()],
        "jax": jax.__version__,
        "jaxfn": jaxfn.__version__,
    }
    for name in ("equinox", "torch"):
        missing = peers.missing(name)
        found[name] = missing or importlib.metadata.version(name)
    return found


def write(rows: Sequence[Row], out: Path) -> list[Path]:
    """Write the JSON and the Markdown table; their paths."""
    data = {"machine": machine(), "rows": [row.as_json() for row in rows]}
    as_json, as_text = out / "benchmarks.json", out / "benchmarks.md"
    as_json.write_text(json.dumps(data, indent=1) + "\n")
    as_text.write_text(markdown(rows))
    return [as_json, as_text]


def markdown(rows: Sequence[Row]) -> str:
    """All rows: those with a target first, then part by part."""
    lines = ["# Benchmarks of jaxfn", ""]
    lines += [f"- {key}: {value}" for key, value in machine().items()]
    lines += ["", METHOD, ""]
    with_target = [r for r in rows if r.target is not None]
    if with_target:
        met = sum(r.verdict == "met" for r in with_target)
        lines += [f"## Targets: {met} of {len(with_target)} met", ""]
        lines += _table([row.titled() for row in with_target])
    for part in dict.fromkeys(row.part for row in rows):
        lines += [f"## {part}", "", *_table([r for r in rows if r.part == part])]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    head = "what | ours | against | median | quartiles | target | | ours, other | note"
    return [
        f"| {head} |",
        "|" + "---|" * (head.count(" |") + 1),
        *(f"| {' | '.join(cells(row))} |" for row in rows),
        "",
    ]


def cells(row: Row) -> list[str]:
    """What a line of the table says."""
    target = ""
    if row.target is not None:
        sign = "≥" if row.at_least else "≤"
        target = f"{sign} {number(row.target, row.unit)}"
    median = quartiles = ""
    if row.value is not None:
        median = number(row.value.median, row.unit)
        low, high = row.value.low, row.value.high
        if low != high:
            quartiles = f"{number(low, row.unit)} … {number(high, row.unit)}"
    times = ""
    if row.ours_seconds is not None and row.other_seconds is not None:
        times = f"{duration(row.ours_seconds)}, {duration(row.other_seconds)}"
    note = f"gap: {row.gap}" if row.gap else row.note
    return [
        row.what, row.ours, row.against, median, quartiles, target, row.verdict, times,
        note,
    ]  # fmt: skip


def number(value: float, unit: str) -> str:
    """A value, with few digits."""
    if unit:
        return f"{value:,.0f} {unit}" if value == int(value) else f"{value:,.1f} {unit}"
    return f"{value:.2f}"


def duration(seconds: float) -> str:
    """Seconds, in the unit that suits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"
