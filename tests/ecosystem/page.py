"""The table of tests/ecosystem/results.md: its lines from what came out."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from pathlib import Path

from .catalogue import ROWS, Cell, Row

PATH = Path(__file__).with_name("results.md")

PLACES = [
    "linen",
    "nnx",
    "haiku",
    "training",
    "equinox",
    "linear",
    "minima",
    "equations",
    "numpyro",
    "blackjax",
    "jax",
    "tools",
]
for _name in PLACES:
    importlib.import_module(f"tests.ecosystem.rows_{_name}")

HEAD = [
    "library",
    "place",
    "`custom_vjp`",
    "`custom_jvp`",
    "`backward`",
    "`jvp`",
    "both",
    "derived",
    "decorator",
]

REASONS = {
    "no forward mode": r"forward-mode autodiff|\bcustom_lin\b",
    "no rule for it": "KeyError: 'subfuns'",
    "no Taylor mode": "inside of jet|wrapped in a JetTracer",
}
"""What a cell says, by what is found in the error."""


def words(cell: Cell) -> str:
    """What a cell says."""
    if cell.ran:
        return cell.ran
    for said, pattern in REASONS.items():
        if re.search(pattern, cell.error):
            return f"*{said}*"
    return f"**{cell.error[:60]}**"


def line(row: Row, cells: dict[str, Cell]) -> str:
    """The row of the table."""
    parts = [row.library, row.place, *(words(cell) for cell in cells.values())]
    return f"| {' | '.join(parts)} |"


def table(lines: Iterable[str]) -> list[str]:
    """The whole table."""
    return [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|", *lines]


def written() -> list[str]:
    """The lines of the table that the page has, with its head."""
    found = PATH.read_text().splitlines()
    return [x for x in found if x.startswith("|")]


def rewrite(lines: Iterable[str]) -> None:
    """Put these lines in the place of the page's table."""
    text = PATH.read_text()
    new = "\n".join(table(lines)) + "\n"
    PATH.write_text(re.sub(r"(?m)(^\|.*\n)+", lambda _: new, text, count=1))


def selected(pattern: str = "") -> list[Row]:
    """The rows whose name has this."""
    return [row for row in ROWS if re.search(pattern, str(row))]
