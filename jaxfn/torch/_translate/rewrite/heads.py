"""Heads of definitions: decorators and annotations, in JAX's terms or gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxfn.torch._base import torch
from jaxfn.torch._translate.observe import is_compiler
from jaxfn.torch._translate.rewrite.base import Rewriting
from jaxfn.torch._translate.source import Unit, key_of
from jaxfn.torch._translate.syntax import code, cst

_SAME = {
    "torch.autograd.function.once_differentiable": "jaxfn.once_differentiable",
    "torch.amp.custom_fwd": "jaxfn.amp.custom_fwd",
    "torch.amp.custom_bwd": "jaxfn.amp.custom_bwd",
    "torch.cuda.amp.custom_fwd": "jaxfn.amp.custom_fwd",
    "torch.cuda.amp.custom_bwd": "jaxfn.amp.custom_bwd",
}
_AMP = {
    torch.amp.custom_fwd: 'jaxfn.amp.custom_fwd(device_type="cuda")',
    torch.amp.custom_bwd: 'jaxfn.amp.custom_bwd(device_type="cuda")',
}
"""Partial calls of these, by which packages name their device."""
_NOTHING = {"torch.no_grad", "torch.inference_mode", "torch.enable_grad"}
_NOTHING |= {"torch.autograd.no_grad", "torch.compiler.disable"}


def decorators(rewriter: Rewriting, original: Any) -> dict[str, Any]:
    """Return the decorators of a class or function that mean something in JAX."""
    is_class = isinstance(original, cst.ClassDef)
    found = []
    for decorator in original.decorators:
        text = code(decorator.decorator)
        if not (is_class and text in ("staticmethod", "classmethod")):
            kept = _decorator(rewriter, decorator, original)
            if kept is not None:
                found.append(kept)
    return {"decorators": found}


def _decorator(rewriter: Rewriting, decorator: Any, original: Any) -> Any:
    node = decorator.decorator
    called = isinstance(node, cst.Call)
    given = node.args if called else ()
    target = rewriter.unit.references.get(node.func if called else node)
    if target is None or target.kind in ("builtin", "import"):
        return decorator
    full = _full(target)
    if full in _NOTHING or is_compiler(full):
        return None
    if full in _SAME:
        args = [a.with_changes(value=a.value.visit(rewriter)) for a in given]
        text = _SAME[full] + ('(device_type="cuda")' if "cuda" in full else "()")
        call: Any = cst.parse_expression(text)
        bare = not called and not call.args
        call = call.with_changes(args=[*call.args, *args])
        return decorator.with_changes(decorator=call.func if bare else call)
    amp = getattr(target.value, "func", None)
    if amp in _AMP:
        return decorator.with_changes(decorator=cst.parse_expression(_AMP[amp]))
    if not _is_transparent(_decorated(rewriter, original), original):
        rewriter.problem(f"the decorator {code(node)}")
    return None


def _decorated(rewriter: Rewriting, original: Any) -> Any:
    """Return the function or class that the decorators made."""
    value = rewriter.unit.value
    if isinstance(original, cst.FunctionDef) and isinstance(value, type):
        value = vars(value).get(original.name.value)
        value = getattr(value, "__func__", value)
    return value


def _full(target: Any) -> str:
    """Return the name in `_SAME`, because torch has two names for some."""
    for name in _SAME:
        module, _, last = name.rpartition(".")
        if target.name.endswith(f".{last}") and target.name.startswith("torch."):
            return name if "amp" not in name or module in target.name else target.name
    return target.name


def _is_transparent(value: Any, original: Any) -> bool:
    """Return whether the decorator returned the function, or only compiled it."""
    if isinstance(value, torch.jit.ScriptFunction):
        return True
    found = getattr(value, "__code__", None)
    return found is not None and found.co_name == original.name.value


_TYPES = {
    "torch.Tensor": "jax.Array",
    "torch.FloatTensor": "jax.Array",
    "torch.LongTensor": "jax.Array",
    "torch.BoolTensor": "jax.Array",
    "torch.autograd.Variable": "jax.Array",
    "torch.autograd.function.FunctionCtx": "jaxfn.FunctionCtx",
    "torch.autograd.function.BackwardCFunction": "jaxfn.BackwardCFunction",
}


def annotation(unit: Unit, units: Mapping[Any, Unit], node: Any) -> Any:
    """Return the annotation with JAX's types; None if it has no meaning in JAX."""
    types = _Types(unit, units)
    found = node.annotation.visit(types)
    return None if types.failed else node.with_changes(annotation=found)


class _Types(cst.CSTTransformer):
    def __init__(self, unit: Unit, units: Mapping[Any, Unit]) -> None:
        super().__init__()
        self._unit, self._units = unit, units
        self.failed = False

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = super().on_leave(original_node, updated_node)
        if isinstance(original_node, (cst.SimpleString, cst.ConcatenatedString)):
            self.failed = True  # it may name anything
        target = self._unit.references.get(original_node)
        if target is None or target.kind in ("import", "builtin"):
            return updated
        if target.kind == "torch" and target.name in _TYPES:
            return cst.parse_expression(_TYPES[target.name])
        found = self._units.get(key_of(target)) if target.kind == "unit" else None
        self.failed |= found is None
        return updated if found is None else cst.Name(found.name)
