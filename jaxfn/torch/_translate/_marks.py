"""What stands where a statement could not be translated."""

from __future__ import annotations

import textwrap
from typing import Any

from jaxfn.torch._translate._lib import cst
from jaxfn.torch._translate._loads import Stores


def marked(
    original: Any, text: str, reasons: list[str], file: str, line: int
) -> list[Any]:
    """A comment with the original, a line that raises, and what it would have bound."""
    said = textwrap.wrap("translate: " + "; ".join(reasons), 76)
    comments = [f"# {t}" for t in said] + [f"#     {t}" for t in text.splitlines()]
    leading = [
        *getattr(original, "leading_lines", ()),
        *(cst.EmptyLine(comment=cst.Comment(c.rstrip())) for c in comments),
    ]
    message = f'"translate: {file}, line {line}"'
    raised = cst.parse_statement(f"raise NotImplementedError({message})")
    assert isinstance(raised, cst.SimpleStatementLine)
    bound: set[str] = set()
    original.visit(Stores(bound))
    rest = [cst.parse_statement(f"{name} = ...") for name in sorted(bound)]
    return [raised.with_changes(leading_lines=leading), *rest]
