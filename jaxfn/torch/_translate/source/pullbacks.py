"""`torch.autograd.grad` inside a rule, rewritten as `torch.func.vjp`, which JAX has.

    with torch.enable_grad():                      def compute(x):
        x = x.detach().requires_grad_()                return f(x)
        y = f(x)                                ->
    (dx,) = torch.autograd.grad(y, x, g)           y, pull = torch.func.vjp(compute, x)
                                                   (dx,) = pull(g)

The rewrite happens only if it is certain. The computation under `enable_grad` must be
consecutive statements, and later code must read nothing of them but the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxfn.torch._translate.syntax import (
    code,
    cst,
    dotted,
    find,
    is_line,
    keywords,
    names_read,
    stored_names,
)

_GRAD = ["autograd", "grad"]


class Pullbacks(cst.CSTTransformer):
    """A transformer of blocks.

    Attributes:
        origins: For each new node, the node of the file that it was made from.
    """

    def __init__(self) -> None:
        super().__init__()
        self.origins: dict[Any, Any] = {}

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        found = super().on_leave(original_node, updated_node)
        if isinstance(found, cst.CSTNode):
            self.origins[found] = original_node
        return found

    def leave_IndentedBlock(self, original_node: Any, updated_node: Any) -> Any:
        body = list(updated_node.body)
        for i, statement in enumerate(body):
            torch = _enabled(statement)
            if torch is not None:
                found = _rewritten(torch, statement, body[:i], body[i + 1 :])
                if found is not None:
                    for new, old in found:
                        self.origins[new] = self.origins.get(old, old)
                    made = [new for new, _ in found]
                    return updated_node.with_changes(body=[*body[:i], *made])
        return updated_node


def _enabled(statement: Any) -> str | None:
    """Return the name of torch in `with torch.enable_grad():`."""
    if not isinstance(statement, cst.With) or len(statement.items) != 1:
        return None
    item = statement.items[0].item
    names = dotted(item.func) if isinstance(item, cst.Call) else None
    return names[0] if names and names[1:] == ["enable_grad"] else None


def _grad_call(statement: Any) -> Any:
    if not isinstance(statement, cst.SimpleStatementLine):
        return None
    calls = _grad_calls([statement])
    return calls[0] if len(calls) == 1 else None


def _grad_calls(statements: Sequence[Any]) -> list[Any]:
    calls = [call for statement in statements for call in find(statement, cst.Call)]
    return [call for call in calls if (dotted(call.func) or [])[-2:] == _GRAD]


def _rewritten(
    torch: str, block: Any, before: Sequence[Any], rest: Sequence[Any]
) -> list[tuple[Any, Any]] | None:
    """Return the new statements, each with the one that it comes from."""
    inner = list(block.body.body)
    after = [*inner, *rest]
    place = next((i for i, s in enumerate(after) if _grad_call(s)), None)
    if place is None:
        return None
    call = _Gradient(_grad_call(after[place]))
    head = inner[: min(place, len(inner))]
    leaves = [s for s in head if _is_leaf(s)]
    compute = [s for s in head if not _is_leaf(s)]
    if not compute or not call.is_clear or head[: len(leaves)] != leaves:
        return None
    tail = after[min(place, len(inner)) :]
    if not call.fits(compute, tail) or not call.counted([*before, *leaves], compute):
        return None
    others = [_Gradient(c) for c in _grad_calls(tail) if c is not call.node]
    if any(set(other.outputs) & set(call.outputs) for other in others):
        return None  # several derivatives of one result
    pull = "pull" if "pull" not in _words(after) else "pull_back"
    done = [s.deep_replace(call.node, call.pulled(pull)) for s in tail]
    lines = [*block.leading_lines]
    made = [_after_blank(call.function(compute)), call.vjp(torch, tail)]
    found = [*leaves, *made, *done]
    found[0] = found[0].with_changes(leading_lines=[*lines, *found[0].leading_lines])
    return list(zip(found, [*leaves, *[block] * len(made), *tail], strict=True))


def _is_leaf(statement: Any) -> bool:
    """Return whether it makes a leaf: `x = x.detach().requires_grad_()`."""
    text = code(statement)
    return "requires_grad_(" in text or ".requires_grad =" in text


def _words(statements: Sequence[Any]) -> str:
    return " ".join(code(s) for s in statements)


class _Gradient:
    """A call of `torch.autograd.grad`."""

    def __init__(self, node: Any) -> None:
        self.node = node
        places = [arg.value for arg in node.args if arg.keyword is None]
        names = ("outputs", "inputs", "grad_outputs")
        args = dict(zip(names, places, strict=False)) | keywords(node)
        self.outputs = _names(args.get("outputs"))
        self.inputs = _names(args.get("inputs"))
        self._one = isinstance(args.get("inputs"), cst.Name)
        self.star = ""
        self._given = args.get("grad_outputs")
        self.is_clear = bool(self.outputs and self.inputs and not node.args[0].star)

    @property
    def _out(self) -> str:
        names = ", ".join(self.outputs)
        return names if len(self.outputs) == 1 else f"({names})"

    def fits(self, compute: Sequence[Any], tail: Sequence[Any]) -> bool:
        """Return whether the result is computed here, and only it is read later."""
        made = stored_names(compute)
        later = names_read(*tail)
        others = (made & later) - set(self.outputs) - set(self.inputs)
        return set(self.outputs) <= made and not others

    def counted(self, before: Sequence[Any], compute: Sequence[Any]) -> bool:
        """Return whether the inputs are known to be one tensor or a list."""
        if not self._one:
            return True
        name = self.inputs[0]
        if f"*{name}" in _words(compute):
            self.star = "*"
            return True
        for statement in reversed(before):
            if _binds_just(statement, name):
                value = statement.body[0].value
                if isinstance(value, (cst.ListComp, cst.List, cst.Tuple)):
                    self.star = "*"
                    return True
                return _is_one_tensor(value)
        return False

    def function(self, compute: Sequence[Any]) -> Any:
        """Return the computation as a function of its inputs."""
        params = self.star + ", ".join(self.inputs)
        head = cst.parse_statement(f"def compute({params}):\n    return {self._out}")
        body = head.body
        last = compute[-1]
        if _binds_just(last, self._out):
            value = last.body[0].value
            line = body.body[0].with_changes(
                body=[cst.Return(value)], leading_lines=last.leading_lines
            )
            return head.with_changes(body=body.with_changes(body=[*compute[:-1], line]))
        return head.with_changes(body=body.with_changes(body=[*compute, *body.body]))

    def vjp(self, torch: str, tail: Sequence[Any]) -> Any:
        """Return the line with the value and the function that pulls back."""
        inputs = self.star + ", ".join(self.inputs)
        rest = [s.deep_replace(self.node, cst.Name("None")) for s in tail]
        read = set(self.outputs) & names_read(*rest) or self._given is None
        out = self._out if read else "_"
        pull = "pull" if "pull" not in _words(tail) else "pull_back"
        line = f"{out}, {pull} = {torch}.func.vjp(compute, {inputs})"
        return _after_blank(cst.parse_statement(line))

    def pulled(self, pull: str) -> Any:
        """Return the call that replaces `torch.autograd.grad`."""
        given = self._given
        if given is None:
            return cst.parse_expression(f"{pull}(torch.ones_like({self._out}))")
        elements: Any = getattr(given, "elements", ())
        if len(elements) == 1 == len(self.outputs):
            given = elements[0].value
        return cst.Call(cst.Name(pull), [cst.Arg(given)])


def _after_blank(statement: Any) -> Any:
    return statement.with_changes(leading_lines=[cst.EmptyLine(indent=False)])


def _names(node: Any) -> list[str]:
    if isinstance(node, cst.Name):
        return [node.value]
    values = [e.value for e in getattr(node, "elements", ())]
    if values and all(isinstance(v, cst.Name) for v in values):
        return [v.value for v in values]
    return []


def _is_one_tensor(value: Any) -> bool:
    """Return whether it is `….detach()` or another method that lists lack."""
    return (
        isinstance(value, cst.Call)
        and isinstance(value.func, cst.Attribute)
        and value.func.attr.value in ("clone", "detach", "requires_grad_")
    )


def _binds_just(statement: Any, name: str) -> bool:
    if not is_line(statement, cst.Assign) or len(statement.body[0].targets) != 1:
        return False
    return code(statement.body[0].targets[0].target) == name
