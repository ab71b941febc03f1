"""The names that are read after a statement, in each case of a branch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from jaxfn.torch._translate.syntax import cst, find, names_read, stored


def outcome(test: Any, assumed: Mapping[str, bool]) -> bool | None:
    """Return the value of a condition, if it was assumed, else None."""
    if isinstance(test, cst.Name):
        return assumed.get(test.value)
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        inner = outcome(test.expression, assumed)
        return None if inner is None else not inner
    return None


def assumptions(function: Any) -> list[dict[str, bool]]:
    """Return all cases of the names that are bound once and choose branches."""
    tests = [node.test for node in find(function, cst.If, cst.IfExp)]
    tests = [getattr(t, "expression", t) for t in tests]
    stores = [param.name.value for param in find(function, cst.Param)]
    for node in find(function, cst.AssignTarget, cst.AugAssign, cst.For):
        stores += stored(node.target) * (2 if isinstance(node, cst.For) else 1)
    found = {t.value for t in tests if isinstance(t, cst.Name)}
    names = sorted(name for name in found if stores.count(name) <= 1)[:3]
    outcomes = itertools.product((True, False), repeat=len(names))
    return [dict(zip(names, values, strict=True)) for values in outcomes]


class Liveness:
    """For each statement of a function, the names that may be read after it."""

    def __init__(self, function: Any, assumed: Mapping[str, bool]) -> None:
        self.after: dict[Any, set[str]] = {}
        self.captured: set[str] = set()
        self._assumed = assumed
        self._block(function.body.body, set())

    def _block(self, body: Iterable[Any], out: set[str]) -> set[str]:
        for statement in reversed(list(body)):
            self.after[statement] = self.after.get(statement, set()) | out
            out = self._before(statement, out)
        return out

    def _inner(self, block: Any, out: set[str]) -> set[str]:
        return out if block is None else self._block(block.body.body, out)

    def _before(self, node: Any, out: set[str]) -> set[str]:
        if isinstance(node, cst.If):
            orelse = node.orelse
            known = outcome(node.test, self._assumed)
            if known is True:
                return self._block(node.body.body, out)
            if known is False and not isinstance(orelse, cst.If):
                return self._inner(orelse, out)
            if isinstance(orelse, cst.If):
                other = self._before(orelse, out)
            else:
                other = self._inner(orelse, out)
            return self._block(node.body.body, out) | other | names_read(node.test)
        if isinstance(node, (cst.For, cst.While)):
            head = node.iter if isinstance(node, cst.For) else node.test
            around = out | names_read(head)
            for _ in range(2):
                around = around | self._block(node.body.body, around)
            return self._inner(node.orelse, around)
        if isinstance(node, cst.With):
            heads = [item.item for item in node.items]
            return self._block(node.body.body, out) | names_read(*heads)
        if isinstance(node, cst.Try):
            every = out | names_read(node)
            for part in (node, *node.handlers, node.orelse, node.finalbody):
                self._inner(part, every)
            return every
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self.captured |= names_read(node)
            return out | names_read(node)
        return self._simple(node, out)

    def _simple(self, node: Any, out: set[str]) -> set[str]:
        if not isinstance(node, cst.SimpleStatementLine):
            return out | names_read(node)
        for small in reversed(node.body):
            if isinstance(small, (cst.Return, cst.Raise)):
                out = set()
            out = (out - set(defined(small))) | names_read(small)
        return out


def defined(small: Any) -> list[str]:
    """Return the names that a statement binds."""
    if isinstance(small, cst.Assign):
        return [n for t in small.targets for n in stored(t.target)]
    return []
