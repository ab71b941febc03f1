"""Measure, and write a JSON and a table: `python -m tests.benchmarks`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks import report
from tests.benchmarks.rows import Row
from tests.benchmarks.timing import Effort

# part: the module that measures it
PARTS = {
    "compiled": "compiled",
    "trace": "trace",
    "eager": "eager",
    "dispatch": "dispatch",
    "residuals": "residuals",
    "import": "importing",
    "torch": "torch_twins",
    "from_torch": "from_torch",
    "gpu": "gpu",
}


def main(argv: Sequence[str]) -> int:
    """Run the parts that were asked for, and report."""
    options = _parse(argv)
    effort = Effort(rounds=8, seconds=0.005, quick=True) if options.quick else Effort()
    rows = []
    for part in options.parts or PARTS:
        module = importlib.import_module(f"tests.benchmarks.{PARTS[part]}")
        for row in module.rows(effort):
            print(line(row), flush=True)
            rows.append(row)
    options.out.mkdir(parents=True, exist_ok=True)
    for path in report.write(rows, options.out):
        print(path)
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"all, or some of {', '.join(PARTS)}"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, small sizes")
    parser.add_argument(
        "--out", type=Path, default=Path(".benchmarks"), metavar="DIR",
        help="for the JSON and the table; .benchmarks by default",
    )  # fmt: skip
    options = parser.parse_args(argv)
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"no part is named {part!r}: choose from {', '.join(PARTS)}")
    return options


def line(row: Row) -> str:
    """A row, for the eye, while others are measured."""
    what, ours, against, median, quartiles, target, verdict, *_ = report.cells(row)
    shown = f"{median} ({quartiles})" if quartiles else median or f"gap: {row.gap}"
    aim = f"  target {target}: {verdict}" if target else ""
    return f"{row.part}: {what}: {ours} / {against}: {shown}{aim}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
