"""Tables of rows: names of torch, their parameters, and their equivalents in JAX.

The columns of a table:

1. The name, or several with `|` between them. `sum` is `torch.sum` and the method,
   `.view` only the method, `torch.where` only the function. `F.x`, `linalg.x`,
   `special.x` and `fft.x` are functions of these modules.
2. The parameters, by torch's names, or `()`. `x` is required, `dim?` is optional, and `dim?=0`
   has a default. `*size` takes sizes or one tuple of them. `other:tensor` must be a
   tensor, `dim:int` an integer. `-dtype` is given by name, and `mode=="tanh"` takes
   only this value.
3. The equivalent: an expression. An argument whose value is a parameter that the call
   lacks is left out. `NAME` is the name, without its module. `@f` is the text that a
   function returns; it returns None to refuse.
4. If the call has two results: the second one.
5. An expression of both, if one call of JAX gives them.

Between the columns after the first are two blanks or more.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxfn.torch._translate.observed import ExprType
from jaxfn.torch._translate.syntax import Sizes, code, cst, fill

_CALLED = re.compile(r"@(\w+)")
_TOKEN = re.compile(r"(\*{0,2}|-)(\w+)(\?)?(?::(\w+))?(?:(==?)(.+))?")


def table(text: str, functions: Mapping[str, Any], **more: Any) -> list[TableRow]:
    """Return the rows of a table: see the columns above."""
    rows = []
    for line in text.strip().splitlines():
        names, _, rest = line.partition(" ")
        takes, *results = re.split(r" {2,}", rest.strip())
        tokens = takes.removeprefix("()").split()
        params = tuple(_param(token) for token in tokens)
        for name in names.split("|"):
            short = name.rpartition(".")[2]
            made: list[Any] = [result.replace("NAME", short) for result in results]
            rows.append(TableRow(name, params, functions, *made, **more))
    return rows


def _param(token: str) -> Param:
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise ValueError(f"{token!r} is no parameter of a row.")
    star, name, optional, kind, equals, text = match.groups()
    only = text if equals == "==" else None
    default = text if equals == "=" else None
    by_name = star == "-"
    return Param(name, star[:1] == "*", bool(optional), kind, only, default, by_name)


MODULES = {
    "F": "torch.nn.functional",
    "linalg": "torch.linalg",
    "special": "torch.special",
    "fft": "torch.fft",
    "jit": "torch.jit",
    "func": "torch.func",
}
_MEANINGLESS = {"device", "memory_format", "layout", "pin_memory", "non_blocking"}
_MEANINGLESS |= {"stable", "sorted", "requires_grad", "_stacklevel", "async"}
_SPELLINGS = {"axis": "dim", "keepdims": "keepdim", "input": "x", "self": "x"}


@dataclasses.dataclass(frozen=True)
class Param:
    """A parameter of a row."""

    name: str
    star: bool
    optional: bool
    kind: str | None
    only: str | None
    default: str | None
    by_name: bool


@dataclasses.dataclass(frozen=True)
class TableRow:
    """The equivalent of one name of torch, for some of its arguments."""

    name: str
    params: tuple[Param, ...]
    functions: Mapping[str, Callable[[BoundCall], str | None]] = dataclasses.field(
        repr=False
    )
    gives: str
    second: str | None = None
    pair: str | None = None
    elementwise: bool = False

    def __str__(self) -> str:
        params = ", ".join(p.name for p in self.params)
        depends = re.search(_CALLED, self.gives)
        gives = "depends on the arguments" if depends else self.gives
        return f"{self.names()[-1]}({params}) -> {gives}"

    def names(self) -> list[str]:
        """Return the full names that this row is for."""
        head, _, tail = self.name.rpartition(".")
        if self.name.startswith("."):
            return [f"Tensor.{tail}"]
        if head == "torch":
            return [self.name]
        if head:
            return [f"{MODULES[head]}.{tail}"]
        return [f"torch.{tail}", f"Tensor.{tail}"]

    def bind(self, args: Sequence[CallArgument], result: ExprType) -> BoundCall | str:
        """Return the arguments by name, or why they don't fit."""
        found: dict[str, list[CallArgument]] = {}
        names = {p.name for p in self.params}
        places = [p for p in self.params if not p.by_name]
        i = 0
        for arg in args:
            if arg.keyword is not None:
                name = _spelling(arg.keyword, names)
                if name not in names:
                    if name in _MEANINGLESS:
                        continue
                    return f"the argument {arg.keyword}"
                if name in found:
                    return f"{name} given twice"
                found[name] = [arg]
                continue
            if i >= len(places):
                return "so many arguments"
            if arg.star and (arg.star == "**" or not places[i].star):
                return "a starred argument"
            found.setdefault(places[i].name, []).append(arg)
            if not places[i].star:
                i += 1
        return self._checked(found, result)

    def _checked(
        self, found: dict[str, list[CallArgument]], result: ExprType
    ) -> BoundCall | str:
        for p in self.params:
            given = found.get(p.name)
            if given is None:
                if p.only is not None or not (p.optional or p.star):
                    return f"a call without {p.name}"
                continue
            if p.only is not None and _written(given[0].value) != p.only:
                return f"this {p.name}"
            kind = given[0].fact.kind
            if (p.name, kind) in (("dim", "bool"), ("correction", "none")):
                return f"this {p.name}"
            if p.name == "dim" and given[0].literal() in ((), []):
                # Most reductions of torch take it for all axes, some for none.
                return "an empty dim"
            if p.kind is not None and not given[0].may_be(p.kind):
                return f"{p.name}, which is not known to be of kind {p.kind}"
        return BoundCall(self, found, result)


