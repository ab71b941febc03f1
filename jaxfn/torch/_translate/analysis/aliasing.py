"""The memory that an expression may share."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxfn.torch._translate.analysis.infer import Inference
from jaxfn.torch._translate.analysis.liveness import outcome
from jaxfn.torch._translate.syntax import (
    code,
    cst,
    dotted,
    indices,
    keywords,
    names_read,
)
from jaxfn.torch._translate.table import ROWS, VIEWS

Memory = frozenset[Any]
NOTHING: Memory = frozenset()
OTHER = "unknown memory"
FLAT = {"int", "float", "bool", "complex", "none", "str", "dtype", "device"}
# These may return their argument itself.
SAME = {"to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long"}
SAME |= {"short", "bool", "cpu", "cuda", "contiguous", "broadcast_to", "positive"}
SAME |= {"requires_grad_", "resolve_conj", "conj", "as_tensor", "asarray", "to_dense"}
SAME |= {"numpy", "from_numpy"}
SAME |= {"einsum"}  # of one operand it may be a view
SAME |= {"broadcast_tensors", "meshgrid", "char", "byte", "expand", "detach"}
_CAST = {"to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long"}
_CAST |= {"short", "bool", "char", "byte"}
_KEEPERS = {"append", "extend", "insert", "add", "update", "save_for_backward"}
_KEEPERS |= {"save_for_forward"}


class Aliasing(abc.ABC):
    """The memory of names and of expressions."""

    def __init__(self, infer: Inference, summary: Callable[[Any], Any]) -> None:
        self._infer, self._summary = infer, summary
        self._env: dict[str, Memory] = {}
        self._assumed: Mapping[str, bool] = {}

    @abc.abstractmethod
    def _write(self, node: Any, memory: Memory, root: str | None) -> None:
        """Note that torch writes to memory here."""

    @abc.abstractmethod
    def _calls(
        self, node: Any, names: Iterable[str], memory: Callable[[str], Memory]
    ) -> None:
        """Note a call of a function that writes to these of its parameters."""

    @abc.abstractmethod
    def _shares(self, node: Any, name: str) -> None:
        """Note a call that gives memory twice, once to be written to."""

    # ---- bindings

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
        """Note that an object refers to memory from now on."""
        names = dotted(owner)
        if names:
            self._env[names[0]] = self._env.get(names[0], NOTHING) | value

    # ---- expressions

    def _eval(self, node: Any) -> Memory:
        kind = self._infer.of(node).kind
        found = self._memory(node)
        return NOTHING if kind in FLAT else found

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
            return self._comprehension(node)
        if isinstance(node, cst.StarredElement):
            return self._eval(node.value)
        if isinstance(node, cst.NamedExpr):
            found = self._eval(node.value)
            self._bind(node.target, found)
            return found
        return self._closed_over(names_read(node))

    def _comprehension(self, node: Any) -> Memory:
        loop = node.for_in
        while loop is not None:
            self._bind(loop.target, self._eval(loop.iter))
            for condition in loop.ifs:
                self._eval(condition.test)
            loop = loop.inner_for_in
        return self._eval(node.elt)

    def _closed_over(self, names: Iterable[str]) -> Memory:
        """Return all memory of these names, which a lambda may close over."""
        return NOTHING.union(*(self._env.get(name, NOTHING) for name in names))

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
        owned = self._infer.of(func).owned
        if target is not None and target.kind == "import" and owned:
            return self._fresh(node)
        if target is not None and target.kind in ("builtin", "unit", "import"):
            return every
        if owned:
            return self._fresh(node)
        return every | {OTHER}

    def _torch(self, node: Any, name: str, args: list[Memory], every: Memory) -> Memory:
        short = name.rpartition(".")[2]
        value = keywords(node).get("out")
        if value is not None:
            root = value.value if isinstance(value, cst.Name) else None
            memory = self._eval(value)
            self._write(node, memory, root)
            return memory
        if node.args and (is_write_name(short) or is_in_place(node)):
            self._write(node, args[0], root_of(node.args[0].value))
            return args[0]
        if self._is_view(name, short):
            return every if short == "einsum" else args[0] if args else NOTHING
        return self._fresh(node)

    def _is_view(self, name: str, short: str) -> bool:
        rows = ROWS.get(name) or ROWS.get(f"torch.{short}", [])
        return short in SAME or any(r.view for r in rows)

    def _method(self, node: Any, every: Memory) -> Memory:
        func, name = node.func, node.func.attr.value
        receiver, owner = self._eval(func.value), self._infer.of(func.value)
        kind = owner.kind
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
        """Return the memory of a call of a function that is carried over."""
        summary, names = known
        by_name = dict(zip(names, args, strict=False))
        for arg, memory in zip(node.args, args, strict=True):
            if arg.keyword is not None:
                by_name[arg.keyword.value] = memory
        # A parameter that is not given has its default, which is no tensor.
        rest = every if any(arg.star for arg in node.args) else NOTHING
        self._calls(node, summary.writes, lambda name: by_name.get(name, rest))
        for name in summary.writes & set(by_name):
            others = [memory for other, memory in by_name.items() if other != name]
            if by_name[name] & NOTHING.union(*others):
                self._shares(node, name)
        found = NOTHING
        for name in summary.returns:
            found |= {OTHER} if name == OTHER else by_name.get(name, rest)
        return found | self._fresh(node)


def is_write_name(name: str) -> bool:
    """Return whether a method of this name writes to its tensor."""
    special = name.endswith("__") or name in ("requires_grad_", "retain_grad")
    return name.endswith("_") and not special


def is_in_place(call: Any) -> bool:
    """Return whether the call has `inplace=True`."""
    inplace = keywords(call).get("inplace")
    return inplace is not None and dotted(inplace) == ["True"]


def writes_of(node: Any) -> list[Any]:
    """Return the calls in a chain of writes, `x.mul_(2).add_(1)`, last one first."""
    found: list[Any] = []
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if not is_write_name(node.func.attr.value):
            break
        found.append(node)
        node = node.func.value
    return found


def view_of(node: Any) -> str | None:
    """Return the name of which an expression is a part that shares its memory."""
    if isinstance(node, cst.Subscript):
        return node.value.value if isinstance(node.value, cst.Name) else None
    return diagonal_of(node)


def root_of(node: Any) -> str | None:
    """Return the name that an expression is, or is a part of, without its writes."""
    writes = writes_of(node)
    if writes:
        node = writes[-1].func.value
    return node.value if isinstance(node, cst.Name) else view_of(node)


_LAST = {"offset": "0", "dim1": "-2", "dim2": "-1"}


def diagonal_of(node: Any) -> str | None:
    """Return the name of which this is the main diagonal, in its last two axes."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    if node.func.attr.value != "diagonal":
        return None
    values = [a.value for a in node.args if a.keyword is None]
    said = {name: code(value) for name, value in keywords(node).items()}
    x = values.pop(0) if dotted(node.func.value) == ["torch"] else node.func.value
    said |= dict(zip(_LAST, map(code, values), strict=False))
    known = {"offset": "0", **said} == _LAST
    return x.value if known and isinstance(x, cst.Name) else None
