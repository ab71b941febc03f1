"""Tables of rows: names of torch, their parameters, and their equivalents in JAX.

The columns of a table:

1. The name, or several with `|` between them. `sum` is `torch.sum` and the method,
   `.view` only the method, `torch.where` only the function. `F.x`, `linalg.x`,
   `special.x` and `fft.x` are functions of these modules.
2. The parameters, by torch's names. `x` is required, `dim?` is optional, and `dim?=0`
   has a default. `*size` takes sizes or one tuple of them. `other:tensor` must be a
   tensor, `dim:int` an integer. `-dtype` is given by name, and `mode=="tanh"` takes
   only this value.
3. The equivalent: an expression. An argument whose value is a parameter that the call
   lacks is left out. `NAME` is the name, without its module. `@f` is a constant, or a
   function that returns the expression or None to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jaxfn.torch._translate.table.row import Param, TableRow

_TOKEN = re.compile(r"(\*{0,2}|-)(\w+)(\?)?(?::(\w+))?(?:(==?)(.+))?")


def row(name: str, takes: str, gives: Any, **more: Any) -> TableRow:
    """Return a row that has more than a table can express."""
    return TableRow(
        name, tuple(_param(token) for token in takes.split()), gives, **more
    )


def table(
    text: str, functions: Mapping[str, Any] | None = None, **more: Any
) -> list[TableRow]:
    """Return the rows of a table: see the columns above."""
    rows = []
    for line in text.strip().splitlines():
        head, gives = _columns(line)
        names, _, takes = head.partition(" ")
        for name in names.split("|"):
            made: Any = gives.replace("NAME", name.rpartition(".")[2])
            if gives.startswith("@"):
                made = (functions or {})[gives[1:]]
            rows.append(row(name, takes, made, **more))
    return rows


def _columns(line: str) -> tuple[str, str]:
    """Split a line at the first gap of two blanks after the name."""
    name, _, rest = line.partition(" ")
    parts = re.split(r" {2,}", rest.strip(), maxsplit=1)
    if len(parts) == 1:
        raise ValueError(f"two blanks are missing before the expression: {line}")
    return f"{name} {parts[0]}", parts[1]


def _param(token: str) -> Param:
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise ValueError(f"{token!r} is no parameter of a row.")
    star, name, optional, kind, equals, text = match.groups()
    only = text if equals == "==" else None
    default = text if equals == "=" else None
    by_name = star == "-"
    return Param(name, star[:1] == "*", bool(optional), kind, only, default, by_name)
