"""The size of each part of the package.

The limits exist because every special case makes the package harder to read and to
change: a part that grows needs somebody's decision.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "jaxfn"
CORE = ("_base", "_engine", "_methods", "_function", "_decorator")

# Most lines, with docstrings. Lower a limit when its part has shrunk.
LINES = {
    CORE: 9_000,
    ("_engine",): 2_300,
    ("_base/compat",): 1_372,
    ("_check",): 2_966,
    ("_explain",): 1_200,
    ("_gradcheck",): 840,
    ("_cli",): 730,
    ("torch/_base", "torch/_ops", "torch/_trace", "torch/_function"): 7_963,
    ("torch/_compare", "torch/_translate"): 10_609,
    ("torch/_triton",): 981,
    ("_triton",): 3_145,
}

# Most files.
FILES = {"_engine": 13}


def modules(part):
    found = sorted((PACKAGE / part).rglob("*.py"))
    assert found, part
    return found


def size(part):
    return sum(len(path.read_text().splitlines()) for path in modules(part))


@pytest.mark.parametrize("parts", LINES, ids=" ".join)
def test_a_part_has_few_lines(parts):
    sizes = {part: size(part) for part in parts}
    assert sum(sizes.values()) <= LINES[parts], sizes


@pytest.mark.parametrize("part", FILES)
def test_a_part_has_few_files(part):
    found = [path.name for path in modules(part)]
    assert len(found) <= FILES[part], found


def test_no_two_classes_of_the_bridge_have_one_name():
    found = Counter(
        name
        for path in modules("torch")
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
    )
    assert [name for name, n in found.items() if n > 1] == []
