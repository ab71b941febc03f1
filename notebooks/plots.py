"""The pictures of the notebooks.

The notebooks import this module, so that their cells show what is computed. The folder
`gallery` lies beside it: its notebooks put this folder on Python's path first.
"""

from io import BytesIO
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch
from palette import BACKWARD, FORWARD, GREY, INK, JVP, LINES, RULES, STYLE, VMAP

plt.rcParams.update(
    {"figure.facecolor": "white", "axes.facecolor": "white", "font.size": 12, **STYLE}
)

PALE = to_rgba(GREY, 0.3)
EIGHT = plt.get_cmap("viridis", 8)
"""A colour for each of eight devices, or eight examples."""
STYLES = (
    {"linewidth": 4, "alpha": 0.5},
    {"linestyle": "--", "linewidth": 1.5},
    {"linestyle": ":", "linewidth": 2.2},
)
"""Three styles that can be told apart where lines lie on each other."""


def show(figure):
    """Show a figure as a PNG of few colours, which keeps notebooks small."""
    from IPython.display import Image, display
    from PIL import Image as Pixels

    figure.canvas.draw()
    pixels = Pixels.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    file = BytesIO()
    pixels.quantize(96, dither=Pixels.Dither.NONE).save(file, "PNG", optimize=True)
    plt.close(figure)
    display(Image(file.getvalue()))


def curves(x, *panels, xlabel, axes="linear"):
    """Draw lines over the same points, in one panel or in several side by side.

    Args:
        x: Points of the horizontal axis.
        *panels: For each panel its title, the label of its vertical axis, and the
            values of each line by the name of the line. A name that starts with that
            of a rule gives the line the rule's colour. A number is a level. Where a
            line is NaN, the ground is grey. After these, perhaps a name and a list of
            lines to compare with, drawn dashed.
        xlabel: Label of the horizontal axis.
        axes: `"linear"`, or `"log"` for two logarithmic axes.
    """
    width = 7.5 if len(panels) == 1 else 10
    figure, grid = plt.subplots(
        1, len(panels), figsize=(width, 3.7), layout="constrained", squeeze=False
    )
    for place, (title, ylabel, lines, *beside) in zip(grid[0], panels, strict=True):
        styles = cycle(STYLES[:1] if beside else STYLES)
        colours = cycle(LINES)
        for (name, y), style in zip(lines.items(), styles, strict=False):
            if np.ndim(y) == 0:
                place.axhline(y, color=INK, linestyle=":", label=name)
                continue
            rule = name.partition(":")[0]
            colour = RULES[rule] if rule in RULES else next(colours)
            place.plot(x, y, color=colour, label=name, **style)
            _mark_nan(place, x, y, name)
        for name, others in beside:
            for i, y in enumerate(others):
                label = name if i == 0 else None
                place.plot(x, y, color=INK, label=label, **STYLES[1])
        place.set(title=title, xlabel=xlabel, ylabel=ylabel)
        place.set(xscale=axes, yscale=axes)
        low, high = place.get_ylim()
        if axes == "linear":
            place.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        if len(lines) > 1 or beside:
            place.legend()
    show(figure)


def _mark_nan(place, x, y, name):
    """Colour the ground grey where a line is NaN, and say so."""
    gap = np.isnan(np.asarray(y))
    if gap.any():
        where = np.asarray(x)[gap]
        place.axvspan(where.min(), where.max(), color=PALE, linewidth=0)
        across = place.get_xaxis_transform()
        place.text(where.mean(), 0.5, f"{name}:\nNaN", ha="center", transform=across)


def bars(names, *panels, xlabel):
    """Draw one bar for each name, in several panels side by side.

    Args:
        names: Names below the bars.
        *panels: For each panel its title, the label of its vertical axis, how to write
            a number above its bar, and the numbers.
        xlabel: Label of the horizontal axis.
    """
    figure, grid = plt.subplots(
        1, len(panels), figsize=(10, 4.2), layout="constrained", squeeze=False
    )
    for place, (title, ylabel, write, heights) in zip(grid[0], panels, strict=True):
        place.bar_label(
            place.bar(names, heights, color=to_rgba(GREY, 0.6)), fmt=write, padding=2
        )
        place.set(title=title, xlabel=xlabel, ylabel=ylabel)
        place.set_ylim(0, 1.15 * max(heights))
        place.set_xticks(range(len(names)), names, rotation=25, ha="right")
    show(figure)


# ---- a table as a picture


def _table(place, colours, table, rows, columns, write):
    """Draw a table with a colour for each of its cells, and a text in it."""
    place.imshow(colours, aspect="auto")
    place.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
    place.set_yticks(range(len(rows)), rows)
    place.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    place.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    place.grid(which="minor", color="white", linewidth=2)
    place.tick_params(which="minor", length=0)
    for (i, j), value in np.ndenumerate(table):
        place.text(j, i, write(value), ha="center", va="center")


def rules(table, rows, columns, title, xlabel, ylabel):
    """Draw which rule ran in each cell of a table.

    Args:
        table: For each cell 2 for `backward`, 3 for `jvp`, 1 for the derivative of the
            body, 0 for a refusal.
        rows: Names of the rows.
        columns: Names of the columns.
        title: Title of the picture.
        xlabel: What the columns are.
        ylabel: What the rows are.
    """
    names = ("refused", "derivative of the body", "backward", "jvp")
    colours = [to_rgba(colour, 0.45) for colour in (GREY, LINES[1], BACKWARD, JVP)]
    size = (6.2 + 0.75 * len(columns), 1.9 + 0.35 * len(rows))
    figure, place = plt.subplots(figsize=size, layout="constrained")
    cells = np.array(colours)[table]
    _table(place, cells, table, rows, columns, lambda rule: f"{rule}" if rule else "")
    keys = [Patch(color=colours[rule], label=names[rule]) for rule in np.unique(table)]
    figure.legend(handles=keys, loc="outside right center", title="rule that ran")
    figure.suptitle(title)
    place.set(xlabel=xlabel, ylabel=ylabel)
    show(figure)


