"""Assignments, plain and augmented: to names, to parts, to attributes."""

from __future__ import annotations

from typing import Any

from jaxfn.torch._translate.base import Rewriting
from jaxfn.torch._translate.infer import widens
from jaxfn.torch._translate.syntax import (
    code,
    cst,
    fill,
    indices,
    is_write_name,
    paren,
    root_of,
)


def bind(name: str, value: Any) -> Any:
    """Return `name = value`."""
    return cst.Assign([cst.AssignTarget(cst.Name(name))], value)


def index_text(subscript: Any) -> str:
    """Return the text in the brackets."""
    text = code(subscript.with_changes(value=cst.Name("x"), lpar=[], rpar=[]))
    return text[text.index("[") + 1 : -1]


def assigned(rewriter: Rewriting, old: Any, new: Any) -> list[Any]:
    target = old.targets[0].target
    if any(_writes_one_of_many(rewriter, t.target, old) for t in old.targets):
        return rewriter.refuse("a write to a part, with other targets beside it")
    if len(old.targets) == 1 and isinstance(target, cst.Subscript):
        owner = rewriter.infer.of(target.value)
        if owner.is_tensor:
            return _at_set(rewriter, old, new)
        named = isinstance(target.value, cst.Name)
        if named and target.value in rewriter.unit.references:
            return rewriter.refuse(
                f"a write to {code(target.value)}, which all calls share"
            )
        if named and owner.kind in ("unknown", "mixed") and not _is_text(target):
            return rewriter.refuse(
                f"{code(target.value)} may be a tensor that it writes to"
            )
        return [new]
    is_attribute = len(old.targets) == 1 and isinstance(target, cst.Attribute)
    if is_attribute and rewriter.infer.of(target.value).is_tensor:
        name = target.attr.value
        if name in ("data", "grad"):
            return rewriter.refuse(f"a write to Tensor.{name}")
        if name != "requires_grad":
            why = "dropped: an attribute of a tensor, which JAX arrays don't have"
            rewriter.left.append(rewriter.note(old, why, code(old).strip()))
        return []
    changed = code(old.value) != code(new.value)
    if changed and code(new.targets[0].target) == code(new.value):
        return []  # `x = x.clone()`
    call = old.value
    is_write = isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute)
    if is_write and is_write_name(call.func.attr.value):
        decision = rewriter.facts.decision(call)
        if decision.back:
            root = root_of(call.func.value)
            assert root is not None
            return [bind(root, new.value), new.with_changes(value=cst.Name(root))]
    return [new]


def _writes_one_of_many(rewriter: Rewriting, target: Any, old: Any) -> bool:
    """Return whether it writes to a part of a tensor and to something else."""
    if isinstance(target, (cst.Tuple, cst.List)):
        parts = [e.value for e in target.elements]
    else:
        parts = [target] if len(old.targets) > 1 else []
    return any(
        isinstance(part, cst.Subscript) and rewriter.infer.of(part.value).is_tensor
        for part in parts
    )


def _is_text(target: Any) -> bool:
    """Return whether it is `x["name"]`, which is no part of a tensor."""
    found = indices(target)
    return len(found) == 1 and isinstance(found[0], cst.SimpleString)


def _at_set(rewriter: Rewriting, old: Any, new: Any) -> list[Any]:
    """Return the new value of `x[i] = v`."""
    target, value = old.targets[0].target, new.value
    place = new.targets[0].target
    decision = rewriter.facts.decision(old)
    if decision.reason:
        return rewriter.refuse(f"a write: {decision.reason}")
    if not isinstance(target.value, cst.Name):
        return rewriter.refuse("a write to a part of an expression without a name")
    x = target.value.value
    if rewriter.masks.is_masked(target):
        facts = [rewriter.infer.of(n) for n in (target.value, old.value)]
        cast = f".astype({x}.dtype)" if _changes(*facts) else ""
        return _where(rewriter, old, x, place, value, cast)
    found = fill(f"{x}.at[{index_text(place)}].set(_value)", {"_value": value})
    return [bind(x, found)]


def _where(
    rewriter: Rewriting, old: Any, x: str, place: Any, value: Any, cast: str = ""
) -> list[Any]:
    """Return the new value of `x[mask] = value`."""
    axes = rewriter.masks.axes.get(old)
    if axes is None:
        return rewriter.refuse("a write with a mask: the value has no fixed shape")
    text = f"jnp.where(_mask{axes}, _value, {x}){cast}"
    values = {"_mask": place.slice[0].slice.value, "_value": value}
    return [bind(x, fill(text, values))]


def _changes(written: Any, value: Any) -> bool:
    """Return whether `where` would change the dtype of what is written to."""
    if written.dtype == "bool":
        return value.kind in ("int", "float") or value.dtype not in (None, "bool")
    return written.is_tensor and widens([written, value], written.dtype)


def augmented(rewriter: Rewriting, old: Any, new: Any) -> list[Any]:
    target = old.target
    if isinstance(target, cst.Name):
        fact = rewriter.infer.of(target)
        if fact.kind in ("tensor", "unknown", "mixed"):
            reason = rewriter.facts.decision(old).reason
            if reason:
                return rewriter.refuse(f"a write: {reason}")
        facts = [rewriter.infer.of(n) for n in (target, old.value)]
        if facts[0].is_tensor and widens(facts, facts[0].dtype):
            return rewriter.refuse(f"JAX would not keep {facts[0].dtype} in this write")
        return [new]
    fact = rewriter.infer.of(
        target.value if isinstance(target, cst.Subscript) else target
    )
    if isinstance(target, cst.Attribute):
        owner = rewriter.infer.of(target)
        if owner.kind in ("int", "float", "str", "seq"):
            return [new]
        return rewriter.refuse("a write to an attribute")
    if not fact.is_tensor:
        if fact.kind == "seq" and rewriter.infer.of(target).kind in ("int", "float"):
            return [new]
        return rewriter.refuse("a write to an element of an object that is no tensor")
    decision = rewriter.facts.decision(old)
    if decision.reason or not isinstance(target.value, cst.Name):
        return rewriter.refuse(f"a write: {decision.reason or 'it has no name'}")
    x, index = target.value.value, index_text(new.target)
    masked = rewriter.masks.is_masked(target)
    # torch writes each place once, but `.at[].add` adds up equal indices.
    part = cst.parse_expression(x if masked else f"{x}[{index}]")
    operator = getattr(cst, type(old.operator).__name__.removesuffix("Assign"))()
    value = cst.BinaryOperation(part, operator, paren(new.value))
    if masked:
        return _where(rewriter, old, x, new.target, value)
    return [bind(x, fill(f"{x}.at[{index}].set(_value)", {"_value": value}))]
