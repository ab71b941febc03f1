"""Draw notebooks/pictures: `python -m tests.pages.pictures`.

Each picture answers the question in its title by a few boxes and arrows, as SVG with
its text as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from notebooks import palette
from notebooks.palette import BACKWARD, FORWARD, GREY, INK, RULES, svg

FOLDER = Path(__file__).parents[2] / "notebooks/pictures"
STYLE = {
    "svg.fonttype": "none",  # text stays text, in the reader's font
    "svg.hashsalt": "jaxfn",  # the same names of parts each time
    "font.family": "sans-serif",
    "font.size": 11,
    **palette.STYLE,
}
WIDTH = 9.6
Point = tuple[float, float]


def main() -> None:
    """Draw all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        with mpl.rc_context(STYLE):
            (FOLDER / f"{name}.svg").write_text(svg(draw()))


def texts(figure: Figure) -> list[str]:
    """Return the texts of a picture, line by line, sorted."""
    found = (text.get_text() for axes in figure.axes for text in axes.texts)
    return sorted(line for text in found for line in text.split("\n") if line)


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts in a file that was drawn."""
    for line in re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()):
        yield line.replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")


def canvas(height: float, title: str) -> Axes:
    """Return axes without a frame, in inches, with a title on top."""
    axes = Figure(figsize=(WIDTH, height)).add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(0, height))
    axes.axis("off")
    axes.text(0.1, height - 0.25, title, va="center", fontsize=13, weight="bold")
    return axes


def box(
    axes: Axes,
    x: float,
    y: float,
    *lines: str,
    width: float,
    height: float = 0.8,
    color: str = GREY,
    bold: int = 0,
) -> None:
    """Draw a box with its centre at (x, y), and its first `bold` lines in bold."""
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=(color, 0.15),
            edgecolor=color,
            linewidth=1.3,
        )
    )
    top = y + 0.11 * (len(lines) - 1)
    for i, line in enumerate(lines):
        write(axes, x, top - 0.22 * i, line, weight="bold" if i < bold else "normal")


def write(axes: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """Write a line of text with its middle at (x, y)."""
    axes.text(x, y, text, **{"ha": "center", "va": "center_baseline", **options})


def arrow(axes: Axes, start: Point, end: Point, **options: Any) -> None:
    """Draw an arrow between two points."""
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 0}
    style |= {"shrinkB": 0, "mutation_scale": 12, **options}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


def which_tool() -> Figure:
    """Draw the way from what a reader has to the tool."""
    axes = canvas(5.1, "Which tool do I need?")
    columns = from_torch, translate, jax, kernel, numpy = 1.0, 2.9, 4.8, 6.7, 8.6
    write(axes, WIDTH / 2, 4.5, "I have …", color=GREY)
    torch, rules = (from_torch + translate) / 2, kernel
    box(axes, torch, 3.9, "PyTorch: a Function,", "a package, a whole model", width=3.7)
    box(axes, jax, 3.9, "JAX code", width=1.75)
    box(axes, kernel, 3.9, "a kernel: Triton,", "Pallas, CUDA", width=1.75)
    box(axes, numpy, 3.9, "NumPy or", "SciPy code", width=1.75)
    box(axes, from_torch, 2.5, "from_torch", "a JAX function", width=1.75, bold=1)
    box(axes, translate, 2.5, "translate", "then compare", width=1.75, bold=2)
    box(axes, kernel, 2.5, "triton_call", "pallas_call, ffi_call", width=1.75, bold=1)
    box(axes, numpy, 2.5, "host_function", width=1.75, bold=1)
    for x, *label in (
        (from_torch, "run it", "unmodified"),
        (translate, "a Function", "as source"),
    ):
        arrow(axes, (x, 3.5), (x, 2.9))
        for y, line in zip((3.29, 3.09), label, strict=True):
            write(axes, x + 0.1, y, line, ha="left", fontsize=9.5)
    for x in (kernel, numpy):
        arrow(axes, (x, 3.5), (x, 2.9))
        arrow(axes, (x, 2.1), (x, 1.76))
    arrow(axes, (jax, 3.5), (jax, 1.76))
    _rules(axes, rules)
    for x in columns:
        arrow(axes, (x, 0.9 if x >= jax else 2.1), (x, 0.64))
    box(axes, WIDTH / 2, 0.36, width=9.35, height=0.56)
    for x, tool, question in (
        (torch, "check", "Are the rules right?"),
        (rules, "explain", "What does JAX do with them?"),
    ):
        write(axes, x, 0.47, tool, weight="bold")
        write(axes, x, 0.25, question)
    return axes.figure


def _rules(axes: Axes, x: float) -> None:
    """Draw a box with the two tools that take rules, and the rules in their colours."""
    box(axes, x, 1.33, width=5.55, height=0.86)
    write(axes, 5.35, 1.55, "Function", weight="bold")
    write(axes, 5.35, 1.33, "a class with ctx")
    write(axes, 8.05, 1.55, "custom_function", weight="bold")
    write(axes, 8.05, 1.33, "a decorator")
    write(axes, x, 1.55, "or")
    for i, (name, color) in enumerate(RULES.items()):
        write(axes, x - 1.8 + 1.2 * i, 1.05, name, color=color, weight="bold")


def two_vocabularies() -> Figure:
    """Draw one call in the words of PyTorch and of JAX."""
    axes = canvas(3.5, "What is what in PyTorch and in JAX?")
    write(axes, 9.45, 3.25, "bold: PyTorch's word", ha="right", weight="bold")
    write(axes, 9.45, 3.0, "plain: JAX's word", ha="right")
    calls, left, right = 1.5, 1.2, 8.4
    box(axes, left, calls, "forward", "fwd", width=1.9, color=FORWARD, bold=1)
    box(axes, 3.6, calls, "saved tensors", "residuals", width=1.9, bold=1)
    box(axes, 6.0, 2.3, "grad_output", "cotangent", width=1.9, bold=1)
    box(axes, right, calls, "backward", "bwd", width=1.9, color=BACKWARD, bold=1)
    arrow(axes, (2.15, calls), (2.65, calls))
    arrow(axes, (4.55, calls), (7.45, calls))
    arrow(axes, (6.95, 2.3), (right, 1.9), connectionstyle="angle,angleA=0,angleB=90")
    for x, y, torch, jax in (
        (left, 2.5, "inputs", "primals"),
        (left, 0.5, "outputs", "primals out"),
        (right, 0.5, "gradients of the inputs", "cotangents of the inputs"),
    ):
        write(axes, x, y + 0.11, torch, weight="bold")
        write(axes, x, y - 0.11, jax)
    for x in (left, right):
        arrow(axes, (x, 1.1), (x, 0.8))
    arrow(axes, (left, 2.2), (left, 1.9))
    return axes.figure


def from_torch() -> Figure:
    """Draw how `from_torch` makes JAX operations of a rule."""
    axes = canvas(
        2.75, "How does from_torch run a rule in JAX, and where does it refuse?"
    )
    steps = [
        (("Python of the rule",), "a value is needed", "int(x), NumPy"),
        (("ATen graph",), "over 16", "branches"),
        (("graph without", "mutation and views"), "a write", "would be lost"),
        (("JAX operations",), "an operation has", "no equivalent"),
    ]
    for i, (lines, *refused) in enumerate(steps):
        x = 1.15 + 2.433 * i
        box(axes, x, 1.75, *lines, width=1.95)
        if i:
            arrow(axes, (x - 1.458, 1.75), (x - 0.975, 1.75))
        arrow(axes, (x, 1.35), (x, 0.8), color=GREY, linestyle="--")
        for y, text in zip((0.6, 0.38, 0.16), ("refused:", *refused), strict=True):
            write(axes, x, y, text, color=GREY)
    return axes.figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "which_tool": which_tool,
    "two_vocabularies": two_vocabularies,
    "from_torch": from_torch,
}

if __name__ == "__main__":
    main()
