"""The parameters that a kernel may write to, from its text.

It is for launches that no run has reached. `jaxfn.triton_call` finds out from the
compiled kernel what is written, and raises if the translation says something else.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

_STORES = {"store", "atomic_add", "atomic_max", "atomic_min", "atomic_xchg"}
_STORES |= {"atomic_cas", "atomic_and", "atomic_or", "atomic_xor"}
_POINTERS = {"make_block_ptr", "make_tensor_descriptor", "advance", "where", "to"}
_POINTERS |= {"multiple_of", "max_contiguous", "broadcast_to", "reshape", "cast"}


def written_in(kernel: Any, seen: tuple[Any, ...] = ()) -> set[str]:
    """Return the parameters from which the pointers of its stores are made."""
    while not hasattr(kernel, "src") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    function = getattr(kernel, "fn", None)
    if function is None or kernel in seen:
        return set()
    tree: Any = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    stores = _Stores(function.__globals__, (*seen, kernel))
    constants = [a.arg for a in tree.args.args if "constexpr" in ast.dump(a)]
    names = [a.arg for a in tree.args.args if a.arg not in constants]
    stores.sources = {name: {name} for name in names}
    for _ in range(3):  # until loops and branches have handed on their pointers
        for statement in tree.body:
            stores.visit(statement)
    return stores.written


class _Stores(ast.NodeVisitor):
    """A visitor that follows parameters into pointers."""

    def __init__(self, names: dict[str, Any], seen: tuple[Any, ...]) -> None:
        self._names, self._seen = names, seen
        self.sources: dict[str, set[str]] = {}
        self.written: set[str] = set()

    def _of(self, node: Any) -> set[str]:
        """Return the parameters to which a value may point."""
        if isinstance(node, ast.Name):
            return self.sources.get(node.id, set())
        parts: list[Any] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            parts = [node.left, node.right]
        elif isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        elif isinstance(node, ast.Call) and _name(node.func) in _POINTERS:
            parts = [*node.args, *(k.value for k in node.keywords)]
            parts += [node.func.value] if isinstance(node.func, ast.Attribute) else []
        elif isinstance(node, (ast.Tuple, ast.List)):
            parts = node.elts
        elif isinstance(node, ast.Subscript):
            parts = [node.value]
        return set().union(*map(self._of, parts))

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self._bind(target, self._of(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        self._bind(node.target, self._of(node.value))

    def _bind(self, target: Any, found: set[str]) -> None:
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                self.sources[name.id] = self.sources.get(name.id, set()) | found

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = _name(node.func)
        called = self._names.get(name) if isinstance(node.func, ast.Name) else None
        if name in _STORES:
            pointers = node.args[:1] or [k.value for k in node.keywords[:1]]
            self.written |= set().union(*map(self._of, pointers))
        elif called is not None and hasattr(called, "arg_names"):
            given = dict(zip(called.arg_names, node.args, strict=False))
            given |= {k.arg: k.value for k in node.keywords if k.arg}
            for parameter in written_in(called, self._seen) & set(given):
                self.written |= self._of(given[parameter])


def _name(node: Any) -> str:
    return getattr(node, "attr", None) or getattr(node, "id", "")
