"""The two Pythons of .ci/run share tests, and leave none out."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import is_in_share

REST, TABLE = ("1,2/3", "3/3"), ("1,2,3,4,5,6,7/8", "8/8")


@pytest.mark.parametrize("shares", [REST, TABLE], ids=["rest", "table"])
def test_each_test_is_in_one_share(shares):
    items = [SimpleNamespace(nodeid=f"tests/test_a.py::test[{i}]") for i in range(200)]
    found = [[is_in_share(item, share) for share in shares] for item in items]
    assert all(sum(one) == 1 for one in found)
    assert all(sum(of) > 15 for of in zip(*found, strict=True))


def test_these_are_the_shares():
    text = (Path(__file__).parents[2] / ".ci/run").read_text()
    of_torch = "3/3"  # Python 3.11 runs all of these
    found = re.findall(r"share[ =]([\d,]+/\d+)", text)
    assert found == [*REST, TABLE[0], of_torch, TABLE[1]]
