"""Which names are read after a statement, and which may share memory."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxfn.torch._translate._expressions import dotted
from jaxfn.torch._translate._infer import Inference
from jaxfn.torch._translate._lib import cst
from jaxfn.torch._translate._loads import loads, names_read, stored
from jaxfn.torch._translate._names import ROWS, VIEWS
from jaxfn.torch._translate._units import cst_params

Memory = frozenset[Any]
NOTHING: Memory = frozenset()
OTHER = "what is not known here"
_FLAT = {"int", "float", "bool", "complex", "none", "str", "dtype", "device"}
# These may give their argument itself.
_SAME = {"to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long"}
_SAME |= {"short", "bool", "cpu", "cuda", "contiguous", "broadcast_to", "positive"}
_SAME |= {"requires_grad_", "resolve_conj", "conj", "as_tensor", "asarray", "to_dense"}
_SAME |= {"broadcast_tensors", "meshgrid", "char", "byte", "expand", "detach"}
_CAST = {"to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long"}
_CAST |= {"short", "bool", "char", "byte"}
_KEEPERS = {"append", "extend", "insert", "add", "update", "save_for_backward"}
_KEEPERS |= {"save_for_forward"}


def outcome(test: Any, assumed: Mapping[str, bool]) -> bool | None:
    """What a condition is, where that was assumed."""
    if isinstance(test, cst.Name):
        return assumed.get(test.value)
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        inner = outcome(test.expression, assumed)
        return None if inner is None else not inner
    return None


def assumptions(function: Any) -> list[dict[str, bool]]:
    """All that the names can be which are bound once and decide between branches."""
    tests = _Tests()
    function.visit(tests)
    names = sorted(n for n in tests.names if tests.stores.count(n) <= 1)[:3]
    outcomes = itertools.product((True, False), repeat=len(names))
    return [dict(zip(names, values, strict=True)) for values in outcomes]


class _Tests(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.stores: list[str] = []

    def _test(self, test: Any) -> None:
        if isinstance(test, cst.UnaryOperation):
            test = test.expression
        if isinstance(test, cst.Name):
            self.names.add(test.value)

    def visit_If(self, node: Any) -> None:
        self._test(node.test)

    def visit_IfExp(self, node: Any) -> None:
        self._test(node.test)

    def visit_Param(self, node: Any) -> None:
        self.stores.append(node.name.value)

    def visit_AssignTarget(self, node: Any) -> None:
        self.stores.extend(stored(node.target))

    def visit_AugAssign(self, node: Any) -> None:
        self.stores.extend(stored(node.target))

    def visit_For(self, node: Any) -> None:
        self.stores.extend(stored(node.target) * 2)


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
    """The names that a statement binds."""
    if isinstance(small, cst.Assign):
        return [n for t in small.targets for n in stored(t.target)]
    return []


@dataclasses.dataclass
class Write:
    """A place where torch writes into memory.

    Attributes:
        node: the call, or the assignment.
        statement: around it.
        memory: what it writes to.
        root: the name that stands for just that memory, if there is one.
        reason: why it can't be a new value; empty if it can.
        back: must the name get the new value, as it is read again?
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
        returns: parameters (or OTHER) whose memory its result may share.
        writes: parameters that it writes to.
    """

    returns: set[str]
    writes: set[str]


class Flow:
    """Memory in one function, statement by statement.

    Args:
        function: its tree.
        infer: what its expressions are.
        summary: of other functions, by the expression that is called.
        may_write: may the function write to this parameter?
        assumed: what conditions are, one case after the other.
    """

    def __init__(
        self,
        function: Any,
        infer: Inference,
        summary: Callable[[Any], Any],
        may_write: Callable[[str], bool],
        assumed: Sequence[Mapping[str, bool]] = ({},),
    ) -> None:
        self._infer, self._summary, self._may_write = infer, summary, may_write
        self.writes: dict[Any, Write] = {}
        self.problems: dict[Any, str] = {}
        self.summary = Summary(set(), set())
        self._statement: Any = None
        for each in assumed:
            self._assumed = each
            self.live = Liveness(function, each)
            self._env: dict[str, Memory] = {}
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
        elif isinstance(node, cst.For):
            found = self._eval(node.iter)
            for _ in range(2):
                before = dict(self._env)
                self._bind(node.target, found)
                self._body(node.body.body)
                self._merge(before)
            self._body(_orelse(node.orelse))
        elif isinstance(node, cst.While):
            for _ in range(2):
                before = dict(self._env)
                self._eval(node.test)
                self._body(node.body.body)
                self._merge(before)
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
        """A function in a function: what it writes to must be its own."""
        before, statement = dict(self._env), self._statement
        for param in cst_params(node.params):
            self._env[param.name.value] = frozenset({OTHER})
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
        value = self._eval(node.value)
        for target in node.targets:
            elements = getattr(target.target, "elements", None)
            values = getattr(node.value, "elements", None)
            if elements and values and len(elements) == len(values):
                for e, v in zip(elements, values, strict=True):
                    self._bind(e.value, self._eval(v.value), node)
            else:
                self._bind(target.target, value, node)

    def _augmented(self, node: Any) -> None:
        value = self._eval(node.value)
        target = node.target
        if isinstance(target, cst.Name):
            kind = self._infer.of(target).kind
            memory = self._env.get(target.value, NOTHING)
            if kind in _FLAT:
                self._env[target.value] = NOTHING
            elif kind == "seq":
                self._env[target.value] = memory | value
            else:
                self._write(node, memory, target.value)
        else:
            self._bind(target, value, node)

    def _bind(self, target: Any, value: Memory, node: Any = None) -> None:
        if isinstance(target, cst.Name):
            self._env[target.value] = value
        elif isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._bind(element.value, value)
        elif isinstance(target, cst.StarredElement):
            self._bind(target.value, value)
        elif isinstance(target, cst.Subscript):
            base = self._eval(target.value)
            if self._infer.of(target.value).kind in ("tensor", "unknown", "mixed"):
                root = target.value
                name = root.value if isinstance(root, cst.Name) else None
                self._write(node, base, name)
            else:
                self._keep(target.value, value)
        elif not self._infer.of(getattr(target, "value", target)).is_tensor:
            self._keep(target.value, value)  # an attribute of a tensor is dropped

    def _keep(self, owner: Any, value: Memory) -> None:
        """An object holds memory from now on."""
        names = dotted(owner)
        if names:
            self._env[names[0]] = self._env.get(names[0], NOTHING) | value

    # ---- expressions

    def _eval(self, node: Any) -> Memory:
        kind = self._infer.of(node).kind
        found = self._memory(node)
        return NOTHING if kind in _FLAT else found

    def _memory(self, node: Any) -> Memory:
        if isinstance(node, cst.Name):
            return self._env.get(node.value, frozenset({OTHER}))
        if isinstance(node, cst.Attribute):
            inner = self._eval(node.value)
            if self._infer.of(node.value).is_tensor:
                return inner if node.attr.value in VIEWS else NOTHING
            return inner | (NOTHING if inner else frozenset({OTHER}))
        if isinstance(node, cst.Subscript):
            return self._subscript(node)
        if isinstance(node, cst.Call):
            return self._call(node)
        if isinstance(node, cst.BinaryOperation):
            both = self._eval(node.left) | self._eval(node.right)
            return both if self._infer.of(node).kind == "seq" else self._fresh(node)
        if isinstance(node, (cst.UnaryOperation, cst.Comparison)):
            for child in node.children:
                if isinstance(child, cst.ComparisonTarget):
                    self._eval(child.comparator)
                elif isinstance(child, cst.BaseExpression):
                    self._eval(child)
            return self._fresh(node)
        if isinstance(node, cst.IfExp):
            self._eval(node.test)
            known = outcome(node.test, self._assumed)
            if known is not None:
                return self._eval(node.body if known else node.orelse)
            return self._eval(node.body) | self._eval(node.orelse)
        if isinstance(node, cst.BooleanOperation):
            return self._eval(node.left) | self._eval(node.right)
        if isinstance(node, (cst.Tuple, cst.List, cst.Set)):
            return self._all(e.value for e in node.elements)
        if isinstance(node, cst.Dict):
            return self._all(e.value for e in node.elements)
        if isinstance(node, (cst.ListComp, cst.GeneratorExp, cst.SetComp)):
            self._bind(node.for_in.target, self._eval(node.for_in.iter))
            return self._eval(node.elt)
        if isinstance(node, cst.StarredElement):
            return self._eval(node.value)
        return NOTHING

    def _all(self, nodes: Iterable[Any]) -> Memory:
        found = NOTHING
        for node in nodes:
            found |= self._eval(node)
        return found

    def _fresh(self, node: Any) -> Memory:
        return frozenset({("new", id(node))})

    def _subscript(self, node: Any) -> Memory:
        base = self._eval(node.value)
        if self._infer.of(node.value).is_tensor:
            kinds = [self._infer.of(i).kind for i in indices(node)]
            if any(k in ("tensor", "seq") for k in kinds):
                return self._fresh(node)
        return base

    def _call(self, node: Any) -> Memory:
        args = [self._eval(a.value) for a in node.args]
        every = frozenset().union(*args)
        func = node.func
        target = self._infer.target(func)
        if target is not None and target.kind == "torch":
            return self._torch(node, target.name, args, every)
        if isinstance(func, cst.Attribute) and target is None:
            return self._method(node, every)
        known = self._summary(func)
        if known is not None:
            return self._own(node, known, args, every)
        if target is not None and target.kind in ("builtin", "unit", "import"):
            return every
        if self._infer.of(func).owned:
            return self._fresh(node)
        return every | {OTHER}

    def _torch(self, node: Any, name: str, args: list[Memory], every: Memory) -> Memory:
        short = name.rpartition(".")[2]
        out = [a for a in node.args if a.keyword and a.keyword.value == "out"]
        if out:
            value = out[0].value
            root = value.value if isinstance(value, cst.Name) else None
            memory = self._eval(value)
            self._write(node, memory, root)
            return memory
        if is_write_name(short) and node.args:
            self._write(node, args[0], root_of(node.args[0].value))
            return args[0]
        if self._is_view(name, short):
            return args[0] if args else NOTHING
        return self._fresh(node)

    def _is_view(self, name: str, short: str) -> bool:
        rows = ROWS.get(name) or ROWS.get(f"torch.{short}", [])
        return short in _SAME or any(r.view for r in rows)

    def _method(self, node: Any, every: Memory) -> Memory:
        func, name = node.func, node.func.attr.value
        receiver = self._eval(func.value)
        kind = self._infer.of(func.value).kind
        if name in _KEEPERS and kind != "tensor":
            self._keep(func.value, every)
            return NOTHING
        if kind != "tensor":
            if self._infer.of(func).owned:
                return self._fresh(node)
            return receiver | every | {OTHER}
        if is_write_name(name):
            self._write(node, receiver, root_of(func.value))
            return receiver
        if name in _CAST:
            before, after = self._infer.of(func.value).dtype, self._infer.of(node).dtype
            if before is not None and after is not None and before != after:
                return self._fresh(node)
        view = self._is_view(f"Tensor.{name}", name)
        return receiver if view else self._fresh(node)

    def _own(
        self, node: Any, known: tuple[Any, Any], args: list[Memory], every: Memory
    ) -> Memory:
        """A call of a function that is carried over."""
        summary, names = known
        by_name = dict(zip(names, args, strict=False))
        for arg, memory in zip(node.args, args, strict=True):
            if arg.keyword is not None:
                by_name[arg.keyword.value] = memory
        for name in summary.writes:
            memory = by_name.get(name, every)
            write = Write(node, self._statement, memory, None)
            self._judge(write)
            if write.reason:
                self.problems[node] = f"it writes to {name}, and {write.reason}"
        found = NOTHING
        for name in summary.returns:
            found |= {OTHER} if name == OTHER else by_name.get(name, every)
        return found | self._fresh(node)

    # ---- writes

    def _write(self, node: Any, memory: Memory, root: str | None) -> None:
        write = Write(node, self._statement, memory, root)
        self._judge(write)
        old = self.writes.get(node)
        if old is not None:
            write.reason = write.reason or old.reason
            write.back = write.back or old.back
        self.writes[node] = write

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


def _elsewhere(statement: Any, node: Any) -> list[str]:
    """Names that a statement reads outside of a call, before it is done."""
    if isinstance(node, (cst.Assign, cst.AugAssign)):
        return []
    inside = set(loads(node))
    return [n.value for n in loads(statement) if n not in inside]


def _small_of(statement: Any, node: Any) -> Any:
    if not isinstance(statement, cst.SimpleStatementLine):
        return statement
    for small in statement.body:
        if small is node or _holds(small, node):
            return small
    return statement


def _holds(tree: Any, node: Any) -> bool:
    return any(child is node or _holds(child, node) for child in tree.children)


def _orelse(block: Any) -> Any:
    if block is None:
        return ()
    return [block] if isinstance(block, cst.If) else block.body.body


def is_write_name(name: str) -> bool:
    """Does a method of this name write to its tensor?"""
    special = name.endswith("__") or name in ("requires_grad_", "retain_grad")
    return name.endswith("_") and not special


def root_of(node: Any) -> str | None:
    """The name that an expression is, but for writes on the way."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if not is_write_name(node.func.attr.value):
            return None
        node = node.func.value
    if isinstance(node, cst.Subscript):
        node = node.value
    return node.value if isinstance(node, cst.Name) else None


def indices(node: Any) -> list[Any]:
    """The expressions in a subscript that are no slices."""
    found = []
    for element in node.slice:
        if isinstance(element.slice, cst.Index):
            value = element.slice.value
            if isinstance(value, cst.Tuple):
                found.extend(e.value for e in value.elements)
            else:
                found.append(value)
    return found
