"""What all parts of a rewriter share: its unit, what it noted, what is left."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxfn.torch._translate import _marks
from jaxfn.torch._translate._expressions import code, fill, paren
from jaxfn.torch._translate._lib import cst
from jaxfn.torch._translate._units import Unit
from jaxfn.torch._translate._writes import Program, Writes


@dataclasses.dataclass
class Left:
    """What was not translated.

    Attributes:
        where: file and line of the original.
        text: the line.
        reason: why not.
    """

    where: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}\n    {self.text}"


class Rewriting(cst.CSTTransformer):
    """A unit that is being rewritten.

    Args:
        unit: the definition.
        program: all units, and what is known of them.
        constants: where values of closures are noted, by name.
    """

    def __init__(self, unit: Unit, program: Program, constants: dict[str, str]) -> None:
        super().__init__()
        self.unit, self.units, self.constants = unit, program.units, constants
        self.infer = program.inference[unit.key]
        self.writes = Writes(unit, program)
        self.program, self.draws = program, program.draws[unit.key]
        self.left: list[Left] = []
        self.frames: list[list[str]] = [[]]
        self.called: set[Any] = set()
        self.alone: set[Any] = set()
        self.followed: set[Any] = set()
        self.parts: dict[Any, int | str] = {}
        self.paired: set[Any] = set()
        self.functions: list[Any] = []
        self.dropped: set[Any] = set()
        self.heads: set[Any] = set()
        self.late: list[str] = []
        self.devices: list[str] = []
        self.chained: set[Any] = set()
        self.single: dict[Any, Any] = {}
        self.pairs: dict[Any, Any] = {}
        self.masked: dict[Any, str] = {}
        self.views: dict[Any, Any] = {}
        self.arguments: dict[Any, Any] = {}

    def problem(self, reason: str) -> None:
        """Note why the statement at hand can't be translated."""
        if reason not in self.frames[-1]:
            self.frames[-1].append(reason)

    def filled(self, template: str, values: Mapping[str, Any]) -> Any:
        """A template with values, to stand anywhere."""
        return paren(fill(template, values))

    # ---- marks

    def note(self, original: Any, reason: str, text: str | None = None) -> Left:
        """Tell of what is left."""
        if text is None:
            text = code(original.with_changes(leading_lines=[])).strip()
        where = f"{self.unit.source.file}:{self.unit.line(original)}"
        return Left(where, text.splitlines()[0], reason)

    def drop(self, original: Any, reason: str) -> None:
        """Tell of what has no meaning in JAX, and is gone."""
        where = f"{self.unit.source.file}:{self.unit.line(original)}"
        self.left.append(Left(where, code(original).strip(), f"dropped: {reason}"))

    def mark(
        self, original: Any, reasons: list[str], text: str | None = None
    ) -> list[Any]:
        """The statement as a comment, and a line that raises."""
        position = self.unit.line(original)
        name = self.unit.source.file
        if text is None:
            text = code(original.with_changes(leading_lines=[])).strip()
        self.left.append(self.note(original, "; ".join(reasons), text))
        return _marks.marked(original, text, reasons, name, position)
