"""Statements: writes that become bindings, blocks that go, lines that are marked."""

from __future__ import annotations

from typing import Any

from jaxfn.torch._translate.assignments import assigned, augmented, bind, index_text
from jaxfn.torch._translate.base import Rewriting, commented
from jaxfn.torch._translate.syntax import (
    code,
    cst,
    fill,
    find,
    indices,
    is_in_place,
    is_line,
    is_write_name,
    keywords,
    paren,
    root_of,
    view_of,
    writes_of,
)

FRAMED = (cst.SimpleStatementLine, cst.If, cst.While, cst.For, cst.With, cst.Try)
FRAMED += (cst.FunctionDef, cst.ClassDef)
_GONE = {"no_grad", "inference_mode", "enable_grad"}


def leave(rewriter: Rewriting, original: Any, updated: Any, reasons: list[str]) -> Any:
    """Return the statement, after its parts were rewritten."""
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
    if isinstance(original, cst.If) and rewriter.is_elif(original):
        # An `elif` can't be replaced by statements.
        rewriter.frames[-2].extend(reasons)
        return updated
    if is_check(rewriter, original):
        return _unchecked(original)
    return cst.FlattenSentinel(rewriter.mark(original, reasons))


def _function(
    rewriter: Rewriting, original: Any, updated: Any, reasons: list[str]
) -> Any:
    if not reasons:
        return updated
    head = original.with_changes(
        body=cst.IndentedBlock([]), leading_lines=[], decorators=[]
    )
    text = code(head).strip().splitlines()[0]
    marked = rewriter.mark(original, reasons, text)[:1]
    block = updated.body
    if isinstance(block, cst.SimpleStatementSuite):  # `def f(x): return x`
        block = cst.IndentedBlock([cst.SimpleStatementLine(block.body)])
    body = list(block.body)
    place = 1 if original.get_docstring() is not None else 0
    block = block.with_changes(body=[*body[:place], *marked, *body[place:]])
    return updated.with_changes(body=block)


def is_check(rewriter: Rewriting, node: Any) -> bool:
    """Return whether it is an assertion or `if: raise` that changes nothing."""
    line = node.body[0] if is_line(node, cst.Assert) else node
    arm = isinstance(node, cst.If) and node.orelse is None and node.body.body
    raises = bool(arm) and [is_line(line, cst.Raise) for line in arm] == [True]
    if not (raises or line is not node) or find(line.test, cst.NamedExpr):
        return False
    return not any(_may_change(rewriter, call) for call in find(line.test, cst.Call))


def _may_change(rewriter: Rewriting, call: Any) -> bool:
    target = rewriter.unit.references.get(call.func)
    if target is not None and target.kind == "builtin":
        return target.name == "next"
    writes = writes_of(call) or is_in_place(call) or "out" in keywords(call)
    return bool(writes) or not rewriter.infer.name(call)


def _unchecked(original: Any) -> Any:
    """Return only a comment: JAX does not know the values while it traces."""
    text = code(original.with_changes(leading_lines=[])).strip()
    said = ["# translate: not checked, because JAX traces without values"]
    lines = [*original.leading_lines, *commented(said, text)]
    return cst.SimpleStatementLine([cst.Pass()], leading_lines=lines)


def _with(rewriter: Rewriting, original: Any, updated: Any) -> Any:
    """Replace blocks that only switch gradients by their statements."""
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


def _line(rewriter: Rewriting, original: Any, updated: Any) -> Any:
    if not updated.body:
        return cst.RemoveFromParent()
    olds, news, reasons = original.body, list(updated.body), rewriter.frames[-1]
    gone = is_line(original, cst.Assert) and code(news[0].test) == "False"
    if gone and code(olds[0].test) != "False":  # JAX has other devices
        return _unchecked(original)
    if len(olds) != len(news):
        reasons.append("statements that share a line")
    pairs = zip(olds, news, strict=False)
    found = [x for old, new in pairs for x in _small(rewriter, old, new)]
    if reasons:
        return cst.FlattenSentinel(rewriter.mark(original, reasons))
    if found == news:
        return updated
    end = cst.MaybeSentinel.DEFAULT
    return _lines(updated, [x.with_changes(semicolon=end) for x in found])


def _small(rewriter: Rewriting, old: Any, new: Any) -> list[Any]:
    """Return the statements in place of one that needs no line of its own."""
    if isinstance(old, (cst.Import, cst.ImportFrom)):
        return []
    if isinstance(old, cst.Expr):
        return _expression(rewriter, old, new)
    if isinstance(old, cst.Assert) and {*code(new.test).split(" and ")} == {"True"}:
        return []  # arrays are contiguous
    if isinstance(old, cst.Assign):
        return assigned(rewriter, old, new)
    if isinstance(old, cst.AugAssign):
        return augmented(rewriter, old, new)
    return [new]


def _lines(updated: Any, found: list[Any]) -> Any:
    if not found:
        return cst.RemoveFromParent()
    first = updated.with_changes(body=[found[0]])
    rest = [cst.SimpleStatementLine([s]) for s in found[1:]]
    return cst.FlattenSentinel([first, *rest]) if rest else first


# ---- calls that stand alone


def _expression(rewriter: Rewriting, old: Any, new: Any) -> list[Any]:
    call = old.value
    if not isinstance(call, cst.Call):
        return [new]
    out: Any = keywords(call).get("out")
    if isinstance(out, cst.Name):
        name = out.value
        values = {"_value": paren(new.value)}
        return [bind(name, fill(f"_value.astype({name}.dtype)", values))]
    root = _written_by(rewriter, call)
    if root is not None:
        return [bind(root, new.value)]
    if not isinstance(call.func, cst.Attribute):
        return [new]
    name = call.func.attr.value
    if not rewriter.infer.of(call.func.value).is_tensor:
        return [new]
    if not is_write_name(name):
        # Nothing reads the result: the call was for autograd, or has no effect.
        return [] if isinstance(new.value, (cst.Name, cst.Attribute)) else [new]
    first = writes_of(call)[-1]
    receiver = first.func.value
    if isinstance(receiver, cst.Subscript):
        return _at_method(rewriter, first, new)
    root = root_of(receiver)
    if root is None:
        return rewriter.refuse("a write whose result has no name")
    return [bind(root, new.value)]


def _written_by(rewriter: Rewriting, call: Any) -> str | None:
    """Return the name that a function of torch writes to: `torch.relu_(y)`."""
    target = rewriter.unit.references.get(call.func)
    if target is None or target.kind != "torch" or not call.args:
        return None
    short = target.name.rpartition(".")[2]
    if not (is_write_name(short) or is_in_place(call)):
        return None
    root = root_of(call.args[0].value)
    if root is None or view_of(call.args[0].value) is not None:
        rewriter.problem("a write whose result has no name")
        return None
    return root


def _at_method(rewriter: Rewriting, first: Any, new: Any) -> list[Any]:
    """Return the binding for writes through a view: `x[i].mul_(y)`."""
    receiver = first.func.value
    kinds = {rewriter.infer.of(i).kind for i in indices(receiver)}
    basic = kinds <= {"int", "none", "unknown"} and "tensor" not in kinds
    if not basic or not isinstance(receiver.value, cst.Name):
        return rewriter.refuse("a write to a part that is a copy, or has no name")
    x, index = receiver.value.value, index_text(rewriter.written[first].func.value)
    return [bind(x, fill(f"{x}.at[{index}].set(_value)", {"_value": new.value}))]
