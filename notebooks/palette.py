"""The colours of every picture: one for each rule, and two greys.

The notebooks and `tests.pages.pictures` import this module.
The four colours of rules differ for each kind of colour blindness too.
"""

import io

FORWARD, BACKWARD, JVP, VMAP = "#0b62b5", "#c85200", "#009270", "#c96ba6"
RULES = {"forward": FORWARD, "backward": BACKWARD, "jvp": JVP, "vmap": VMAP}
INK = "#1f2328"
"""Text, arrows, and whatever a picture compares a rule with."""
GREY = "#6e7781"
"""What no rule computes: refusals, padding, notes."""
LINES = (INK, "#7048c8", "#a88600")
"""Lines that show no rule."""
STYLE = dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"),
    INK,
) | {"axes.edgecolor": GREY, "grid.color": GREY}
"""Settings for matplotlib."""
DARK = {
    FORWARD: "#3b9df0",
    BACKWARD: "#f27b1f",
    JVP: "#35d0a0",
    VMAP: "#f3b6d9",
    INK: "#e6edf3",
    GREY: "#9198a1",
    LINES[1]: "#b69cff",
    LINES[2]: "#e3c04b",
}
"""For each colour the one that takes its place on a dark page."""


def svg(figure) -> str:
    """Return a figure as SVG without a ground, whose colours suit the page's scheme.

    A page shows an SVG as an image, so the colours of its text don't reach it. The
    image asks for the scheme itself. matplotlib writes colours into each element, and
    only `!important` wins against these.
    """
    file = io.StringIO()
    metadata = {"Date": None, "Creator": None}
    figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    dark = "\n".join(
        f'  [style*="{part}: {light}"] {{{part}: {colour} !important}}'
        for light, colour in DARK.items()
        for part in ("fill", "stroke")
    )
    scheme = f"\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n</style>"
    text = file.getvalue().replace("</style>", scheme, 1)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())
