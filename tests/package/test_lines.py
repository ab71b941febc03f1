"""The size of each part of the package, in lines of code.

The limits exist because every special case makes the package harder to read and to
change: a part that grows needs somebody's decision.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.package.code_lines import code_lines

PACKAGE = Path(__file__).parents[2] / "jaxfn"
TOOLS = ("_advice", "_check", "_explain", "_gradcheck", "_cli", "_triton", "torch")
TOOL_FILES = ("__main__.py", "_examples.py", "_kernels.py")

# Most lines of code. Lower a limit when its part has shrunk.
LINES = {
    "_advice": 316,
    "_core": 1_716,
    "_check": 1_950,
    "_explain": 665,
    "_gradcheck": 400,
    "_cli": 455,
    "_triton": 1_765,
    "torch/_base torch/_ops torch/_trace torch/_function": 5_596,
    "torch/_compare torch/_translate": 4_255,
    "torch/_model": 833,
    "torch/_triton": 510,
}
CORE_LINES = 3_827

# Most files.
FILES = {"_core": 10, "torch": 85, "torch/_translate": 19}


def modules(part):
    found = sorted((PACKAGE / part).rglob("*.py"))
    assert found, part
    return found


def core():
    """All that a call runs through: the package without its tools."""
    for path in modules("."):
        inside = path.relative_to(PACKAGE).parts
        if inside[0] not in (*TOOLS, *TOOL_FILES):
            yield path


@pytest.mark.parametrize("parts", LINES)
def test_a_part_has_few_lines_of_code(parts):
    sizes = {part: sum(map(code_lines, modules(part))) for part in parts.split()}
    assert sum(sizes.values()) <= LINES[parts], sizes


def test_the_core_has_few_lines_of_code():
    sizes = {str(path.relative_to(PACKAGE)): code_lines(path) for path in core()}
    assert "_core/call.py" in sizes
    assert "_function.py" in sizes
    assert sum(sizes.values()) <= CORE_LINES, sizes


@pytest.mark.parametrize("part", FILES)
def test_a_part_has_few_files(part):
    found = [path.name for path in modules(part)]
    assert len(found) <= FILES[part], found


def test_what_counts_as_code(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        '"""One.\n\nTwo.\n"""\n\nimport os\nfrom os import (\n    path,\n)\n\n# Why.\n'
        "x = 1  # code\n\n\ndef f():\n    '''What.'''\n    if x:\n"
        "        raise ValueError(\n            'no'\n        )\n    return os, path\n"
    )
    assert code_lines(path) == 4


def test_no_two_classes_of_the_bridge_have_one_name():
    found = Counter(
        name
        for path in modules("torch")
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
    )
    assert [name for name, n in found.items() if n > 1] == []
