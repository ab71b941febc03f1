"""Draw notebooks/pictures: `python -m tests.pages.pictures`.

Each picture is a few boxes and arrows, as SVG with its text as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

FOLDER = Path(__file__).parents[2] / "notebooks/pictures"
STYLE = {
    "svg.fonttype": "none",  # text stays text, in the reader's font
    "svg.hashsalt": "jaxfn",  # the same names of parts each time
    "font.family": "sans-serif",
    "font.size": 11,
}
BLUE, GREEN, ORANGE, GREY, RED = "#d6e6f7", "#d9efd9", "#fbe3c6", "#eeeeee", "#f7d6d6"


def main() -> None:
    """Draw all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        path = FOLDER / f"{name}.svg"
        with mpl.rc_context(STYLE):
            figure = draw()
            figure.savefig(path, metadata={"Date": None, "Creator": None})
        lines = [line.rstrip() for line in path.read_text().splitlines()]
        path.write_text("\n".join(lines) + "\n")


def texts(figure: Figure) -> list[str]:
    """Return the texts of a picture, line by line, sorted."""
    found = (text.get_text() for axes in figure.axes for text in axes.texts)
    return sorted(line for text in found for line in text.split("\n") if line)


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts in a file that was drawn."""
    for line in re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()):
        yield line.replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")


def canvas(width: float, height: float) -> Axes:
    """Return axes without a frame, in inches."""
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return axes


def box(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    *,
    width: float,
    color: str = BLUE,
    height: float = 0.62,
) -> None:
    """Draw a box with its centre at (x, y)."""
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=color,
            edgecolor="#555555",
            linewidth=1,
        )
    )
    axes.text(x, y, text, ha="center", va="center", linespacing=1.35)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw an arrow between two points."""
    style = {"arrowstyle": "-|>", "color": "#333333", "linewidth": 1.2}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


def note(axes: Axes, x: float, y: float, text: str, **options: str) -> None:
    """Write a small text without a box."""
    axes.text(x, y, text, ha="center", va="center", fontsize=9.5, **options)


def which_tool() -> Figure:
    """Draw the decision between the four tools."""
    axes = canvas(9.4, 4.3)
    box(axes, 4.7, 3.9, "Is there a class written for PyTorch?", width=3.6, color=GREY)
    box(axes, 2.4, 2.75, "Do you want its source in JAX?", width=3.2, color=GREY)
    box(axes, 7.0, 2.75, "A class with ctx, or a function?", width=3.2, color=GREY)
    for x, y, answer, end in (
        (3.75, 3.59, "yes", (2.6, 3.06)),
        (5.65, 3.59, "no", (6.8, 3.06)),
        (1.9, 2.44, "no", (1.15, 1.91)),
        (2.9, 2.44, "yes", (3.55, 1.91)),
        (6.5, 2.44, "class", (5.85, 1.91)),
        (7.5, 2.44, "function", (8.2, 1.91)),
    ):
        arrow(axes, (x, y), end)
        side = -0.32 if end[0] < x else 0.34
        note(axes, (x + end[0]) / 2 + side, (y + end[1]) / 2 + 0.05, answer)
    box(axes, 1.15, 1.5, "from_torch\nruns it as it is", width=2.1, height=0.82)
    box(axes, 3.5, 1.5, "translate,\nthen compare", width=2.1, height=0.82)
    box(axes, 5.85, 1.5, "Function", width=2.1, height=0.82)
    box(axes, 8.2, 1.5, "custom_function", width=2.1, height=0.82)
    for x in (1.15, 3.5, 5.85, 8.2):
        arrow(axes, (x, 1.09), (x, 0.74))
    text = "check: are the rules right?      explain: what does JAX do with them?"
    box(axes, 4.68, 0.42, text, width=9.14, color=GREEN)
    return axes.figure


def two_vocabularies() -> Figure:
    """Draw one call in the words of PyTorch and of JAX."""
    axes = canvas(9.4, 3.0)
    steps = [
        (1.2, "forward", "fwd"),
        (3.55, "saved tensors", "residuals"),
        (8.2, "backward", "bwd"),
    ]
    note(axes, 4.7, 0.2, "upper line: PyTorch      lower line: JAX", weight="bold")
    colors = [BLUE, ORANGE, BLUE]
    for (x, torch, jax), color in zip(steps, colors, strict=True):
        box(axes, x, 1.5, f"{torch}\n{jax}", width=1.9, height=0.9, color=color)
    box(axes, 5.85, 2.2, "grad_output\ncotangent", width=1.9, height=0.9, color=ORANGE)
    arrow(axes, (2.15, 1.5), (2.6, 1.5))
    arrow(axes, (4.5, 1.4), (7.25, 1.4))
    arrow(axes, (6.8, 2.0), (7.25, 1.75))
    arrow(axes, (1.2, 2.45), (1.2, 1.95))
    arrow(axes, (1.2, 1.05), (1.2, 0.6))
    arrow(axes, (8.2, 1.05), (8.2, 0.6))
    note(axes, 1.75, 2.4, "inputs\nprimals")
    note(axes, 1.9, 0.65, "outputs\nprimals out")
    note(axes, 7.2, 0.6, "gradients of the inputs\ncotangents of the inputs")
    return axes.figure


def from_torch() -> Figure:
    """Draw how `from_torch` makes JAX operations of a rule."""
    axes = canvas(9.4, 2.1)
    steps = [
        ("Python of the rule", "refused: values\n(int(x), NumPy)"),
        ("ATen graph", "refused: over\n16 branches"),
        ("graph without\nmutation and views", "refused: writes that\nwould be lost"),
        ("JAX operations", "refused: operations\nwithout an equivalent"),
    ]
    for i, (text, refused) in enumerate(steps):
        x = 1.2 + 2.33 * i
        box(axes, x, 1.45, text, width=1.95, height=0.9)
        note(axes, x, 0.5, refused, color="#a03030")
        if i:
            arrow(axes, (x - 1.36, 1.45), (x - 0.98, 1.45))
    return axes.figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "which_tool": which_tool,
    "two_vocabularies": two_vocabularies,
    "from_torch": from_torch,
}

if __name__ == "__main__":
    main()
