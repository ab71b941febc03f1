"""The report of `explain`: as data, text, HTML and a plot."""

from __future__ import annotations

import dataclasses
import html
import importlib
from collections.abc import Sequence
from typing import Any

from jaxfn._core import internals, messages, short
from jaxfn._explain.target import Argument, Engine
from jaxfn._explain.trace import Cost, Residual, has_loop
from jaxfn._kernels import Kernel


@dataclasses.dataclass(frozen=True, slots=True)
class Transformation:
    """A call under one transformation of JAX.

    Attributes:
        name: Name of the transformation.
        works: Whether JAX can transform the call.
        how: The rule that runs; the error if it does not work.
    """

    name: str
    works: bool
    how: str


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The report of `jaxfn.explain`. Print it, or show it in a notebook.

    Attributes:
        name: Name of the Function.
        engine: The definition that it becomes in JAX, and why.
        arguments: Arguments of the call, split into arrays and static values.
        outputs: Types of the output arrays.
        transformations: The transformations: whether each works, and how or why not.
        residuals: The residuals of the call; None if they are unknown.
        plain_residuals: The residuals of the same forward without rules; None if JAX
            can't differentiate it.
        forward_jaxpr: Jaxpr of the call; None if it can't be traced.
        backward_jaxpr: Jaxpr of its backward pass.
        forward_cost: Cost of the compiled call. XLA counts the body of a loop once.
        backward_cost: Cost of the compiled backward pass.
        kernels: The kernels that each pass calls: "forward" or "backward", and a kernel
            with its name, kind, and the bytes of its arguments and results.
        notes: The parts that are missing, and why.

    Example:
        >>> import jax, jax.numpy as jnp, jaxfn
        >>> @jaxfn.custom_function
        ... def double(x):
        ...     return 2 * x
        >>> double.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))
        >>> report: jaxfn.Explanation = jaxfn.explain(double, jnp.ones(3))
        >>> report.engine.name, report.residual_bytes
        ('jax.custom_vjp', 0)
    """

    name: str
    engine: Engine
    arguments: tuple[Argument, ...]
    outputs: tuple[Any, ...]
    transformations: tuple[Transformation, ...]
    residuals: tuple[Residual, ...] | None
    plain_residuals: tuple[Residual, ...] | None
    forward_jaxpr: Any
    backward_jaxpr: Any
    forward_cost: Cost | None
    backward_cost: Cost | None
    kernels: tuple[tuple[str, Kernel], ...]
    notes: tuple[str, ...]

    @property
    def residual_bytes(self) -> int | None:
        """The bytes of all residuals, each array once."""
        return _total(self.residuals)

    @property
    def plain_residual_bytes(self) -> int | None:
        """The bytes of the residuals without rules, each array once."""
        return _total(self.plain_residuals)

    def __str__(self) -> str:
        lines = [self.name]
        for title, rows in _tables(self):
            lines += ["", title, *_aligned(rows)]
        for title, jaxpr in _jaxprs(self):
            lines += ["", title, *[f"  {line}" for line in str(jaxpr).splitlines()]]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        # Escaped throughout: the repr of a static argument may hold anything.
        parts = [f"<h3>{html.escape(self.name)}</h3>"]
        for title, rows in _tables(self):
            cells = "".join(
                "<tr>"
                + "".join(
                    f'<td style="text-align:left">{html.escape(x)}</td>' for x in row
                )
                + "</tr>"
                for row in rows
            )
            parts.append(f"<h4>{html.escape(title)}</h4><table>{cells}</table>")
        parts += [
            f"<details><summary>{html.escape(title)}</summary>"
            f"<pre>{html.escape(str(jaxpr))}</pre></details>"
            for title, jaxpr in _jaxprs(self)
        ]
        return "\n".join(parts)

    def plot(self, ax: Any = None) -> Any:
        """Plot the memory of the residuals, and of plain autodiff's.

        Args:
            ax: The matplotlib axes to draw in; new ones if omitted.

        Returns:
            The axes.

        Raises:
            ImportError: Matplotlib is not installed.
            ValueError: There are no residuals, because the Function can't be
                differentiated.
        """
        bars = [
            (name, kept)
            for name, kept in (
                (self.name, self.residuals),
                ("plain autodiff", self.plain_residuals),
            )
            if kept is not None
        ]
        if not bars:
            raise ValueError(
                f"`{self.name}` has no residuals to plot: expected a Function that can "
                "be differentiated. Print the report: its notes give the reason."
            )
        if ax is None:
            ax = _pyplot().subplots(figsize=(8, 0.8 + 0.8 * len(bars)))[1]
        for row, (_, kept) in enumerate(bars):
            left = 0  # each residual is a part of the bar, right of the one before
            for x in kept:
                ax.barh(row, x.nbytes, left=left, edgecolor="white")
                text = f"{x.name}\n{_bytes(x.nbytes)}"
                ax.text(left + x.nbytes / 2, row, text, ha="center", va="center")
                left += x.nbytes
        ax.set_yticks(range(len(bars)), [name for name, _ in bars])
        ax.invert_yaxis()  # matplotlib counts from below; the Function is to be on top
        ax.set_xlabel("bytes saved for the backward pass")
        return ax


def _pyplot() -> Any:
    """Import matplotlib, which jaxfn needs for `plot` alone."""
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError(
            "plot needs matplotlib, which is not installed: pip install "
            "'jaxfn[notebooks]' (or matplotlib)."
        ) from error


def _total(residuals: Sequence[Residual] | None) -> int | None:
    """Add up the bytes; None if the residuals are unknown."""
    return None if residuals is None else sum(x.nbytes for x in residuals)


# ---- tables


Rows = list[tuple[str, ...]]


def _tables(report: Explanation) -> list[tuple[str, Rows]]:
    """Make the tables that have rows, with their titles."""
    engine = report.engine
    tables: list[tuple[str, Rows]] = [
        ("engine", [(engine.name, engine.why)]),
        ("arguments", _arguments(report.arguments)),
        ("outputs", [(short(x),) for x in report.outputs]),
        ("transformations", _transformations(report.transformations)),
        ("refused", _refused(report.transformations)),
        ("residuals", _residuals(report)),
        ("kernels", _kernels(report.kernels)),
        ("cost", _costs(report)),
        ("notes", [(note,) for note in report.notes]),
    ]
    return [(title, rows) for title, rows in tables if rows]


def _arguments(arguments: Sequence[Argument]) -> Rows:
    rows: Rows = []
    for arg in arguments:
        rows += [(label, "array", short(aval)) for label, aval in arg.arrays]
        rows += [(label, "static", _brief(x)) for label, x in arg.static]
    return rows


_REFUSALS = {
    messages.NO_JVP: "needs jvp or generate_jvp_rule",
    internals.FORWARD_MODE_REFUSAL: "needs defjvp or generate_jvp_rule",
    messages.NO_BACKWARD: "needs backward or vjp",
    messages.ONCE: "backward is marked once_differentiable",
    "KernelDerivativeError": "a kernel has no derivative",
}
"""A few words for each error that means a missing rule; the first match counts."""


def _transformations(found: Sequence[Transformation]) -> Rows:
    return [
        (t.name, f"yes ({t.how})" if t.works else f"no ({_in_short(t.how)})")
        for t in found
    ]


def _in_short(error: str) -> str:
    """Name the missing rule, or else the type of the error."""
    known = [short for text, short in _REFUSALS.items() if text in error]
    return known[0] if known else f"raises {error.partition(':')[0]}"


def _refused(found: Sequence[Transformation]) -> Rows:
    """Make a row for each error, with all transformations that raise it."""
    names: dict[str, list[str]] = {}
    for t in found:
        if not t.works:
            names.setdefault(t.how, []).append(t.name)
    return [(f"{', '.join(some)}: {error}",) for error, some in names.items()]


def _brief(x: Any) -> str:
    """Write a static value in one short line."""
    text = " ".join(repr(x).split())
    return text if len(text) <= 40 else f"{text[:37]}..."


def _residuals(report: Explanation) -> Rows:
    """Make a row for each residual, and one for each sum."""
    rows: Rows = [
        (x.name, x.source, short(x.type), _bytes(x.nbytes))
        for x in report.residuals or ()
    ]
    # Show the sums even if there are no residuals: 0 bytes is good news.
    for name, n in (
        ("total", report.residual_bytes),
        ("plain autodiff", report.plain_residual_bytes),
    ):
        if n is not None:
            rows.append((name, "", "", _bytes(n)))
    return rows


def _bytes(n: float) -> str:
    return f"{int(n):,} bytes"


def _kernels(found: Sequence[tuple[str, Kernel]]) -> Rows:
    return [(name, k.kind, k.name, _bytes(k.nbytes)) for name, k in found]


def _costs(report: Explanation) -> Rows:
    """Make a row for each pass whose cost is known."""
    rows: Rows = []
    for name, cost, jaxpr in (
        ("forward", report.forward_cost, report.forward_jaxpr),
        ("backward", report.backward_cost, report.backward_jaxpr),
    ):
        if cost is None or cost.flops is None:  # this backend has no cost analysis
            continue
        loop = " (the body of a loop counts once)" if has_loop(jaxpr) else ""
        flops, functions = f"{cost.flops:,.0f}", f"{cost.transcendentals:,.0f}"
        rows.append(
            (
                name,
                f"{flops} flops",
                f"{functions} transcendentals",
                f"{cost.nbytes:,.0f} bytes read and written{loop}",
            )
        )
    return rows


def _jaxprs(report: Explanation) -> list[tuple[str, Any]]:
    """Return the jaxprs that could be traced, with their titles."""
    found = [
        ("forward jaxpr", report.forward_jaxpr),
        ("backward jaxpr", report.backward_jaxpr),
    ]
    return [(title, jaxpr) for title, jaxpr in found if jaxpr is not None]


def _aligned(rows: Rows) -> list[str]:
    """Write rows as lines with aligned columns."""
    widths = [max(len(x) for x in column) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(x.ljust(n) for x, n in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
