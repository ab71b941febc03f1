"""What a script can see of plain English in docstrings, comments, messages and pages.

It finds sentences of more than 30 words, questions in docstrings (a parameter is a noun
phrase, and a function says what it returns), and coined words where the field has one.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.package.code_lines import is_docstring

MOST_WORDS = 30

COINED_NAMES = {
    "moving": "differentiable, inexact",
    "narrow": "half_precision",
    "needs": "needs_input_grad",
    "dots": "tangents",
    "shown": "requires_grad",
    "statics": "static_arguments",
}
"""Names of parameters, variables and attributes, and what they are called instead."""

COINED_PHRASES = {
    r"kinds? of calls?": "signature",
    r"statics": "static arguments",
    r"moving (argument|array|input|leaf|leaves|output)s?": "differentiable",
    r"what (forward|backward) (left|kept)( behind)?": "saved tensors, residuals",
    r"and such": "name them",
    r", say[,.;:)]": "for example",
    r"the dots": "tangents",
}


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the docstrings of modules, classes, functions and attributes."""
    yield from (node.value for node in ast.walk(tree) if is_docstring(node))


def messages(tree: ast.AST) -> Iterator[str]:
    """Yield the other texts of a module, with `x` in the place of what is put in."""
    skipped = {id(node) for node in docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "x"
                for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skipped
            and "\n" not in node.value
        ):
            yield node.value


def comments(text: str) -> Iterator[str]:
    """Yield the comments, lines that follow each other as one."""
    found, last = "", -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        words = token.string.lstrip("#").strip()
        if token.start[0] == last + 1 and words:
            found += f" {words}"
        else:
            yield found
            found = words
        last = token.start[0]
    yield found


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text; code, tables and list markers are no words."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"(?m)^ *(>>>|\.\.\.).*(\n *(?!>>>)\S.*)*", "\n", text)
    text = re.sub(r"::\n\n( {4,}.*\n|\n)+", ".\n\n", text)
    parts = re.split(r"\n\s*\n|\n(?= *(?:[-*|#]|\d+\.) )|\n(?= +\*{0,2}\w+: )", text)
    for part in parts:
        for cell in part.split(" | ") if part.lstrip().startswith("|") else [part]:
            yield from re.split(
                r"(?<=[.!?:])[)\"']* +(?=[\[A-Z`\"'(*a-z])", " ".join(cell.split())
            )


def too_long(text: str) -> Iterator[str]:
    """Yield the sentences of more words than a sentence may have."""
    for sentence in sentences(text):
        if len(re.findall(r"[^\s]*\w[^\s]*", sentence)) > MOST_WORDS:
            yield f"a sentence of over {MOST_WORDS} words: {sentence}"


def coined(text: str) -> Iterator[str]:
    """Yield the coined phrases of a text."""
    for pattern, better in COINED_PHRASES.items():
        for match in re.finditer(
            rf"\b{pattern}" if pattern[0].isalpha() else pattern, text
        ):
            yield f"`{match[0]}` (better: {better})"


def coined_names(tree: ast.AST) -> Iterator[str]:
    """Yield the coined names of parameters, variables and attributes."""
    for node in ast.walk(tree):
        name = (
            node.arg
            if isinstance(node, ast.arg)
            else node.id
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else node.attr
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            else ""
        )
        if name in COINED_NAMES:
            better = COINED_NAMES[name]
            yield f"line {node.lineno}: the name `{name}` (better: {better})"


def questions(text: str) -> Iterator[str]:
    """Yield the questions of a docstring."""
    for sentence in sentences(text):
        if sentence.endswith("?"):
            yield f"a question: {sentence}"


def in_module(path: Path) -> Iterator[str]:
    """Yield what is found in a module."""
    text = path.read_text()
    tree = ast.parse(text)
    for docstring in docstrings(tree):
        yield from questions(docstring.value)
    for words in (
        *(node.value for node in docstrings(tree)),
        *comments(text),
        *messages(tree),
    ):
        yield from too_long(words)
        yield from coined(words)
    yield from coined_names(tree)


def in_page(text: str) -> Iterator[str]:
    """Yield what is found in a page."""
    yield from too_long(text)
    yield from coined(text)
