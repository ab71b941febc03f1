"""The rows as pictures, readable on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from notebooks.palette import GREY, INK, LINES, STYLE, svg
from tests.benchmarks.rows import Row

RATIO = "ratio of times: less is better, a hollow dot misses its target (|)"


def draw(rows: Sequence[Row], out: Path) -> list[Path]:
    """Draw what the rows allow; the paths of the pictures."""
    import matplotlib as mpl

    paths = []
    with mpl.rc_context(STYLE):
        for name, plot in PLOTS.items():
            figure = plot(rows)
            if figure is not None:
                path = out / f"{name}.svg"
                path.write_text(svg(figure))
                paths.append(path)
    return paths


def _axes(title: str, xlabel: str, ylabel: str, height: float = 4.0) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.add_subplot()
    figure.suptitle(title, color=INK)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _dots(rows: Sequence[Row], title: str, xlabel: str) -> Any:
    """Medians with quartiles, a line at 1, and a mark at each target."""
    rows = [row for row in rows if row.value is not None]
    if not rows:
        return None
    figure, axes = _axes(
        title, xlabel, "what: ours / the other", height=1.5 + 0.2 * len(rows)
    )
    for at, row in enumerate(rows):
        value = row.value
        fill = "none" if row.verdict == "missed" else INK
        axes.hlines(at, value.low, value.high, color=GREY, linewidth=1.5)
        axes.plot(value.median, at, "o", color=INK, mfc=fill, markersize=6)
        if row.target is not None:
            axes.plot(row.target, at, "|", color=GREY, markersize=10, mew=2)
    axes.axvline(1, color=GREY, linewidth=0.8)
    names = [f"{row.what}: {row.ours} / {row.against}" for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=7)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(len(rows) - 0.3, -0.7)
    return figure


def _ratios(part: str, title: str) -> Any:
    def plot(rows: Sequence[Row]) -> Any:
        found = [r for r in rows if r.part == part and not r.unit and r.value]
        return _dots(found, title, RATIO)

    return plot


def targets(rows: Sequence[Row]) -> Any:
    """The ratios of times that have a target."""
    found = [r for r in rows if r.target is not None and r.ours_seconds is not None]
    title = "Which targets are met?"
    return _dots([row.titled() for row in found], title, RATIO)


def torch(rows: Sequence[Row]) -> Any:
    """Speed-up over torch, one by one."""
    found = [
        r for r in rows
        if r.part in ("torch", "gpu") and r.ours_seconds and r.other_seconds
        and "torch" in r.against
    ]  # fmt: skip
    title = "Forward and backward under jit: is jaxfn as fast as PyTorch?"
    return _dots(found, title, RATIO)


def _by_size(text: str, title: str, xlabel: str) -> Any:
    """Times of what has this in its name, by the number of something."""

    def plot(rows: Sequence[Row]) -> Any:
        lines: dict[str, dict[int, float]] = {}
        for r in rows:
            if r.part == "trace" and text in r.what and r.size and r.ours_seconds:
                lines.setdefault(r.ours, {})[r.size] = 1e3 * r.ours_seconds
                lines.setdefault(r.against, {})[r.size] = 1e3 * (r.other_seconds or 0)
        return _lines(lines, title, xlabel) if lines else None

    return plot


def _lines(lines: dict[str, dict[int, float]], title: str, xlabel: str) -> Any:
    figure, axes = _axes(title, xlabel, "CPU time (ms)")
    for colour, (name, points) in zip(cycle(LINES), lines.items(), strict=False):
        line = zip(*sorted(points.items()), strict=True)
        axes.plot(*line, "o-", color=colour, label=name)
    axes.set(xscale="log", yscale="log")
    axes.legend(frameon=False, labelcolor="linecolor")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_major_formatter("{x:,g}")
    return figure


LOWERED = "How long does it take to trace and lower the gradient of"
PLOTS = {
    "targets": targets,
    "eager": _ratios("eager", "Calls without jit: is jaxfn as fast?"),
    "trace": _ratios("trace", "Trace and lower: is jaxfn as fast?"),
    "dispatch": _ratios("dispatch", "Calls of a compiled step: is jaxfn as fast?"),
    "chains": _by_size(
        "grad of a chain", f"{LOWERED} a chain?", "applies in the chain"
    ),
    "arguments": _by_size("arguments", f"{LOWERED} many arguments?", "arguments"),
    "torch": torch,
}
