"""Rows, and how they are printed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

PACKAGES = (
    "jaxfn",
    "jax",
    "jaxlib",
    "numpy",
    "torch",
    "triton",
    "jax-triton",
    "liger-kernel",
    "fla-core",
)


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one check.

    Attributes:
        part: The name of its part.
        check: Its name.
        result: "ok", "FAIL" or "skip".
        figure: What it found, or why it failed or was skipped.
        numbers: What it found, for programs.
        seconds: How long it took.
    """

    part: str
    check: str
    result: str
    figure: str
    numbers: dict[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


def describe(machine: Mapping[str, Any]) -> str:
    """Device and versions, in a few lines."""
    versions = ", ".join(
        f"{name} {machine['versions'].get(name) or 'missing'}" for name in PACKAGES
    )
    return (
        f"device: {machine['device']}; driver {machine['driver']}; torch's device: "
        f"{machine['torch_device']}\n"
        f"Python {machine['python']}; {versions}"
    )


def table(rows: Sequence[Row], seconds: float) -> str:
    """All rows in columns, with a summary below."""
    lines = [("part", "check", "result", "s", "figure")] + [
        (row.part, row.check, row.result, f"{row.seconds:.1f}", row.figure)
        for row in rows
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    text = [
        "  ".join([*(x.ljust(n) for x, n in zip(line, widths, strict=False)), line[4]])
        for line in lines
    ]
    text.insert(1, "-" * len(text[0]))
    found = Counter(row.result for row in rows)
    summary = ", ".join(f"{found[word]} {word}" for word in ("ok", "FAIL", "skip"))
    return "\n".join(["", *text, "", f"{summary}; {seconds:.0f} s"])
