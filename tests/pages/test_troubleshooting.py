"""The page of error messages has every shared message and every refusal."""

import ast
import re
from pathlib import Path

import pytest

from jaxfn._core import messages as errors
from tests.pages import words

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "notebooks/guides/troubleshooting.md").read_text()
MODULES = sorted((ROOT / "jaxfn").rglob("*.py"))


def tables():
    """The quoted words of each row, for each table of messages."""
    for table in re.findall(r"\| message \|.*?\n\n", PAGE + "\n\n", re.DOTALL):
        rows = table.strip().splitlines()[2:]
        yield [re.findall(r'"([^"]+)"', row.split(" | ")[0]) for row in rows]


QUOTES = [quote for table in tables() for row in table for quote in row]
SHARED = {
    name: text
    for name, text in vars(errors).items()
    if name.isupper() and isinstance(text, str)
}
UNSAID = {"NOT_TRANSPOSED"}  # a part of other messages


def is_said(text):
    return any(quote.lower() in text.lower() for quote in QUOTES)


def test_rows_are_sorted_by_their_first_words():
    for table in tables():
        first = [re.sub(r"[^\w ]", "", row[0]).lower() for row in table]
        assert len(first) > 10
        assert first == sorted(first)


@pytest.mark.parametrize("name", sorted(SHARED.keys() - UNSAID))
def test_a_shared_message_has_its_row(name):
    assert is_said(SHARED[name]), SHARED[name]


def makers():
    """The words of each function in `messages` that makes an exception."""
    for node in ast.parse(Path(errors.__file__).read_text()).body:
        if isinstance(node, ast.FunctionDef) and "Error" in ast.unparse(node.returns):
            yield node.name, " ".join(words.messages(node))


MAKERS = dict(makers())  # `second_derivative` begins with ONCE, which has a row


def test_makers_are_found():
    assert len(MAKERS) > 10


@pytest.mark.parametrize("name", sorted(MAKERS.keys() - {"second_derivative"}))
def test_a_message_of_several_modules_has_its_row(name):
    assert is_said(MAKERS[name]), MAKERS[name]


def refusals():
    """The reason of each TorchRefusal, by file and line."""
    for path in sorted((ROOT / "jaxfn/torch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            found = [x.value for x in node.keywords if x.arg == "reason"]
            if path.name == "capture.py" and ast.unparse(node.func) == "_refusal":
                found = node.args[1:2]
            for text in filter(None, words.messages(ast.Tuple(found))):
                yield f"{path.name}:{node.lineno}", text


REFUSALS = dict(refusals())


def test_refusals_are_found():
    assert len(REFUSALS) > 40


@pytest.mark.parametrize("place", REFUSALS)
def test_a_refusal_has_its_row(place):
    assert is_said(REFUSALS[place]), REFUSALS[place]


def test_each_row_quotes_a_message():
    texts = [x for path in MODULES for x in words.messages(ast.parse(path.read_text()))]
    texts = [re.sub(r"\s+", " ", x) for x in texts]
    jax = re.compile(
        "can't apply forward|custom_lin|Effects not|No constant|No state|out_axes|"
        "axis spec|closed-over value|Pure callbacks|Transpose rule|unbound axis"
    )
    for quote in QUOTES:
        found = any(quote in text for text in texts)
        assert found or jax.search(quote), quote


def test_the_first_rows_are_words_that_have_a_note():
    # Except for those that JAX raises outside of any rule.
    from jaxfn._advice import words as advice

    rows = PAGE[PAGE.index("| words |") :].partition("\n\n")[0].splitlines()[2:]
    first = " ".join(row.split(" | ")[0] for row in rows)
    assert len(rows) == 10
    patterns = [pattern for _, pattern, _ in advice._ROWS if pattern.isascii()]
    plain = [x.lstrip("^") for x in patterns if re.fullmatch(r"[\^\w -]+", x)]
    assert len(plain) >= 3
    for text in plain:
        assert text.split(" of concrete")[0] in first, text
