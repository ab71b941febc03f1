"""Runs of the original, in which every expression says what it was."""

from __future__ import annotations

import contextlib
import enum
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxfn.torch._lib import torch
from jaxfn.torch._translate._expressions import dotted
from jaxfn.torch._translate._facts import UNKNOWN, Fact
from jaxfn.torch._translate._lib import cst
from jaxfn.torch._translate._units import Unit, is_for_onnx
from jaxfn.torch._translate._visitors import NoImports, Targets

# These look at the frame that calls them.
_FRAMES = {"super", "locals", "globals", "vars", "dir", "eval", "exec"}
_SEEN = (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.BinaryOperation)
_SEEN += (cst.UnaryOperation, cst.Comparison, cst.IfExp, cst.Tuple, cst.List)


class Facts:
    """What was seen of each expression."""

    def __init__(self) -> None:
        self._found: dict[Any, Fact] = {}
        self._nodes: list[Any] = []

    def number(self, node: Any) -> int:
        """A number for an expression."""
        self._nodes.append(node)
        return len(self._nodes) - 1

    def see(self, i: int, value: Any) -> Any:
        """Note what an expression is, and hand it on."""
        self._note(self._nodes[i], _fact(value))
        return value

    def watch(self, i: int, function: Any) -> Any:
        """Note whether what a function returns shares memory with its arguments."""
        node = self._nodes[i]

        def call(*args: Any, **kwargs: Any) -> Any:
            before = _memory((args, kwargs))
            found = function(*args, **kwargs)
            after = _memory(found)
            owned = before is not None and after is not None and not before & after
            self._note(node.func, Fact("callable", owned=owned))
            return found

        return call

    def _note(self, node: Any, fact: Fact) -> None:
        old = self._found.get(node)
        self._found[node] = fact if old is None else old.joined(fact)

    def of(self, node: Any) -> Fact:
        """What an expression was."""
        return self._found.get(node, UNKNOWN)

    def was_run(self, node: Any) -> bool:
        """Was it evaluated?"""
        return node in self._found


def _fact(value: Any) -> Fact:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return Fact("tensor", dtype, (tuple(value.shape),))
    for kind in (bool, int, float, complex, str):
        if isinstance(value, kind):
            return Fact(kind.__name__, value=value)
    if value is None:
        return Fact("none")
    if isinstance(value, (tuple, list)):
        return Fact("seq", value=_items(value))
    if isinstance(value, torch.dtype):
        return Fact("dtype")
    if isinstance(value, torch.device):
        return Fact("device")
    return Fact("callable" if callable(value) else "other")


def _items(value: Any) -> Any:
    """The items, where all are numbers."""
    if all(isinstance(x, (int, float)) for x in value):
        return tuple(value)
    return None


def _memory(value: Any) -> set[int] | None:
    """Where the tensors are; None where that can't be told (in `torch.func`)."""
    try:
        return {x.untyped_storage().data_ptr() for x in _tensors(value)}
    except RuntimeError:
        return None


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, (tuple, list)):
        for x in value:
            yield from _tensors(x)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


class _Instrument(Targets, NoImports, cst.CSTTransformer):
    """Every expression passes through `see`."""

    def __init__(self, facts: Facts, unit: Unit, names: Mapping[Any, str]) -> None:
        super().__init__()
        self._facts, self._unit, self._names = facts, unit, names
        self._skip: set[Any] = set()
        self._called: set[Any] = set()

    # ---- what is no expression to be seen

    def _store(self, target: Any) -> None:
        self._skip.add(target)
        for element in getattr(target, "elements", ()):
            self._store(element.value)
        if isinstance(target, cst.StarredElement):
            self._store(target.value)

    def visit_Del(self, node: Any) -> None:
        self._store(node.target)

    def visit_FunctionDef(self, node: Any) -> bool:
        self._skip.add(node.name)
        return not is_for_onnx(node)

    def visit_ClassDef(self, node: Any) -> None:
        self._skip.add(node.name)
        for base in node.bases:
            self._skip.add(base.value)

    def visit_Param(self, node: Any) -> None:
        self._skip.add(node.name)

    def visit_Arg(self, node: Any) -> None:
        self._skip.add(node.keyword)

    def visit_Attribute(self, node: Any) -> None:
        self._skip.add(node.attr)

    def visit_Call(self, node: Any) -> None:
        self._skip.add(node.func)
        self._called.add(node.func)

    def visit_Decorator(self, node: Any) -> bool:
        return False

    def visit_Annotation(self, node: Any) -> bool:
        return False

    def visit_Global(self, node: Any) -> bool:
        return False

    def visit_Nonlocal(self, node: Any) -> bool:
        return False

    # ---- what is

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = super().on_leave(original_node, updated_node)
        if isinstance(original_node, cst.FunctionDef):
            return updated.with_changes(
                decorators=[d for d in updated.decorators if self._stays(d)]
            )
        if not isinstance(original_node, _SEEN):
            return updated
        target = self._unit.references.get(original_node)
        is_own = isinstance(original_node, cst.Name) and original_node in self._skip
        called = original_node in self._called
        if target is not None and target.kind == "unit" and (called or not is_own):
            updated = cst.Name(self._names[_key(target)])
        if isinstance(original_node, cst.Call):
            updated = self._watched(original_node, updated)
        if original_node in self._skip:
            return updated
        return self._call("__see__", original_node, updated)

    def _call(self, name: str, node: Any, value: Any) -> Any:
        if isinstance(value, (cst.Tuple, cst.GeneratorExp)) and not value.lpar:
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        number = cst.Integer(str(self._facts.number(node)))
        return cst.Call(cst.Name(name), [cst.Arg(number), cst.Arg(value)])

    def _watched(self, original: Any, updated: Any) -> Any:
        target = self._unit.references.get(original.func)
        if target is not None and target.kind in ("torch", "builtin"):
            return updated
        names = dotted(original.func)
        if names is None or names[0] in _FRAMES:
            return updated
        return updated.with_changes(
            func=self._call("__watch__", original, updated.func)
        )

    def _stays(self, decorator: Any) -> bool:
        node = decorator.decorator
        node = node.func if isinstance(node, cst.Call) else node
        target = self._unit.references.get(node)
        return not (target is not None and is_compiler(target.name))


