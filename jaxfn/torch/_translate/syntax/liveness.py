"""The places at which names are read after a statement, from the text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxfn.torch._translate.syntax.expressions import cst
from jaxfn.torch._translate.syntax.names import loads, names_read, stored


class Liveness:
    """For each statement of a function, the reads of names that may follow it.

    Attributes:
        after: These reads, by statement; a line of several has each of them.
        captured: Names that inner functions read, at any time.
    """

    def __init__(self, function: Any) -> None:
        self.after: dict[Any, set[Any]] = {}
        self.captured: set[str] = set()
        self._block(function.body.body, set())

    def _block(self, body: Iterable[Any], out: set[Any]) -> set[Any]:
        for statement in reversed(list(body)):
            self.after[statement] = self.after.get(statement, set()) | out
            out = self._before(statement, out)
        return out

    def _inner(self, block: Any, out: set[Any]) -> set[Any]:
        if block is None:
            return out
        return self._block(
            [block] if isinstance(block, cst.If) else block.body.body, out
        )

    def _before(self, node: Any, out: set[Any]) -> set[Any]:
        if isinstance(node, cst.If):
            other = self._inner(node.orelse, out)
            return self._block(node.body.body, out) | other | _reads(node.test)
        if isinstance(node, (cst.For, cst.While)):
            head = node.iter if isinstance(node, cst.For) else node.test
            around = out | _reads(head)
            for _ in range(2):
                around = around | self._block(node.body.body, around)
            return self._inner(node.orelse, around)
        if isinstance(node, cst.With):
            heads = [item.item for item in node.items]
            return self._block(node.body.body, out) | _reads(*heads)
        if isinstance(node, cst.Try):
            every = out | _reads(node)
            for part in (node, *node.handlers, node.orelse, node.finalbody):
                self._inner(part, every)
            return every
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self.captured |= names_read(node)
            return out | _reads(node)
        if isinstance(node, cst.BaseSmallStatement):
            if isinstance(node, (cst.Return, cst.Raise)):
                out = set()
            bound = bound_by(node)
            return {n for n in out if n.value not in bound} | _reads(node)
        if isinstance(node, cst.SimpleStatementLine):
            return self._block(node.body, out)
        return out | _reads(node)


def _reads(*nodes: Any) -> set[Any]:
    return set(loads(*nodes))


def bound_by(statement: Any) -> list[str]:
    """Return the names that an assignment binds."""
    if isinstance(statement, cst.Assign):
        return [n for t in statement.targets for n in stored(t.target)]
    return []
