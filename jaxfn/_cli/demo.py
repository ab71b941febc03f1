"""`python -m jaxfn demo`: `jaxfn.check` on the examples, as a matrix.

If all rules are right, a dropped rule does not show. Therefore `broken` makes one rule
wrong: then exactly the cells that use it must fail.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jaxfn._check import CHECKS, CheckResult, check
from jaxfn._examples import EXAMPLES
from jaxfn._function import Function

BROKEN = ("backward", "jvp", "vmap")
"""The rules that can be made wrong."""

COLUMNS = {
    "value": "forward",
    "value under jit": "jit",
    "backward": "grad",
    "jvp": "jvp",
    "vmap": "vmap",
    "vmap of backward": "vmap(grad)",
    "backward of vmap": "grad(vmap)",
    "backward of backward": "grad(grad)",
}
"""The title of each check that has a column."""

# If this check passes, `check` compiles the others together, in half the time.
_ALSO = "backward under jit"

_LEGEND = "-: no forward rule.  refused: backward is marked once_differentiable."
_NOT_RUN = "FAIL*: not run, because it builds on a cell that failed."
_NOT_REFUSED = "expected a refusal, because backward is marked once_differentiable"


@dataclasses.dataclass(frozen=True)
class Cell:
    """The outcome of one check of one Function.

    Attributes:
        function: The name of the class.
        column: The title of the check.
        outcome: "ok", "-", "refused", "FAIL" or "FAIL*".
        message: The error of a cell that failed.
    """

    function: str
    column: str
    outcome: str
    message: str = ""

    @property
    def ok(self) -> bool:
        return not self.outcome.startswith("FAIL")


def cells(broken: str | None = None) -> Iterator[Cell]:
    """Check all examples in float64, on the default device.

    Args:
        broken: The rule to make wrong, one of `BROKEN`; None for right rules.
    """
    left_out = [name for name in CHECKS if name not in (*COLUMNS, _ALSO)]
    for example in EXAMPLES:
        function = break_rule(example.function, broken) if broken else example.function
        report = check(
            function,
            *example.arrays(),
            *example.static,
            reference=example.formula,
            skip=left_out,
            low_precision=None,
        )
        for result in report.results:
            if result.check in COLUMNS:
                yield _cell(function.__name__, result, once=example.once)


def _cell(function: str, result: CheckResult, *, once: bool) -> Cell:
    """Make the outcome of a check one word."""
    column, message = COLUMNS[result.check], result.message
    if message == "no forward rule":
        return Cell(function, column, "-")
    if message.startswith("builds on "):
        return Cell(function, column, "FAIL*")
    outcome = "refused" if message == "refused: once_differentiable" else result.status
    if outcome == ("refused" if once and column == "grad(grad)" else "ok"):
        return Cell(function, column, outcome)
    return Cell(function, column, "FAIL", message or _NOT_REFUSED)


def break_rule(function: Any, rule: str) -> Any:
    """Make one rule of a class wrong; return a class without this rule as it is."""
    if rule == "backward" and function.vjp is not Function.vjp:
        rule = "vjp"
    right = getattr(function, rule)
    if right is getattr(Function, rule):
        return function
    # The factors differ, because the error must show which of the two rules ran.
    scale = 3 if rule == "jvp" else 2

    def wrong(*args: Any) -> Any:
        result = right(*args)
        if rule == "vmap":
            out, dims = result
            return jax.tree.map(lambda x: x + 0.5, out), dims
        return jax.tree.map(lambda x: scale * x, result)

    # `once_differentiable` marks a function by an attribute.
    wrong.__dict__.update(right.__dict__)
    return type(function.__name__, (function,), {rule: staticmethod(wrong)})


def table(found: Sequence[Cell], broken: str | None = None) -> str:
    """Write the cells as a matrix, with the errors and a summary below."""
    device = jax.devices()[0]
    rows: dict[str, list[str]] = {}
    for cell in found:
        rows.setdefault(cell.function, [cell.function]).append(cell.outcome)
    head = ["Function", *dict.fromkeys(cell.column for cell in found)]
    lines = [head, *rows.values()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(x.ljust(n) for x, n in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    text.insert(1, "-" * max(map(len, text)))
    text += ["", _LEGEND]
    if any(cell.outcome == "FAIL*" for cell in found):
        text.append(_NOT_RUN)
    errors = [f"{c.function}, {c.column}: {c.message}" for c in found if c.message]
    if errors:
        text += ["", *errors]
    title = (
        f"The examples of PyTorch's pages on {device.platform} ({device.device_kind}), "
        "checked by jaxfn.check:"
    )
    return "\n".join([title, "", *text, "", _summary(found, broken)])


def _summary(found: Sequence[Cell], broken: str | None) -> str:
    counted = [cell for cell in found if cell.outcome != "-"]
    failed = sum(not cell.ok for cell in counted)
    if broken is None:
        return f"{len(counted) - failed} of {len(counted)} cells are right."
    return (
        f"With a wrong {broken}, {failed} of {len(counted)} cells fail: those that use "
        "this rule."
    )
