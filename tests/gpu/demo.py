"""What `python -m jaxfn demo` checks."""

from __future__ import annotations

import functools

from jaxfn._cli import demo
from tests.gpu.parts import Check, Figure


def checks(small: bool) -> dict[str, Check]:
    """All examples; then the same with a rule that is wrong, which must be noticed."""
    broken = () if small else demo.BROKEN
    found: dict[str, Check] = {"right rules": _right}
    for rule in broken:
        found[f"wrong {rule}"] = functools.partial(_wrong, rule)
    return found


def _right() -> Figure:
    cells = [cell for cell in demo.cells() if cell.outcome != "-"]
    for cell in cells:
        if not cell.ok:
            raise AssertionError(f"{cell.function}, {cell.column}: {cell.message}")
    return Figure(f"{len(cells)} cells are right", {"cells": len(cells)})


def _wrong(rule: str) -> Figure:
    cells = list(demo.cells(rule))
    failed = {cell.column for cell in cells if not cell.ok}
    columns = {"backward": "grad", "jvp": "jvp", "vmap": "vmap"}
    if columns[rule] not in failed or "forward" in failed:
        raise AssertionError(f"the columns that fail are {sorted(failed)}")
    return Figure(f"noticed in {', '.join(sorted(failed))}")