def _written(node: Any) -> str:
    """Return the text of a value, as rows have it: with double quotes."""
    is_string = isinstance(node, cst.SimpleString)
    return f'"{node.evaluated_value}"' if is_string else code(node)


@dataclasses.dataclass(frozen=True)
class CallArgument:
    """An argument of a call: the original, the translation, and its type."""

    keyword: str | None
    star: str
    original: Any
    value: Any
    fact: ExprType

    def may_be(self, kind: str) -> bool:
        """Return whether it is known to be of a kind."""
        if kind == "size":
            return self.fact.kind in ("int", "seq", "unknown")
        if kind == "shape":  # of a list or tuple, torch makes a tensor of its numbers
            return self.fact.dtype == "Size"
        if kind == "int" and self.fact.kind == "unknown":
            return self.keyword is not None
        return self.fact.kind == kind

    def literal(self) -> Any:
        """Return the value if it is written out, else None."""
        try:
            return ast.literal_eval(code(self.original))
        except (ValueError, SyntaxError):
            return None

    def traced(self) -> Any:
        """Return the value if it is written out, or was one number in all runs."""
        found = self.literal()
        return self.fact.value if found is None else found


_NONE = CallArgument(None, "", cst.Name("None"), cst.Name("None"), ExprType("none"))


class BoundCall:
    """A row with the arguments of a call."""

    def __init__(
        self, row: TableRow, given: Mapping[str, list[CallArgument]], result: ExprType
    ) -> None:
        self.row, self._given, self.result = row, dict(given), result
        self._extra: dict[str, Any] = {}

    # ---- queries by functions of the tables

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def __getitem__(self, name: str) -> CallArgument:
        """The argument, or the first of several; None is in the place of none."""
        return self._given.get(name, [_NONE])[0]

    def literal(self, name: str, default: Any) -> Any:
        """Return the number or string that is written out, else None."""
        return self[name].literal() if name in self else default

    def traced(self, name: str, default: Any) -> Any:
        """Return the number that is written out, or was the same in all runs."""
        return self[name].traced() if name in self else default

    def elements(self, name: str) -> list[str] | None:
        """Return names for the elements of a tuple or list that is written out."""
        found = self._given[name]
        parts: Any = found
        if len(found) == 1 and not found[0].star:
            if not isinstance(found[0].value, (cst.Tuple, cst.List)):
                return None
            parts = found[0].value.elements
        if any(
            isinstance(p, cst.StarredElement) or getattr(p, "star", "") for p in parts
        ):
            return None
        return [self._named(part.value) for part in parts]

    def sizes(self, name: str) -> list[str] | None:
        """Return names for sizes: single ones, or a tuple that is written out."""
        found = self._given[name]
        if len(found) == 1 and found[0].fact.kind in ("int", "unknown"):
            is_one = found[0].fact.kind == "int" or found[0].literal() is not None
            return [self._named(found[0].value)] if is_one else None
        return self.elements(name)

    def sizes_at(self, name: str, dim: str) -> list[int] | None:
        """Return the sizes of an axis in all runs."""
        fact, axis = self[name].fact, self.traced(dim, None)
        if not isinstance(axis, int) or not fact.shapes:
            return None
        if any(s and not -len(s) <= axis < len(s) for s in fact.shapes):
            return None
        return [s[axis] if s else 1 for s in fact.shapes]

    def _named(self, value: Any) -> str:
        text = code(value)
        if re.fullmatch(r"-?\d+", text):
            return text
        name = f"_part{len(self._extra)}"
        self._extra[name] = value
        return name

    # ---- the result

    def expression(self, part: str = "gives") -> Any:
        """Return the expression in JAX, or None if there is none."""
        template: str = getattr(self.row, part)
        for name in re.findall(_CALLED, template):
            text = self.row.functions[name](self)
            if text is None:
                return None
            template = template.replace(f"@{name}", text)
        values: dict[str, Any] = dict(self._extra)
        for p in self.row.params:
            values[p.name] = self._value(p)
        return fill(template, values)

    def _value(self, p: Param) -> Any:
        given = self._given.get(p.name)
        if given is None:
            return None if p.default is None else cst.parse_expression(p.default)
        if not p.star:
            return given[0].value
        if len(given) == 1 and not given[0].star:
            if p.name in ("tensors", "operands", "matrices", "shapes", "primals"):
                star = "*" if given[0].fact.kind == "seq" else ""
                return [cst.Arg(given[0].value, star=star)]
            if given[0].fact.kind in ("seq", "unknown"):
                return Sizes([cst.Arg(given[0].value)])
        return [cst.Arg(g.value, star=g.star) for g in given]


def _spelling(keyword: str, names: set[str]) -> str:
    if keyword in names:
        return keyword
    return _SPELLINGS.get(keyword, keyword)
