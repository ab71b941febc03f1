"""The pictures of the notebooks.

The notebooks import this module, so that their cells show what is computed. The folder
`gallery` lies beside it: its notebooks put this folder on Python's path first.
"""

from io import BytesIO
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

plt.rcParams.update(
    {"figure.facecolor": "white", "axes.facecolor": "white", "font.size": 12}
)

COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")
GREY = "#cccccc"
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
            values of each line by the name of the line. A number is a level. After
            these, perhaps a name and a list of lines to compare with, drawn dashed.
        xlabel: Label of the horizontal axis.
        axes: `"linear"`, or `"log"` for two logarithmic axes.
    """
    width = 7.5 if len(panels) == 1 else 10
    figure, grid = plt.subplots(
        1, len(panels), figsize=(width, 3.7), layout="constrained", squeeze=False
    )
    for place, (title, ylabel, lines, *beside) in zip(grid[0], panels, strict=True):
        styles = cycle(STYLES[:1] if beside else STYLES)
        for (name, y), style, colour in zip(
            lines.items(), styles, cycle(COLOURS), strict=False
        ):
            if np.ndim(y) == 0:
                place.axhline(y, color="black", linestyle=":", label=name)
            else:
                place.plot(x, y, color=colour, label=name, **style)
        for name, others in beside:
            for i, y in enumerate(others):
                label = name if i == 0 else None
                place.plot(x, y, color="black", label=label, **STYLES[1])
        place.set(title=title, xlabel=xlabel, ylabel=ylabel)
        place.set(xscale=axes, yscale=axes)
        low, high = place.get_ylim()
        if axes == "linear":
            place.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        if len(lines) > 1 or beside:
            place.legend()
    show(figure)


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
        colours = ("tab:gray", "tab:blue", "tab:cyan", "tab:green", "tab:orange")
        place.bar_label(place.bar(names, heights, color=colours), fmt=write, padding=2)
        place.set(title=title, xlabel=xlabel, ylabel=ylabel)
        place.set_ylim(0, 1.15 * max(heights))
        place.set_xticks(range(len(names)), names, rotation=25, ha="right")
    show(figure)


# ---- a table as a picture


def _table(place, colours, table, rows, columns, write, **bounds):
    """Draw a table whose cells are coloured, and written into."""
    image = place.imshow(colours, aspect="auto", **bounds)
    place.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
    place.set_yticks(range(len(rows)), rows)
    place.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    place.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    place.grid(which="minor", color="white", linewidth=2)
    place.tick_params(which="minor", length=0)
    for (i, j), value in np.ndenumerate(table):
        place.text(j, i, write(value), ha="center", va="center", color="black")
    return image


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
    names = ("refused", "body", "backward", "jvp")
    colours = ListedColormap(["#bbbbbb", "#d55e00", "#9ecae1", "#fdd49e"])
    size = (5.2 + 0.75 * len(columns), 1.9 + 0.35 * len(rows))
    figure, place = plt.subplots(figsize=size, layout="constrained")
    image = _table(
        place,
        table,
        table,
        rows,
        columns,
        lambda rule: f"{rule}" if rule else "",
        cmap=colours,
        vmin=-0.5,
        vmax=3.5,
    )
    bar = figure.colorbar(image, ticks=range(4))
    bar.ax.set_yticklabels(names)
    bar.set_label("rule that ran", labelpad=10)
    place.set(title=title, xlabel=xlabel, ylabel=ylabel)
    show(figure)


def factors(tables, rows, columns):
    """Draw tables of factors side by side, with what is 1 in blue.

    Args:
        tables: The tables by their titles.
        rows: Names of the rows.
        columns: Names of the columns.
    """
    figure, grid = plt.subplots(
        1, len(tables), figsize=(9.5, 3.6), layout="constrained", sharey=True
    )
    colours = ListedColormap(["#fdae91", "#9ecae1"])
    for place, (title, table) in zip(grid, tables.items(), strict=True):
        right = np.abs(table - 1) < 0.01
        bounds = {"cmap": colours, "vmin": 0, "vmax": 1}
        _table(place, right, table, rows, columns, "{:.2f}".format, **bounds)
        place.set(title=title, xlabel="gradient of")
    figure.suptitle("Gradient divided by the right one (1 is right, in blue)")
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
        place.fill_between([0, 256], height, color=GREY, zorder=-1)
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
        place.set(title=title, xlabel="column (count)", ylim=(66, -2), xlim=(-4, 260))
        place.set(xticks=[0, 128, 256], yticks=range(0, 65, 8))
    grid[0].set_ylabel("row in memory (count)")
    bar = figure.colorbar(image, ax=list(grid), ticks=range(8))
    bar.set_label("example of the batch (number)")
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
        place.set_facecolor(GREY)
        owned = np.ma.masked_less(tables[name], 0)
        image = place.imshow(owned, cmap=EIGHT, vmin=-0.5, vmax=7.5, aspect="auto")
        place.set_title(f"{name}: {layout[name]}".replace("PartitionSpec", "P"))
        place.set(xlabel="column (count)", ylabel="row (count)")
    grid[0].set_yticks(range(4))
    figure.colorbar(image, ax=list(grid), ticks=range(8)).set_label("device (number)")
    show(figure)
    return tables


def batches(x, values, slopes):
    """Draw values and derivatives of a batch, lines and dots by turns on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for (name, y), style, colour in zip(values.items(), ("-", "--"), COLOURS):  # noqa: B905
        left.plot(x, y, style, color=colour, label=name)
    colours = [colour for colour in COLOURS for _ in range(2)]
    for i, ((name, y), colour) in enumerate(zip(slopes.items(), colours)):  # noqa: B905
        style = {"marker": "o", "linestyle": ""} if i % 2 else {"linestyle": "-"}
        right.plot(x, y, color=colour, markersize=4, label=name, **style)
    left.set(title="Value", ylabel="value (no unit)", ylim=(-1.3, 2.6))
    right.set(title="Derivative", ylabel="derivative (no unit)", ylim=(-3.5, 6.5))
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
    for row, trains, colour in zip(
        grid, (inputs, hidden), ("tab:gray", "tab:blue"), strict=True
    ):
        for place, train in zip(row, trains, strict=True):
            place.scatter(*np.nonzero(train), s=14, color=colour)
            place.set_xlim(-1, len(train))
    for number, place in enumerate(grid[0]):
        place.set_title(f"class {number}")
    for place in grid[1]:
        place.set_xlabel("time (ms)")
    grid[0, 0].set(ylabel="input channel (number)", yticks=[0, 5, 10])
    grid[1, 0].set_ylabel("hidden neuron (rank)")
    show(figure)
