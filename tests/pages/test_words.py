"""Plain English, as far as a script can see: in modules, pages and notebooks."""

import json
from pathlib import Path

import pytest

from tests.pages import words

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "jaxfn").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "notebooks").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))


def test_modules():
    found = [f"{path}: {x}" for path in MODULES for x in words.in_module(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page(path):
    found = list(words.in_page(path.read_text()))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook(path):
    cells = json.loads(path.read_text())["cells"]
    texts = ["".join(x["source"]) for x in cells if x["cell_type"] == "markdown"]
    found = list(words.in_page("\n\n".join(texts)))
    assert not found, "\n".join(found)


FAULTS = {
    "a question": 'def f(x):\n    """Do it.\n\n    Args:\n        x: Is it?\n    """\n',
    "a sentence of over 30 words": f'"""{"word " * 31}."""\n',
    "`kind of call`": "# It runs once for each kind of call.\n",
    "`, say,`": 'message = "a number, say, is static"\n',
    "the name `dots`": "def f(dots):\n    pass\n",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(FAULTS[fault])
    (found,) = words.in_module(path)
    assert fault in found