def is_compiler(name: str) -> bool:
    """Does a decorator only say how to compile?"""
    starts = ("torch.jit", "torch.compile", "torch._dynamo", "torch._disable_dynamo")
    return name.startswith(starts)


def _key(target: Any) -> Any:
    return target.source.name, target.path


class Original:
    """The units of a translation, running in torch, with every expression seen."""

    def __init__(self, units: Mapping[Any, Unit]) -> None:
        self.facts = Facts()
        self._units = units
        self._names = {key: f"__unit_{i}__" for i, key in enumerate(units)}
        for unit in units.values():
            for target in unit.references.values():
                if target.kind == "unit" and _key(target) not in self._names:
                    self._names[_key(target)] = f"__unit_{len(self._names)}__"
        self._spaces: dict[str, dict[str, Any]] = {}
        values = {_key(t): t.value for u in units.values() for t in _targets(u)}
        self._made = {self._names[k]: v for k, v in values.items() if k in self._names}
        for unit in _in_order(units):
            if isinstance(unit.value, enum.EnumMeta):
                self._made[self._names[unit.key]] = unit.value  # members are compared
            else:
                self._define(unit)

    def _space(self, unit: Unit) -> dict[str, Any]:
        name = unit.source.name
        if name not in self._spaces:
            see, watch = self.facts.see, self.facts.watch
            self._spaces[name] = {
                **unit.source.namespace,
                "__see__": see,
                "__watch__": watch,
            }
        return self._spaces[name]

    def _define(self, unit: Unit) -> None:
        space = self._space(unit)
        space.update(unit.closure)
        node = unit.node.visit(_Instrument(self.facts, unit, self._names))
        if isinstance(node, cst.SimpleStatementLine):
            node = node.with_changes(leading_lines=[])
        # Annotations need no meaning here.
        text = "from __future__ import annotations\n" + cst.Module([node]).code
        space.update(self._made)
        code = compile(text, f"<{unit.source.name}>", "exec", dont_inherit=True)
        exec(code, space)
        self._made[self._names[unit.key]] = space[unit.path[-1]]
        for other in self._spaces.values():
            other.update(self._made)

    def value(self, unit: Unit) -> Any:
        """The unit, as it runs here."""
        return self._made[self._names[unit.key]]


def _targets(unit: Unit) -> list[Any]:
    return [t for t in unit.references.values() if t.kind == "unit"]


def _in_order(units: Mapping[Any, Unit]) -> list[Unit]:
    """What a definition needs comes before it, where there is no circle."""
    found: dict[Any, Unit] = {}

    def add(key: Any, path: tuple[Any, ...]) -> None:
        if key in found or key in path or key not in units:
            return
        for other in units[key].needs:
            add(other, (*path, key))
        found[key] = units[key]

    for key in units:
        add(key, ())
    return list(found.values())


in_order = _in_order


def differentiated(args: Sequence[Any]) -> list[bool]:
    """Tensors that require grad; if none does, all that can."""
    dense = [isinstance(x, torch.Tensor) and x.layout is torch.strided for x in args]
    if any(d and x.requires_grad for d, x in zip(dense, args, strict=True)):
        return [d and x.requires_grad for d, x in zip(dense, args, strict=True)]
    return [
        d and (x.is_floating_point() or x.is_complex())
        for d, x in zip(dense, args, strict=True)
    ]


def leaves(args: Sequence[Any]) -> list[Any]:
    """Copies of arguments, with tensors that require grad."""
    return [
        x.detach().clone().requires_grad_(diff)
        if isinstance(x, torch.Tensor) and x.layout is torch.strided
        else dict(x)
        if isinstance(x, dict)
        else x
        for x, diff in zip(args, differentiated(args), strict=True)
    ]


def run(cls: Any, args: Sequence[Any]) -> None:
    """Forward and backward of a class, as torch runs them."""
    given = leaves(args)
    torch.manual_seed(0)
    out = cls.apply(*[x * 1 if _needs(x) else x for x in given])
    outs = [x for x in (out if isinstance(out, tuple) else (out,)) if _needs(x)]
    if outs:
        wanted = [x for x in given if _needs(x)]
        ones = [torch.ones_like(x) for x in outs]
        torch.autograd.grad(outs, wanted, ones, allow_unused=True)


def _needs(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What torch warns of in the original is no news of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


Runner = Callable[[Any, Sequence[Any]], None]
