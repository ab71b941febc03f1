"""Counts lines of code: what somebody must follow who reads a module.

Blank lines, comments, docstrings, imports and the words of messages don't count, so
that nobody saves lines by leaving out an explanation, or by packing.
"""

import ast
import tokenize


def code_lines(path):
    """Return how many lines of the Python file hold code."""
    source = path.read_text()
    lines = source.splitlines()
    left_out = {i for i, line in enumerate(lines, 1) if not line.strip()}
    for node in ast.walk(ast.parse(source)):
        if is_docstring(node) or _is_message(node) or _is_import(node):
            left_out.update(range(node.lineno, node.end_lineno + 1))
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            row = token.start[0]
            if token.type == tokenize.COMMENT and lines[row - 1].strip()[0] == "#":
                left_out.add(row)
    return len(lines) - len(left_out)


def is_docstring(node):
    """Is it a text that stands alone?"""
    value = getattr(node, "value", None)
    return (
        isinstance(node, ast.Expr)
        and isinstance(value, ast.Constant)
        and isinstance(value.value, str)
    )


def _is_message(node):
    is_text = isinstance(node, (ast.JoinedStr, ast.Constant))
    return isinstance(node, ast.Raise) or (is_text and node.lineno != node.end_lineno)


def _is_import(node):
    return isinstance(node, (ast.Import, ast.ImportFrom))
