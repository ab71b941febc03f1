"""Run all rows and write the page, or run those whose name has a pattern."""

from __future__ import annotations

import sys
import time

import tests.conftest  # noqa: F401  (JAX is told the settings of the tests)


def main(pattern: str = "") -> None:
    from tests.ecosystem import catalogue, page  # when JAX has been told

    lines = []
    for row in page.selected(pattern):
        start = time.process_time()
        cells = catalogue.run(row)
        lines.append(page.line(row, cells))
        print(f"{time.process_time() - start:5.1f} s  {lines[-1]}", flush=True)
        for name, cell in cells.items():
            if cell.error and pattern:
                print(f"         {name}: {cell.error[:300]}")
    if not pattern:
        page.rewrite(lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
