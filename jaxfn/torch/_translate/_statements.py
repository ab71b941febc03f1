"""Statements: writes that become bindings, blocks that go, lines that are marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxfn.torch._translate._expressions import code, fill, paren
from jaxfn.torch._translate._lib import cst
from jaxfn.torch._translate._loads import stored
from jaxfn.torch._translate._memory import indices, is_write_name, root_of

if TYPE_CHECKING:
    from jaxfn.torch._translate._rewrite import Rewriter

FRAMED = (cst.SimpleStatementLine, cst.If, cst.While, cst.For, cst.With, cst.Try)
FRAMED += (cst.FunctionDef, cst.ClassDef)
_GONE = {"no_grad", "inference_mode", "enable_grad"}
_AT = {
    "add_": "add({})",
    "sub_": "add(-({}))",
    "mul_": "multiply({})",
    "div_": "divide({})",
    "zero_": "set(0)",
    "fill_": "set({})",
    "copy_": "set({})",
}
_OPERATORS = {
    cst.AddAssign: ("add", "{}"),
    cst.SubtractAssign: ("add", "-{}"),
    cst.MultiplyAssign: ("multiply", "{}"),
    cst.DivideAssign: ("divide", "{}"),
}
_BINARY = {
    cst.AddAssign: cst.Add,
    cst.SubtractAssign: cst.Subtract,
    cst.MultiplyAssign: cst.Multiply,
    cst.DivideAssign: cst.Divide,
}


def leave(rewriter: Rewriter, original: Any, updated: Any, reasons: list[str]) -> Any:
    """A statement after its parts were rewritten."""
    if isinstance(original, cst.FunctionDef):
        return _function(rewriter, original, updated, reasons)
    if isinstance(original, cst.ClassDef):
        for reason in reasons:
            rewriter.left.append(rewriter.note(original, reason))
        return updated
    if isinstance(original, cst.With) and not reasons:
        return _with(rewriter, original, updated)
    if isinstance(original, cst.SimpleStatementLine) and not reasons:
        return _line(rewriter, original, updated)
    if not reasons:
        return updated
    if isinstance(original, cst.If) and original in rewriter.chained:
        # The other arm of an `if`: it can't give way to statements.
        rewriter.frames[-1].extend(reasons)
        return updated
    return cst.FlattenSentinel(rewriter.mark(original, reasons))


def _function(
    rewriter: Rewriter, original: Any, updated: Any, reasons: list[str]
) -> Any:
    if not reasons:
        return updated
    head = original.with_changes(
        body=cst.IndentedBlock([]), leading_lines=[], decorators=[]
    )
    text = code(head).strip().splitlines()[0]
    marked = rewriter.mark(original, reasons, text)[:1]
    body = list(updated.body.body)
    place = 1 if original.get_docstring() is not None else 0
    block = updated.body.with_changes(body=[*body[:place], *marked, *body[place:]])
    return updated.with_changes(body=block)


def _with(rewriter: Rewriter, original: Any, updated: Any) -> Any:
    """Blocks that only switch gradients give way to their statements."""
    kept = []
    for old, new in zip(original.items, updated.items, strict=True):
        node = old.item.func if isinstance(old.item, cst.Call) else old.item
        target = rewriter.unit.references.get(node)
        if target is None or target.kind != "torch":
            kept.append(new)
        elif not _is_gone(target.name, old.item):
            return cst.FlattenSentinel(rewriter.mark(original, [f"with {target.name}"]))
    if kept:
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated.with_changes(items=kept)
    body = list(updated.body.body)
    if body:
        lines = [*original.leading_lines, *body[0].leading_lines]
        body[0] = body[0].with_changes(leading_lines=lines)
    return cst.FlattenSentinel(body)


def _is_gone(name: str, item: Any) -> bool:
    short = name.rpartition(".")[2]
    if short in _GONE:
        return True
    off = "False" in [code(a.value) for a in getattr(item, "args", ())]
    return short == "autocast" and off


def _line(rewriter: Rewriter, original: Any, updated: Any) -> Any:
    if len(original.body) != 1:
        plain = (cst.Import, cst.ImportFrom)
        kept = [s for s in updated.body if not isinstance(s, plain)]
        return updated.with_changes(body=kept) if kept else cst.RemoveFromParent()
    if not updated.body:
        return cst.RemoveFromParent()
    old, new = original.body[0], updated.body[0]
    found: Any = [new]
    if isinstance(old, (cst.Import, cst.ImportFrom)):
        found = []
    elif isinstance(old, cst.Expr):
        found = _expression(rewriter, old, new)
    elif isinstance(old, cst.Assign):
        found = _assign(rewriter, old, new)
    elif isinstance(old, cst.AugAssign):
        found = _augmented(rewriter, old, new)
    reasons = rewriter.late
    if reasons:
        rewriter.late = []
        return cst.FlattenSentinel(rewriter.mark(original, reasons))
    return _lines(updated, found)


def _lines(updated: Any, found: list[Any]) -> Any:
    if not found:
        return cst.RemoveFromParent()
    first = updated.with_changes(body=[found[0]])
    rest = [cst.SimpleStatementLine([s]) for s in found[1:]]
    return cst.FlattenSentinel([first, *rest]) if rest else first


def _bind(name: str, value: Any) -> Any:
    return cst.Assign([cst.AssignTarget(cst.Name(name))], value)


# ---- calls that stand alone


def _expression(rewriter: Rewriter, old: Any, new: Any) -> list[Any]:
    call = old.value
    if not isinstance(call, cst.Call):
        return [new]
    out = [a for a in call.args if a.keyword is not None and a.keyword.value == "out"]
    if out and isinstance(out[0].value, cst.Name):
        name = out[0].value.value
        values = {"_value": paren(new.value)}
        return [_bind(name, fill(f"_value.astype({name}.dtype)", values))]
    if not isinstance(call.func, cst.Attribute):
        return [new]
    name = call.func.attr.value
    if not rewriter.infer.of(call.func.value).is_tensor:
        return [new]
    if not is_write_name(name):
        # What it gave is thrown away: it was for show, or for autograd.
        return [] if isinstance(new.value, (cst.Name, cst.Attribute)) else [new]
    receiver = call.func.value
    if isinstance(receiver, cst.Subscript):
        return _at_method(rewriter, call, new)
    root = root_of(receiver)
    if root is None:
        rewriter.late.append("a write whose result has no name")
        return []
    return [_bind(root, new.value)]


def _at_method(rewriter: Rewriter, call: Any, new: Any) -> list[Any]:
    """`x[i].mul_(y)`: a write through a view."""
    receiver, name = call.func.value, call.func.attr.value
    kinds = {rewriter.infer.of(i).kind for i in indices(receiver)}
    basic = kinds <= {"int", "none", "unknown"} and "tensor" not in kinds
    if not basic or not isinstance(receiver.value, cst.Name):
        rewriter.late.append("a write to a part that is a copy, or has no name")
        return []
    x, index = receiver.value.value, _index_text(rewriter.views[call])
    if name in _AT and len(call.args) <= 1:
        given = [code(a.value) for a in rewriter.arguments[call]]
        what = _AT[name].format(*given)
    else:
        what = f"set({code(new.value)})"
    return [_bind(x, cst.parse_expression(f"{x}.at[{index}].{what}"))]


def _index_text(subscript: Any) -> str:
    text = code(subscript.with_changes(value=cst.Name("x"), lpar=[], rpar=[]))
    return text[text.index("[") + 1 : -1]


# ---- assignments


def _assign(rewriter: Rewriter, old: Any, new: Any) -> list[Any]:
    target = old.targets[0].target
    if len(old.targets) == 1 and isinstance(target, cst.Subscript):
        if rewriter.infer.of(target.value).is_tensor:
            return _at_set(rewriter, old, new)
        return [new]
    is_attribute = len(old.targets) == 1 and isinstance(target, cst.Attribute)
    if is_attribute and rewriter.infer.of(target.value).is_tensor:
        return _attribute(rewriter, old)
    if isinstance(old.value, cst.Call) and old.value in rewriter.pairs:
        kept = rewriter.pairs[old.value]
        one = new.targets[0].with_changes(target=kept)
        return [new.with_changes(targets=[one])]
    call = old.value
    if isinstance(call, cst.Call) and code(new.targets[0].target) == code(new.value):
        return []  # `x = x.clone()`
    is_write = isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute)
    if is_write and is_write_name(call.func.attr.value):
        decision = rewriter.writes.decision(call)
        if decision.back:
            root = root_of(call.func.value)
            assert root is not None
            return [_bind(root, new.value), new.with_changes(value=cst.Name(root))]
    return [new]


def _attribute(rewriter: Rewriter, old: Any) -> list[Any]:
    """JAX arrays have no attributes of one's own."""
    if code(old.targets[0].target).endswith(".requires_grad"):
        return []
    rewriter.drop(old, "an attribute of a tensor, which JAX arrays don't have")
    return []


