"""Writes into memory, statement by statement: which may become a new value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxfn.torch._translate.analysis.aliasing import (
    FLAT,
    NOTHING,
    OTHER,
    Aliasing,
    Memory,
)
from jaxfn.torch._translate.analysis.infer import Inference
from jaxfn.torch._translate.analysis.liveness import Liveness, defined, outcome
from jaxfn.torch._translate.syntax import (
    cst,
    cst_params,
    dotted,
    find,
    loads,
    local_names,
    names_read,
)

_SAVED = ["ctx", "saved_tensors"]


@dataclasses.dataclass
class Write:
    """A place at which torch writes into memory.

    Attributes:
        node: The call, or the assignment.
        statement: The statement around it.
        memory: The memory that it writes to.
        root: The name that stands for exactly that memory, if there is one.
        reason: Why it can't be a new value; empty if it can.
        back: Whether the name must get the new value, because it is read again.
    """

    node: Any
    statement: Any
    memory: Memory
    root: str | None
    reason: str = ""
    back: bool = False


@dataclasses.dataclass
class Summary:
    """What a function does with the memory of its arguments.

    Attributes:
        returns: Parameters (or OTHER) whose memory its result may share.
        writes: Parameters that it writes to.
    """

    returns: set[str]
    writes: set[str]


class Flow(Aliasing):
    """Memory in one function, statement by statement.

    Args:
        function: The tree of the function.
        infer: Types of its expressions.
        summary: Returns another function's summary, by the expression that is called.
        may_write: Returns whether the function may write to a parameter.
        assumed: Values of conditions, one case after the other.
    """

    def __init__(
        self,
        function: Any,
        infer: Inference,
        summary: Callable[[Any], Any],
        may_write: Callable[[str], bool],
        assumed: Sequence[Mapping[str, bool]] = ({},),
    ) -> None:
        super().__init__(infer, summary)
        self._may_write = may_write
        once = _times_saved_is_read(function.body.body) == 1
        self._owns_saved = once and not self._keeps_tensors(function)
        self.writes: dict[Any, Write] = {}
        self.problems: dict[Any, str] = {}
        self.summary = Summary(set(), set())
        self._statement: Any = None
        for each in assumed:
            self._assumed = each
            self.live = Liveness(function, each)
            self._env = {}
            for param in cst_params(function.params):
                name = param.name.value
                self._env[name] = frozenset({("the argument", name)})
            self._body(function.body.body)

    # ---- statements

    def _body(self, body: Iterable[Any]) -> None:
        for statement in body:
            self._run(statement)

    def _run(self, node: Any) -> None:
        self._statement = node
        if isinstance(node, cst.If):
            self._eval(node.test)
            arms = [node.body.body, _orelse(node.orelse)]
            known = outcome(node.test, self._assumed)
            self._either(arms if known is None else [arms[0 if known else 1]])
        elif isinstance(node, (cst.For, cst.While)):
            is_for = isinstance(node, cst.For)
            found = self._eval(node.iter) if is_for else NOTHING
            for _ in range(2):
                before = dict(self._env)
                if is_for:
                    self._bind(node.target, found)
                else:
                    self._eval(node.test)
                self._body(node.body.body)
                self._merge(before)
            self._body(_orelse(node.orelse))
        elif isinstance(node, cst.With):
            for item in node.items:
                found = self._eval(item.item)
                if item.asname is not None:
                    self._bind(item.asname.name, found)
            self._body(node.body.body)
        elif isinstance(node, cst.Try):
            blocks = [node.body.body]
            blocks += [h.body.body for h in node.handlers]
            self._either([*blocks, ()])
            self._body(_orelse(node.orelse))
            self._body(_orelse(node.finalbody))
        elif isinstance(node, cst.FunctionDef):
            self._nested(node)
        elif isinstance(node, cst.SimpleStatementLine):
            for small in node.body:
                self._statement = node
                self._small(small)

    def _nested(self, node: Any) -> None:
        """Follow a function in a function, which may write only to its own memory."""
        before, statement = dict(self._env), self._statement
        own = local_names(node)
        before[node.name.value] = self._closed_over(names_read(node) - own)
        # It can't bind names of the outer function, so it may not write to them.
        for name in {*before, *(p.name.value for p in cst_params(node.params))}:
            self._env[name] = frozenset({OTHER})
        self.live.after |= Liveness(node, self._assumed).after
        self._body(node.body.body)
        self._env, self._statement = before, statement

    def _either(self, blocks: list[Any]) -> None:
        start = dict(self._env)
        ends = []
        for block in blocks:
            self._env = dict(start)
            self._body(block)
            ends.append(self._env)
        self._env = ends[0]
        for end in ends[1:]:
            self._merge(end)

    def _merge(self, other: dict[str, Memory]) -> None:
        for name, memory in other.items():
            self._env[name] = self._env.get(name, NOTHING) | memory

    def _small(self, small: Any) -> None:
        if isinstance(small, cst.Assign):
            self._assign(small)
        elif isinstance(small, cst.AnnAssign) and small.value is not None:
            self._bind(small.target, self._eval(small.value))
        elif isinstance(small, cst.AugAssign):
            self._augmented(small)
        elif isinstance(small, cst.Expr):
            self._eval(small.value)
        elif isinstance(small, cst.Return) and small.value is not None:
            self._returned(self._eval(small.value))
        elif isinstance(small, cst.Assert):
            self._eval(small.test)

    def _returned(self, memory: Memory) -> None:
        for m in memory:
            if isinstance(m, tuple) and m[0] == "the argument":
                self.summary.returns.add(m[1])
            elif m == OTHER:
                self.summary.returns.add(OTHER)

    def _assign(self, node: Any) -> None:
        values = getattr(node.value, "elements", None)
        if values is None:
            parts, value = self._saved(node), self._eval(node.value)
        else:  # in `a, b = b, a` all are read before the first is bound
            parts = [self._eval(v.value) for v in values]
            value = NOTHING.union(*parts)
        for target in node.targets:
            elements = getattr(target.target, "elements", ())
            if elements and len(elements) == len(parts):
                for element, part in zip(elements, parts, strict=True):
                    self._bind(element.value, part, node)
            else:
                self._bind(target.target, value, node)

    def _saved(self, node: Any) -> list[Memory]:
        """Return memory of each saved tensor, if backward alone can reach it."""
        elements = getattr(node.targets[0].target, "elements", ())
        alone = self._owns_saved and dotted(node.value) == _SAVED
        if not (alone and self._infer.of(node.value).dense):
            return []
        return [frozenset({("saved", i)}) for i in range(len(elements))]

    def _keeps_tensors(self, function: Any) -> bool:
        """Return whether it may read a tensor from an attribute of ctx."""
        return any(
            names is not None
            and names[0] == "ctx"
            and names[1] not in ("saved_tensors", "needs_input_grad")
            and self._infer.of(node).kind not in (*FLAT, "callable", "unknown")
            for node in find(function, cst.Attribute)
            if (names := dotted(node)) is not None and len(names) == 2
        )

    def _augmented(self, node: Any) -> None:
        value = self._eval(node.value)
        target = node.target
        if isinstance(target, cst.Name):
            kind = self._infer.of(target).kind
            memory = self._env.get(target.value, NOTHING)
            if kind in FLAT:
                self._env[target.value] = NOTHING
            elif kind == "seq":
                self._env[target.value] = memory | value
            else:
                self._write(node, memory, target.value)
        else:
            self._bind(target, value, node)

    # ---- writes

    def _write(self, node: Any, memory: Memory, root: str | None) -> None:
        write = Write(node, self._statement, memory, root)
        self._judge(write)
        old = self.writes.get(node)
        if old is not None:
            write.reason = write.reason or old.reason
            write.back = write.back or old.back
        self.writes[node] = write

    def _calls(
        self, node: Any, names: Iterable[str], memory: Callable[[str], Memory]
    ) -> None:
        for name in names:
            write = Write(node, self._statement, memory(name), None)
            self._judge(write)
            if write.reason:
                self.problems[node] = f"it writes to {name}, and {write.reason}"

    def _shares(self, node: Any, name: str) -> None:
        why = f"it writes to {name}, and another argument may share its memory"
        self.problems.setdefault(node, why)

    def _judge(self, write: Write) -> None:
        for m in write.memory:
            if m == OTHER:
                write.reason = f"it may write to {OTHER}"
            elif m[0] == "the argument":
                self.summary.writes.add(m[1])
                if not self._may_write(m[1]):
                    write.reason = f"it writes to the argument {m[1]}"
        if write.reason:
            return
        small = _small_of(write.statement, write.node)
        after = self.live.after.get(write.statement, set()) | self.live.captured
        after = after - set(defined(small))
        holders = {"ctx", "self", "cls"} & set(self._env)
        for name in sorted(after | holders):
            if not self._env.get(name, NOTHING) & write.memory:
                continue
            if name == write.root:
                write.back = True
            else:
                write.reason = f"{name} may share the memory that it writes to"
        for name in _elsewhere(small, write.node):
            if self._env.get(name, NOTHING) & write.memory:
                write.reason = f"{name} is read in the same statement"


def _times_saved_is_read(body: Iterable[Any]) -> int:
    """Return how often one path reads what was saved, attributes of ctx included."""
    times = 0
    for statement in body:
        if isinstance(statement, cst.If):
            arms = [statement.body.body, _orelse(statement.orelse)]
            times += max(map(_times_saved_is_read, arms))
        else:
            found = [dotted(n) for n in find(statement, cst.Attribute)]
            times += found.count(_SAVED)
    return times


def _elsewhere(statement: Any, node: Any) -> list[str]:
    """Return names that a statement reads outside of a call, before it is done."""
    if isinstance(node, (cst.Assign, cst.AugAssign)):
        return []
    inside = set(loads(node))
    return [n.value for n in loads(statement) if n not in inside]


def _small_of(statement: Any, node: Any) -> Any:
    if not isinstance(statement, cst.SimpleStatementLine):
        return statement
    for small in statement.body:
        if node in find(small, type(node)):
            return small
    return statement


def _orelse(block: Any) -> Any:
    if block is None:
        return ()
    return [block] if isinstance(block, cst.If) else block.body.body
