"""Measure, and write a JSON, a table and plots: `python -m tests.benchmarks`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks import report
from tests.benchmarks.rows import Row
from tests.benchmarks.timing import Effort

PARTS = ("eager", "trace")


def main(argv: Sequence[str]) -> int:
    """Run the parts that were asked for, and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="few rounds, small sizes")
    parser.add_argument("--out", type=Path, default=Path(".benchmarks"), metavar="DIR")
    options = parser.parse_args(argv)
    parts = options.parts or PARTS
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"no part named {unknown[0]!r}: choose from {', '.join(PARTS)}")
    effort = Effort(rounds=8, seconds=0.002, quick=True) if options.quick else Effort()
    rows = []
    for part in parts:
        module = importlib.import_module(f"tests.benchmarks.{part}")
        for row in module.rows(effort):
            print(line(row), flush=True)
            rows.append(row)
    for path in report.write(rows, options.out):
        print(path)
    return 0


def line(row: Row) -> str:
    """A row while it is measured."""
    what, ours, against, median, quartiles, target, verdict, *_ = report.cells(row)
    shown = f"{median} ({quartiles})" if quartiles else median or f"gap: {row.gap}"
    aim = f"  target {target}: {verdict}" if target else ""
    return f"{row.part}: {what}: {ours} / {against}: {shown}{aim}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
