"""Launches of Triton kernels: `jaxfn.triton_call`, which returns what is written."""

from __future__ import annotations

from typing import Any

from jaxfn.torch._translate.rewrite.assignments import bind, index_text
from jaxfn.torch._translate.rewrite.base import Rewriting
from jaxfn.torch._translate.syntax import code, cst, dotted, fill, keywords

_WIDTH = 70
_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
_NO_SPACE = cst.AssignEqual(
    whitespace_before=cst.SimpleWhitespace(""),
    whitespace_after=cst.SimpleWhitespace(""),
)


def problem_of(rewriter: Rewriting, call: Any, plan: Any) -> str:
    """Return why a launch can't be translated; an empty text if it can."""
    if plan.problem:
        return plan.problem
    if call not in rewriter.alone:
        return "it uses what a launch returns"
    names = [code(node) for node in plan.written.values()]
    if len(set(names)) < len(names):
        return "it writes to one array through two pointers"
    for name, node in plan.written.items():
        if name == "out" and node not in rewriter.structs.given:
            return "the parameter `out` has a name that triton_call uses"
        reason = rewriter.writes.decision(node).reason
        if reason:
            return f"it writes to `{name}`, and {reason}"
    return ""


def launched(rewriter: Rewriting, old: Any, new: Any) -> list[Any]:
    """Return the statement that binds what a launch writes.

    Args:
        rewriter: The unit that is being rewritten.
        old: The call in the original.
        new: The same call, whose arguments are translated.
    """
    plan: Any = rewriter.launches.of(old)
    if not plan.written:
        return []
    comma = old.args[0].comma if len(old.args) > 1 else _COMMA
    given = rewriter.structs.given
    parts = {a.value: b.value for a, b in zip(old.args, new.args, strict=True)}
    structs = {
        name: _struct(parts[node], node in given, _may_be_none(rewriter, plan, name))
        for name, node in plan.written.items()
    }
    args = [
        cst.Arg(new.func.value, comma=comma),
        cst.Arg(_grid(new.func), comma=comma),
        _named("out", _outputs(structs), comma),
    ]
    for before, arg, names in zip(old.args, new.args, plan.names, strict=True):
        if arg.star == "**":
            args.append(arg)
        elif arg.star:
            parts = _elements(arg.value, len(names))
            args += [_named(n, p, comma) for n, p in zip(names, parts, strict=True)]
        elif not (before.value in given and before.value in plan.written.values()):
            args.append(_named(names[0], arg.value, arg.comma))
    call = _laid_out(new, args)
    (first, *_) = plan.written.values()
    if isinstance(first, cst.Subscript):
        x, index = first.value.value, index_text(parts[first])
        return [bind(x, fill(f"{x}.at[{index}].set(_value)", {"_value": call}))]
    names = [cst.Element(node) for node in plan.written.values()]
    target = names[0].value if len(names) == 1 else cst.Tuple(names, lpar=[], rpar=[])
    return [cst.Assign([cst.AssignTarget(target)], call)]


def _outputs(structs: dict[str, str]) -> Any:
    """Return the dict of outputs, with a line for each if one line is too short."""
    parts = [f'"{name}": {text}' for name, text in structs.items()]
    found: Any = cst.parse_expression(f"{{{', '.join(parts)}}}")
    if len(code(found)) < _WIDTH:
        return found
    space, line = cst.SimpleWhitespace, cst.ParenthesizedWhitespace
    inner = line(indent=True, last_line=space(" " * 8))
    outer = line(indent=True, last_line=space(" " * 4))
    elements = [
        e.with_changes(comma=cst.Comma(whitespace_after=inner)) for e in found.elements
    ]
    elements[-1] = elements[-1].with_changes(comma=cst.Comma(whitespace_after=outer))
    brace = cst.LeftCurlyBrace(whitespace_after=inner)
    return found.with_changes(elements=elements, lbrace=brace)


def _laid_out(call: Any, args: list[Any]) -> Any:
    """Return the call, with a line for each argument if one line is too short."""
    args[-1] = args[-1].with_changes(comma=call.args[-1].comma)
    func = cst.parse_expression("jaxfn.triton_call")
    found = call.with_changes(func=func, args=args)
    text = code(found)
    if "\n" in code(call) or ("\n" not in text and len(text) < _WIDTH):
        return found
    line = cst.ParenthesizedWhitespace(
        indent=True, last_line=cst.SimpleWhitespace("    ")
    )
    comma = cst.Comma(whitespace_after=line)
    last = cst.Comma(whitespace_after=cst.ParenthesizedWhitespace(indent=True))
    args = [arg.with_changes(comma=comma) for arg in args]
    args[-1] = args[-1].with_changes(comma=last)
    return found.with_changes(args=args, whitespace_before_args=line)


def _may_be_none(rewriter: Rewriting, plan: Any, name: str) -> bool:
    if not isinstance(plan.written[name], cst.Name):
        return False
    stores = rewriter.infer.stores(plan.written[name])
    values = [value for _, value in stores if isinstance(value, cst.BaseExpression)]
    return name in plan.optional or any(map(_has_none, values))


def _has_none(value: Any) -> bool:
    arms = [value.body, value.orelse] if isinstance(value, cst.IfExp) else [value]
    return any(dotted(arm) == ["None"] for arm in arms)


def _named(name: str, value: Any, comma: Any) -> Any:
    return cst.Arg(value, keyword=cst.Name(name), equal=_NO_SPACE, comma=comma)


def _struct(node: Any, is_struct: bool, may_be_none: bool) -> str:
    x = code(node)
    if is_struct:
        return x
    text = f"jax.ShapeDtypeStruct({x}.shape, {x}.dtype)"
    return f"None if {x} is None else {text}" if may_be_none else text


def _grid(subscript: Any) -> Any:
    values = [element.slice.value for element in subscript.slice]
    if len(values) == 1:
        return values[0]
    return cst.Tuple([cst.Element(value) for value in values])


def _elements(value: Any, count: int) -> list[Any]:
    """Return the elements of a starred argument, one by one."""
    found: Any = getattr(value, "elements", ())
    if len(found) == count:
        return [element.value for element in found]
    return [cst.parse_expression(f"{code(value)}[{i}]") for i in range(count)]


def struct_of(made: Any) -> Any:
    """Return the shape and dtype of zeros that are made, in their place."""
    given, kinds = [a.value for a in made.args], keywords(made)
    places = given[: len(given) - len(kinds)]
    dtype = kinds.get("dtype", places[1] if len(places) > 1 else None)
    values = {"x": places[0], "dtype": dtype or cst.Name("float")}
    if code(made.func) == "jnp.zeros":
        return fill("jax.ShapeDtypeStruct(x, dtype)", values)
    text = "jax.ShapeDtypeStruct(x.shape, dtype)"
    return fill(text if dtype else "jax.ShapeDtypeStruct(x.shape, x.dtype)", values)
