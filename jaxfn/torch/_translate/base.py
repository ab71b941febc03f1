"""What all parts of the rewriter share: notes, marks, and masks."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxfn.torch._translate.infer import Inference, is_elementwise, widens
from jaxfn.torch._translate.observed import ExprType, Observations
from jaxfn.torch._translate.syntax import (
    code,
    cst,
    find,
    indices,
    view_of,
    writes_of,
)
from jaxfn.torch._translate.table import ROWS
from jaxfn.torch._translate.units import Unit

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
    """A transformer that writes a unit in JAX's terms.

    Attributes:
        unit: The definition; `units` has all, by their keys.
        infer: Types of expressions; `facts` has those of the runs, and the writes.
        masks: Subscripts that are boolean masks.
        parents: The node around each node of the original.
        left: What is not translated.
        frames: For each open statement, why it can't be translated.
        written: New calls in the place of writes, by the original ones.
        paired: Calls of which one of two results is taken.
    """

    def __init__(
        self,
        unit: Unit,
        units: Mapping[Any, Unit],
        facts: Observations,
    ) -> None:
        super().__init__()
        self.unit, self.units = unit, units
        self.infer, self.facts = Inference(unit, facts), facts
        self.masks = Masks(self.infer)
        self.parents = unit.names.parents
        self.left: list[Untranslated] = []
        self.frames: list[list[str]] = [[]]
        self.paired: set[Any] = set()
        self.written: dict[Any, Any] = {}

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
        self.problem(reason)
        return []

    # ---- places in the original

    def is_called(self, node: Any) -> bool:
        """Return whether it is the function of a call."""
        around: Any = self.parents.get(node)
        return isinstance(around, cst.Call) and around.func is node

    def is_alone(self, node: Any) -> bool:
        """Return whether nothing uses its value."""
        return isinstance(self.parents.get(node), cst.Expr)

    def is_bound(self, write: Any) -> bool:
        """Return whether the result of a chain of writes is unused, or gets a name."""
        chain = write
        while True:
            call = self.parents.get(self.parents.get(chain))
            if call is None or chain not in [c.func.value for c in writes_of(call)]:
                break
            chain = call
        whole = view_of(writes_of(chain)[-1].func.value) is None
        around: Any = self.parents.get(chain)
        return self.is_alone(chain) or (isinstance(around, cst.Assign) and whole)

    def is_elif(self, node: Any) -> bool:
        """Return whether it is an `if` in the place of an `else`."""
        around: Any = self.parents.get(node)
        return isinstance(around, cst.If) and around.orelse is node

    # ---- marks

    def note(self, original: Any, reason: str, text: str | None = None) -> Untranslated:
        """Return the note for what is not translated."""
        if text is None:
            text = code(original.with_changes(leading_lines=[])).strip()
        where = f"{self.unit.source.file}:{self.unit.source.line(original)}"
        seen, rows = self._seen(original), self._rows(original)
        return Untranslated(where, text.splitlines()[0], reason, seen, rows)

    def _seen(self, original: Any) -> tuple[str, ...]:
        """Return what the runs have shown of the names that a line reads."""
        names = self.unit.names.reads(*_head(original))
        found = {n.value: self.infer.of(n) for n in names}
        return tuple(f"{name}: {x}" for name, x in found.items() if x.kind in _SHOWN)

    def _rows(self, original: Any) -> tuple[str, ...]:
        """Return the rows for the functions and methods of torch that a line calls."""
        calls = [c for node in _head(original) for c in find(node, cst.Call)]
        names = [self.infer.name(call) for call in calls]
        rows = [r for n in names for r in ROWS.get(n) or ROWS.get(n.rstrip("_"), ())]
        return tuple(dict.fromkeys(map(str, rows)))

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
        where = f"{self.unit.source.file}, line {self.unit.source.line(original)}"
        raised = cst.parse_statement(f'raise NotImplementedError("translate: {where}")')
        bound = sorted(self.unit.names.stores(original))
        rest = [cst.parse_statement(f"{name} = ...") for name in bound]
        return [raised.with_changes(leading_lines=leading), *rest]


def commented(said: list[str], text: str) -> list[Any]:
    """Return lines of comments: the reason, and the text of the original."""
    comments = [*said, *(f"#     {t}" for t in text.splitlines())]
    return [cst.EmptyLine(comment=cst.Comment(c.rstrip())) for c in comments]


def _head(statement: Any) -> list[Any]:
    """Return a line, or the parts of a block before its body."""
    names = ("test", "iter", "items", "params")
    parts = [getattr(statement, n) for n in names if hasattr(statement, n)]
    found = [p for part in parts for p in (part if isinstance(part, tuple) else [part])]
    return found if hasattr(statement, "body") and found else [statement]


_KEPT = {"clone", "detach", "to", "float", "double", "type", "contiguous", "type_as"}


class Masks:
    """The subscripts that are boolean masks.

    Attributes:
        axes: For each write, the subscript that gives its mask the missing axes.
    """

    def __init__(self, infer: Inference) -> None:
        self.axes: dict[Any, str] = {}
        self._infer = infer
        self._whole: set[Any] = set()

    def mask(self, subscript: Any) -> Any:
        """Return the mask if it is all that stands in the brackets, else None."""
        found = indices(subscript)
        if len(subscript.slice) != 1 or len(found) != 1:
            return None
        fact = self._infer.of(found[0])
        return found[0] if fact.is_tensor and fact.dtype == "bool" else None

    def is_masked(self, subscript: Any) -> bool:
        """Return whether a mask stands in the brackets."""
        if not self._infer.of(subscript.value).is_tensor:
            return False
        facts = [self._infer.of(i) for i in indices(subscript)]
        return any(f.is_tensor and f.dtype in ("bool", "uint8") for f in facts)

    def read(self, problem: Callable[[str], None], original: Any, updated: Any) -> Any:
        """Return a subscript that is read; `problem` takes reasons for a refusal."""
        if original in self._whole:
            return updated.value
        if self.is_masked(original):
            problem("a read with a mask has no fixed shape: JAX needs jnp.where")
        if self._infer.of(original.value).is_tensor:
            return _with_arrays(updated)
        return updated

    def plan(self, write: Any, target: Any) -> None:
        """Note how to write `x[mask] = value`, if the value is elementwise."""
        if not isinstance(target, cst.Subscript) or not self.is_masked(target):
            return
        mask = self.mask(target)
        x, m = self._infer.of(target.value), self._infer.of(mask)
        if mask is None or x.ndim is None or m.ndim is None or m.ndim > x.ndim:
            return
        found: list[Any] = []
        if self._elementwise(write.value, code(mask), found):
            self._whole.update(found)
            axes = ["..."] + ["None"] * (x.ndim - m.ndim)
            self.axes[write] = "" if m.ndim == x.ndim else f"[{', '.join(axes)}]"

    def _elementwise(self, node: Any, mask: str, found: list[Any]) -> bool:
        """Return whether it is elementwise, and reads everything with this mask."""
        fact = self._infer.of(node)
        if isinstance(node, cst.Subscript) and self.mask(node) is not None:
            found.append(node)
            return code(self.mask(node)) == mask
        if fact.kind in ("int", "float", "bool", "complex"):
            return True
        if fact.is_tensor and fact.shapes and all(s == () for s in fact.shapes):
            return True
        if isinstance(node, cst.BinaryOperation):
            sides = (node.left, node.right)
            return all(self._elementwise(n, mask, found) for n in sides)
        if isinstance(node, cst.UnaryOperation):
            return self._elementwise(node.expression, mask, found)
        if isinstance(node, cst.Call):
            return self._call(node, mask, found)
        return False

    def _call(self, node: Any, mask: str, found: list[Any]) -> bool:
        name, parts = self._infer.name(node), [a.value for a in node.args]
        if name.startswith("Tensor."):
            if node.func.attr.value in _KEPT:
                return self._elementwise(node.func.value, mask, found)
            parts.append(node.func.value)
        each = [self._elementwise(part, mask, found) for part in parts]
        return is_elementwise(name) and all(each)


def _with_arrays(updated: Any) -> Any:
    """Replace lists by arrays: torch takes lists as indices, JAX doesn't."""
    changed = []
    for element in updated.slice:
        index = element.slice
        if isinstance(index, cst.Index) and isinstance(index.value, cst.List):
            value = cst.parse_expression(f"jnp.array({code(index.value)})")
            element = element.with_changes(slice=cst.Index(value))
        changed.append(element)
    return updated.with_changes(slice=changed)
