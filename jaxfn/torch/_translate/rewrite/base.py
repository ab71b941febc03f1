"""The state that all parts of a rewriter share."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from jaxfn.torch._translate.analysis import Inference, Masks, widens
from jaxfn.torch._translate.observe import ExprType, Observations
from jaxfn.torch._translate.source import Unit
from jaxfn.torch._translate.syntax import (
    code,
    cst,
    fill,
    find,
    loads,
    paren,
    stored_names,
)
from jaxfn.torch._translate.table import ROWS

_TENSORS = ("tensor", "unknown", "mixed")
_SHOWN = ("tensor", "array", "int", "float", "bool", "complex", "str", "none", "seq")


@dataclasses.dataclass(frozen=True)
class Untranslated:
    """A line that was not translated.

    Attributes:
        where: File and line of the original.
        text: The line.
        reason: The reason.
        seen: Names that the line reads, each with the dtype and shapes, or the value,
            that it had in the runs.
        rows: Rows of the table for the operations of torch in it.
    """

    where: str
    text: str
    reason: str
    seen: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}\n    {self.text}"


class Rewriting(cst.CSTTransformer):
    """A unit that is being rewritten."""

    def __init__(
        self,
        unit: Unit,
        units: Mapping[Any, Unit],
        facts: Observations,
        constants: dict[str, str],
    ) -> None:
        super().__init__()
        self.unit, self.units, self.constants = unit, units, constants
        self.infer, self.facts = Inference(unit, facts), facts
        self.masks = Masks(self.infer)
        self.left: list[Untranslated] = []
        self.frames: list[list[str]] = [[]]
        self.called: set[Any] = set()
        self.operands: set[Any] = set()
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
        self.left_before: list[int] = []
        self.comments: set[Any] = set()
        self.masked: dict[Any, str] = {}
        self.views: dict[Any, Any] = {}
        self.arguments: dict[Any, Any] = {}

    def problem(self, reason: str) -> None:
        """Note why the current statement can't be translated."""
        if reason not in self.frames[-1]:
            self.frames[-1].append(reason)

    def check_dtype(self, facts: Sequence[ExprType], result: ExprType) -> None:
        """Refuse a 0-d tensor by which JAX would widen the result."""
        scalars = [f for f in facts if f.is_tensor and f.shapes == ((),)]
        others = any(f.dtype != result.dtype for f in scalars)
        if others and widens(facts, result.dtype):
            self.problem(f"JAX would not keep {result.dtype}: cast the 0-d tensor")

    def check_kept(self, written: ExprType, others: Sequence[ExprType]) -> None:
        """Refuse a write by which JAX would change the dtype of what is written to."""
        if written.is_tensor and widens([written, *others], written.dtype):
            self.problem(f"JAX would not keep {written.dtype} in this write")

    def refuse(self, reason: str) -> list[Any]:
        """Mark the current line: no statements take its place."""
        self.late.append(reason)
        return []

    def filled(self, template: str, values: Mapping[str, Any]) -> Any:
        """Return a template with values, to stand anywhere."""
        return paren(fill(template, values))

    # ---- marks

    def note(self, original: Any, reason: str, text: str | None = None) -> Untranslated:
        """Return the note for what is not translated."""
        if text is None:
            text = code(original.with_changes(leading_lines=[])).strip()
        where = f"{self.unit.source.file}:{self.unit.line(original)}"
        seen, rows = self._seen(original), self._rows(original)
        return Untranslated(where, text.splitlines()[0], reason, seen, rows)

    def _seen(self, original: Any) -> tuple[str, ...]:
        """Return what the runs have shown of the names that a line reads."""
        found = {n.value: self.infer.of(n) for n in loads(*_head(original))}
        return tuple(f"{name}: {x}" for name, x in found.items() if x.kind in _SHOWN)

    def _rows(self, original: Any) -> tuple[str, ...]:
        """Return the rows for the functions and methods of torch that a line calls."""
        found: list[str] = []
        for call in (c for node in _head(original) for c in find(node, cst.Call)):
            target = self.unit.references.get(call.func)
            name = target.name if target is not None and target.kind == "torch" else ""
            is_method = isinstance(call.func, cst.Attribute) and target is None
            if is_method and self.infer.of(call.func.value).kind in _TENSORS:
                name = f"Tensor.{call.func.attr.value}"
            found.extend(map(str, ROWS.get(name) or ROWS.get(name.rstrip("_"), ())))
        return tuple(dict.fromkeys(found))

    def drop(self, original: Any, reason: str) -> None:
        """Note that the code is dropped, because it has no meaning in JAX."""
        text = code(original).strip()
        self.left.append(self.note(original, f"dropped: {reason}", text))

    def mark(
        self, original: Any, reasons: list[str], text: str | None = None
    ) -> list[Any]:
        """Return the statement as a comment, a line that raises, and its bindings."""
        if text is None:
            text = code(original.with_changes(leading_lines=[])).strip()
        self.left.append(self.note(original, "; ".join(reasons), text))
        said = textwrap.wrap("translate: " + "; ".join(reasons), 76)
        before = getattr(original, "leading_lines", ())
        leading = [*before, *commented([f"# {t}" for t in said], text)]
        where = f"{self.unit.source.file}, line {self.unit.line(original)}"
        raised = cst.parse_statement(f'raise NotImplementedError("translate: {where}")')
        bound = sorted(stored_names([original]))
        rest = [cst.parse_statement(f"{name} = ...") for name in bound]
        return [raised.with_changes(leading_lines=leading), *rest]


def _head(statement: Any) -> list[Any]:
    """Return a line, or the parts of a block before its body."""
    names = ("test", "iter", "items", "params")
    parts = [getattr(statement, n) for n in names if hasattr(statement, n)]
    found = [p for part in parts for p in (part if isinstance(part, tuple) else [part])]
    return found if hasattr(statement, "body") and found else [statement]


def commented(said: list[str], text: str) -> list[Any]:
    """Return lines of comments: the reason, and the text of the original."""
    comments = [*said, *(f"#     {t}" for t in text.splitlines())]
    return [cst.EmptyLine(comment=cst.Comment(c.rstrip())) for c in comments]