def _at_set(rewriter: Rewriter, old: Any, new: Any) -> list[Any]:
    """`x[i] = v`."""
    target, value = old.targets[0].target, new.value
    place = new.targets[0].target
    decision = rewriter.writes.decision(old)
    if decision.reason:
        rewriter.late.append(f"a write: {decision.reason}")
        return []
    if not isinstance(target.value, cst.Name):
        rewriter.late.append("a write to a part of what has no name")
        return []
    x = target.value.value
    if rewriter.writes.masks.is_masked(target):
        return [_bind(x, v) for v in _where(rewriter, old, x, place, value)]
    found = fill(f"{x}.at[{_index_text(place)}].set(_value)", {"_value": value})
    return [_bind(x, found)]


def _where(rewriter: Rewriter, old: Any, x: str, place: Any, value: Any) -> list[Any]:
    plan = rewriter.masked.get(old)
    if plan is None:
        rewriter.late.append("a write with a mask, of what has no fixed shape")
        return []
    mask = place.slice[0].slice.value
    extra = plan.removeprefix("where")
    text = f"jnp.where(_mask{extra}, _value, {x})"
    return [fill(text, {"_mask": mask, "_value": value})]


def _augmented(rewriter: Rewriter, old: Any, new: Any) -> list[Any]:
    target = old.target
    if isinstance(target, cst.Name):
        reason = rewriter.writes.reason(old)
        if reason:
            rewriter.late.append(f"a write: {reason}")
        return [new]
    fact = rewriter.infer.of(
        target.value if isinstance(target, cst.Subscript) else target
    )
    if isinstance(target, cst.Attribute):
        owner = rewriter.infer.of(target)
        if owner.kind in ("int", "float", "str", "seq"):
            return [new]
        rewriter.late.append("a write to an attribute")
        return []
    if not fact.is_tensor:
        if fact.kind == "seq" and rewriter.infer.of(target).kind in ("int", "float"):
            return [new]
        rewriter.late.append("a write to an element of what is no tensor")
        return []
    decision = rewriter.writes.decision(old)
    if decision.reason or not isinstance(target.value, cst.Name):
        rewriter.late.append(f"a write: {decision.reason or 'it has no name'}")
        return []
    x, place, value = target.value.value, new.target, new.value
    operator = type(old.operator)
    if operator not in _OPERATORS:
        rewriter.late.append("this operator on a part of a tensor")
        return []
    if rewriter.writes.masks.is_masked(target):
        plan = rewriter.masked.get(old)
        if plan is None:
            rewriter.late.append("a write with a mask, of what has no fixed shape")
            return []
        mask = place.slice[0].slice.value
        both = cst.BinaryOperation(cst.Name(x), _BINARY[operator](), paren(value))
        text = f"jnp.where(_mask{plan.removeprefix('where')}, _value, {x})"
        return [_bind(x, fill(text, {"_mask": mask, "_value": both}))]
    index = _index_text(place)
    if any(rewriter.infer.of(i).is_tensor for i in indices(target)):
        # torch writes each place once, where `.at[].add` would add up.
        part = cst.parse_expression(f"{x}[{index}]")
        both = cst.BinaryOperation(part, _BINARY[operator](), paren(value))
        return [_bind(x, fill(f"{x}.at[{index}].set(_value)", {"_value": both}))]
    method, form = _OPERATORS[operator]
    text = f"{x}.at[{index}].{method}({form.format('_value')})"
    return [_bind(x, fill(text, {"_value": value}))]


def names_of(target: Any) -> list[str]:
    """The names that a target binds."""
    return stored(target)
