"""What `python -m jaxfn demo` checks."""

from __future__ import annotations

from jaxfn._cli import demo
from tests.gpu.parts import Check, Figure


def checks(small: bool) -> dict[str, Check]:
    """All examples; then the same with a rule that is wrong, which must be noticed."""
    found: dict[str, Check] = {"right rules": _right}
    if not small:
        found["wrong backward"] = _wrong_backward
    return found


def _right() -> Figure:
    cells = [cell for cell in demo.cells() if cell.outcome != "-"]
    for cell in cells:
        if not cell.ok:
            raise AssertionError(f"{cell.function}, {cell.column}: {cell.message}")
    return Figure(f"{len(cells)} cells are right", {"cells": len(cells)})


def _wrong_backward() -> Figure:
    cells = list(demo.cells("backward"))
    failed = sorted({cell.column for cell in cells if not cell.ok})
    if "grad" not in failed or "forward" in failed:
        raise AssertionError(f"the columns that fail are {failed}")
    return Figure(f"noticed in {', '.join(failed)}")
