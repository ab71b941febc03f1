"""What stands where a statement could not be translated."""

from __future__ import annotations

from typing import Any

import libcst as cst

from jaxfn.torch._translate._units import _Stores


def marked(
    original: Any, text: str, reasons: list[str], file: str, line: int
) -> list[Any]:
    """A comment with the original, a line that raises, and what it would have bound."""
    reason = "; ".join(reasons)
    comments = [f"# translate: {reason}", *(f"#     {t}" for t in text.splitlines())]
    leading = [
        *getattr(original, "leading_lines", ()),
        *(cst.EmptyLine(comment=cst.Comment(c.rstrip())) for c in comments),
    ]
    message = repr(f"translate: {file}, line {line}: {reason}")
    message = message if message.startswith("'") else message
    raised = cst.parse_statement(f"raise NotImplementedError({_quoted(message)})")
    assert isinstance(raised, cst.SimpleStatementLine)
    bound: set[str] = set()
    original.visit(_Stores(bound))
    rest = [cst.parse_statement(f"{name} = ...") for name in sorted(bound)]
    return [raised.with_changes(leading_lines=leading), *rest]


def _quoted(text: str) -> str:
    """With the quotes that formatters like."""
    inner = text[1:-1]
    return f'"{inner}"' if text[0] == "'" and '"' not in inner else text
