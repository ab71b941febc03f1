"""Names, attributes, decorators and annotations, in JAX's terms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jaxfn.torch._base import torch
from jaxfn.torch._translate.base import Rewriting
from jaxfn.torch._translate.files import Referent, key_of
from jaxfn.torch._translate.runs import is_compiler
from jaxfn.torch._translate.syntax import code, cst, fill, find, paren
from jaxfn.torch._translate.table import ATTRIBUTES, DTYPES, ROWS
from jaxfn.torch._translate.units import Unit

_VALUES = {
    "torch.pi": "jnp.pi",
    "torch.e": "jnp.e",
    "torch.inf": "jnp.inf",
    "torch.nan": "jnp.nan",
    "torch.Tensor": "jax.Array",
    "torch.autograd.Variable": "jax.Array",
    "torch.dtype": "jnp.dtype",
    "torch.Size": "tuple",
    "torch.autograd.Function": "jaxfn.Function",
    "torch.autograd.function.Function": "jaxfn.Function",
    "torch.autograd.function.InplaceFunction": "jaxfn.InplaceFunction",
    "torch.autograd.function.NestedIOFunction": "jaxfn.NestedIOFunction",
    "torch.autograd.function.FunctionCtx": "jaxfn.FunctionCtx",
    "torch.autograd.function.BackwardCFunction": "jaxfn.BackwardCFunction",
}
_LONG = {"float": "float32", "double": "float64", "half": "float16", "int": "int32"}
_LONG |= {"long": "int64", "short": "int16", "cfloat": "complex64"}
_LONG |= {"cdouble": "complex128"}
_TENSORS = {"data", "is_cuda", "requires_grad", "is_leaf", "grad"}
_LOST = {
    "value": "which the class closes over: pass it to apply",
    "lost": "whose text can't be carried over",
}
_NUMBER = re.compile(r"True|False|-?[\d.]+(e[+-]?\d+)?")
PAIRS = ("values", "indices")


class References(Rewriting):
    """A transformer of names and attributes."""

    def is_passed_over(self, node: Any) -> bool:
        """Return whether it is written to, or has no meaning in JAX."""
        around: Any = self.parents.get(node)
        if isinstance(around, cst.AssignTarget):
            return isinstance(node, (cst.Subscript, cst.Attribute))
        if isinstance(around, cst.AugAssign):
            return around.target is node
        if isinstance(around, cst.Arg) and _is_meaningless(around):
            call = self.parents[around]
            return isinstance(call, cst.Call) and bool(self.infer.name(call))
        return False

    def leave_Name(self, original_node: Any, updated_node: Any) -> Any:
        return self._named(original_node, updated_node)

    def leave_Attribute(self, original_node: Any, updated_node: Any) -> Any:
        if original_node in self.unit.references:
            return self._named(original_node, updated_node)
        updated = updated_node.with_changes(attr=original_node.attr)
        name = original_node.attr.value
        if original_node.value in self.paired and name in PAIRS:
            return updated_node.value
        if name == "saved_variables":
            return updated.with_changes(attr=cst.Name("saved_tensors"))
        if self.is_called(original_node) or self.is_passed_over(original_node):
            return updated
        owner = self.infer.of(original_node.value)
        around: Any = self.parents.get(original_node)
        if owner.is_tensor:
            return self._attribute(original_node, updated, name)
        if owner.kind == "device":
            if name == "type" and isinstance(around, cst.Comparison):
                return cst.SimpleString('"cpu"')
            self.problem(f"{code(original_node)}: JAX has other devices")
        if name in _TENSORS and self._is_doubtful(original_node):
            self.problem(
                f"{code(original_node)}: {code(original_node.value)} is not known to "
                "be a tensor (give arguments that reach this line)"
            )
        return updated

    def _is_doubtful(self, node: Any) -> bool:
        """Return whether it could be an attribute of a tensor."""
        if self.infer.of(node.value).kind not in ("unknown", "mixed"):
            return False
        return node not in self.unit.references and not self._is_ours(node.value)

    def _is_ours(self, node: Any) -> bool:
        """Return whether it is a module, a class or self, which is no tensor."""
        if isinstance(node, cst.Name) and node.value in ("ctx", "self", "cls"):
            return True
        target = self.unit.references.get(node)
        return target is not None and target.kind in ("unit", "import", "builtin")

    def _attribute(self, original: Any, updated: Any, name: str) -> Any:
        if name == "requires_grad":
            return self._requires_grad(original, updated)
        if name == "device":
            return cst.Name("None")
        template = ATTRIBUTES.get(name)
        if template is None:
            self.problem(f"Tensor.{name}")
            return updated
        return paren(fill(template, {"x": updated.value}))

    def _requires_grad(self, original: Any, updated: Any) -> Any:
        """Ask ctx for an argument of forward; JAX does not know it of others."""
        names, x = self.unit.names, self._before_saved(original.value)
        bound = names.bindings(x) if isinstance(x, cst.Name) else []
        forward = names.function(bound[0]) if len(bound) == 1 else None
        is_rule = forward is not None and forward.name.value == "forward"
        params = list(forward.params.params) if forward is not None else []
        has_ctx = [p.name.value for p in params[:1]] == ["ctx"]
        is_rule = is_rule and self.unit.is_function_class
        if is_rule and has_ctx and bound[0] in params:
            i = params.index(bound[0]) - 1
            return cst.parse_expression(f"ctx.needs_input_grad[{i}]")
        self.problem("Tensor.requires_grad: JAX has ctx.needs_input_grad alone")
        return updated

    def _before_saved(self, x: Any) -> Any:
        """Return what forward has saved, for a name that a rule unpacks."""
        names, calls = self.unit.names, find(self.unit.node, cst.Call)
        saves = [c.args for c in calls if code(c.func) == "ctx.save_for_backward"]
        bound = names.bindings(x) if isinstance(x, cst.Name) else []
        element: Any = names.parents.get(bound[0]) if len(bound) == 1 else None
        group: Any = names.parents.get(element)
        if len(saves) == 1 and isinstance(names.parents.get(group), cst.AssignTarget):
            same = [arg.star for arg in saves[0]] == [""] * len(group.elements)
            if same and code(names.value(bound[0])[1]) == "ctx.saved_tensors":
                return saves[0][group.elements.index(element)].value
        return x

    def _named(self, original: Any, updated: Any) -> Any:
        target = self.unit.references.get(original)
        if self.is_passed_over(original):
            return updated
        if target is None or (self.is_called(original) and target.kind == "torch"):
            return updated
        if target.kind == "torch":
            return self._torch_value(target, original, updated)
        if target.kind == "unit":
            return self._unit_name(target, updated)
        value = target.value if isinstance(target.value, (int, float)) else None
        if target.kind == "value" and _NUMBER.fullmatch(repr(value)):
            return paren(cst.parse_expression(repr(value)))
        why = _LOST.get(target.kind)
        if why is not None:
            self.problem(f"{target.name}, {why}")
        return updated

    def _unit_name(self, target: Referent, updated: Any) -> Any:
        found = self.units.get(key_of(target))
        if found is None:
            self.problem(f"{target.name}, {_LOST['lost']}")
            return updated
        if found.is_registry:
            self.problem(f"{target.name}, which the module fills elsewhere")
        return cst.Name(found.name)

    def _torch_value(self, target: Referent, original: Any, updated: Any) -> Any:
        short = target.name.rpartition(".")[2]
        dtype = DTYPES.get(_LONG.get(short, short))
        if type(target.value).__name__ == "dtype" and dtype is not None:
            # A key has to be what `x.dtype` is: `jnp.float32` itself is a class.
            around = self.parents.get(original)
            is_key = isinstance(around, cst.DictElement) and around.key is original
            is_key |= isinstance(self.parents.get(around), cst.Set)
            return cst.parse_expression(f"jnp.dtype({dtype})" if is_key else dtype)
        if target.name in _VALUES:
            return cst.parse_expression(_VALUES[target.name])
        for row in ROWS.get(target.name, ()):
            if row.gives.endswith("(x)"):
                return cst.parse_expression(row.gives.removesuffix("(x)"))
        self.problem(target.name)
        return updated


def _is_meaningless(arg: Any) -> bool:
    """Return whether an argument has no meaning for JAX arrays, and rows drop it.

    They have no strides, so any memory_format is dropped, and so is a dense layout.
    None requires a gradient by itself.
    """
    keyword = arg.keyword.value if arg.keyword else None
    layout = arg.value.attr.value if isinstance(arg.value, cst.Attribute) else None
    dense = keyword == "layout" and layout in ("layout", "strided")
    return dense or keyword in ("memory_format", "requires_grad")


_SAME = {
    torch.autograd.function.once_differentiable: "jaxfn.once_differentiable",
    torch.amp.custom_fwd: "jaxfn.amp.custom_fwd",
    torch.amp.custom_bwd: "jaxfn.amp.custom_bwd",
    torch.cuda.amp.custom_fwd: 'jaxfn.amp.custom_fwd(device_type="cuda")',
    torch.cuda.amp.custom_bwd: 'jaxfn.amp.custom_bwd(device_type="cuda")',
}
_NOTHING = {torch.no_grad, torch.inference_mode, torch.enable_grad}
_NOTHING |= {torch.compiler.disable}


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
    if target.value in _NOTHING or is_compiler(target.name):
        return None
    if target.value in _SAME:
        args = [a.with_changes(value=a.value.visit(rewriter)) for a in given]
        found: Any = cst.parse_expression(_SAME[target.value])
        if isinstance(found, cst.Call):
            found = found.with_changes(args=[*found.args, *args])
        elif called:
            found = cst.Call(found, args)
        return decorator.with_changes(decorator=found)
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


def _is_transparent(value: Any, original: Any) -> bool:
    """Return whether the decorator returned the function, or only compiled it."""
    if isinstance(value, torch.jit.ScriptFunction):
        return True
    found = getattr(value, "__code__", None)
    return found is not None and found.co_name == original.name.value


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
        if target.kind == "torch" and target.name in _VALUES:
            return cst.parse_expression(_VALUES[target.name])
        found = self._units.get(key_of(target)) if target.kind == "unit" else None
        self.failed |= found is None
        return updated if found is None else cst.Name(found.name)