def factors(tables, rows, columns):
    """Draw tables of factors side by side, with what is not 1 in dark grey.

    Args:
        tables: The tables by their titles.
        rows: Names of the rows.
        columns: Names of the columns.
    """
    figure, grid = plt.subplots(
        1, len(tables), figsize=(9.5, 3.6), layout="constrained", sharey=True
    )
    for place, (title, table) in zip(grid, tables.items(), strict=True):
        right = np.abs(table - 1) < 0.01
        cells = np.where(right[..., None], to_rgba(GREY, 0.1), to_rgba(GREY, 0.6))
        _table(place, cells, table, rows, columns, "{:.2f}".format)
        place.set(title=title, xlabel="gradient of")
    figure.suptitle("Which gradients are right? Each number: gradient / right gradient")
    show(figure)


# ---- pictures of one notebook


def memory_rows(pictures, rows, columns):
    """Draw which example fills which row of memory, and the blocks of a kernel.

    Args:
        pictures: For each title the example in each row; -1 is padding.
        rows: Rows of a block.
        columns: Columns of a block.
    """
    figure, grid = plt.subplots(
        1, len(pictures), figsize=(9.5, 4.4), layout="constrained", sharey=True
    )
    for place, (title, examples) in zip(grid, pictures.items(), strict=True):
        picture = np.ma.masked_less(np.array(examples)[:, None], 0)
        height = len(picture)
        place.fill_between([0, 256], height, color=PALE, zorder=-1)
        image = place.imshow(
            picture,
            cmap=EIGHT,
            vmin=-0.5,
            vmax=7.5,
            aspect="auto",
            extent=(0, 256, height, 0),
        )
        place.hlines(range(0, height + 1, rows), 0, 256, color="black", linewidth=1.5)
        place.vlines(range(0, 257, columns), 0, height, color="black", linewidth=1.5)
        place.set(title=title, xlabel="column", ylim=(66, -2), xlim=(-4, 260))
        place.set(xticks=[0, 128, 256], yticks=range(0, 65, 8))
    grid[0].set_ylabel("row in memory")
    bar = figure.colorbar(image, ax=list(grid), ticks=range(8))
    bar.set_label("example of the batch")
    figure.suptitle("How many blocks does a batch of eight need?")
    show(figure)


def owners(arrays, layout):
    """Draw which device has each number of some arrays, and return the tables drawn.

    Args:
        arrays: The arrays by name.
        layout: The `PartitionSpec` of each.
    """
    figure, grid = plt.subplots(
        1, 3, figsize=(10, 4), layout="constrained", width_ratios=[3, 5, 3]
    )
    tables = {}
    for place, (name, array) in zip(grid, arrays.items(), strict=True):
        tables[name] = np.full(array.shape, -1)  # all devices have it
        for shard in () if array.is_fully_replicated else array.addressable_shards:
            tables[name][shard.index] = shard.device.id
        place.set_facecolor(PALE)
        owned = np.ma.masked_less(tables[name], 0)
        image = place.imshow(owned, cmap=EIGHT, vmin=-0.5, vmax=7.5, aspect="auto")
        place.set_title(f"{name}: {layout[name]}".replace("PartitionSpec", "P"))
        place.set(xlabel="column", ylabel="row")
    grid[0].set_yticks(range(4))
    figure.colorbar(image, ax=list(grid), ticks=range(8)).set_label("device")
    figure.suptitle("Which device has which part of an array?")
    show(figure)
    return tables


def batches(x, values, slopes):
    """Draw values and derivatives of a batch, lines and dots by turns on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for (name, y), colour in zip(values.items(), (FORWARD, VMAP), strict=True):
        left.plot(x, y, color=colour, label=name)
    for i, (name, y) in enumerate(slopes.items()):
        style = {"marker": "o", "linestyle": ""} if i % 2 else {"linestyle": "-"}
        colour = BACKWARD if "grad" in name else JVP
        right.plot(x, y, color=colour, markersize=4, label=name, **style)
    left.set(title="vmap runs its rule for the value", ylabel="value", ylim=(-1.3, 2.6))
    right.set(title="vmap keeps the derivative", ylabel="derivative", ylim=(-3.5, 6.5))
    left.legend(loc="upper left")
    right.legend(ncols=2)
    for place in (left, right):
        place.set_xlabel("x (radian)")
    show(figure)


def spikes(inputs, hidden):
    """Draw when each channel and hidden neuron fires, for an example of each class.

    Args:
        inputs: Spikes of the channels, for each class an array [steps, channels].
        hidden: Spikes of the neurons, for each class an array [steps, neurons].
    """
    figure, grid = plt.subplots(
        2,
        len(inputs),
        figsize=(10, 4.8),
        layout="constrained",
        sharex=True,
        sharey="row",
    )
    for row, trains, colour in zip(grid, (inputs, hidden), (GREY, INK), strict=True):
        for place, train in zip(row, trains, strict=True):
            place.scatter(*np.nonzero(train), s=14, color=colour)
            place.set_xlim(-1, len(train))
    for number, place in enumerate(grid[0]):
        place.set_title(f"class {number}")
    for place in grid[1]:
        place.set_xlabel("time (ms)")
    grid[0, 0].set(ylabel="input channel", yticks=[0, 5, 10])
    figure.suptitle("Which neurons fire for which class, and when?")
    grid[1, 0].set_ylabel("hidden neuron (rank)")
    show(figure)
