"""Functions of published packages run as they are; how many do may not fall."""

from __future__ import annotations

import collections
import json
import warnings
from pathlib import Path

import pytest

from . import packages
from .compare import Case

COUNTS = json.loads((Path(__file__).parent / "package_counts.json").read_text())
INSTALLED = [row for row in packages.ROWS if row.is_installed()]


@pytest.fixture(scope="module")
def ran():
    """By package, the Functions whose value and gradient are torch's, and the rest."""
    found = collections.defaultdict(list)
    for row in INSTALLED:
        packages.fresh()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cls = row.load()
                worst = Case(cls, row.args(), row.diff).worst(("eager", "vmap(grad)"))
            assert worst <= 1e-4
            found[row.package].append((row.name, None))
        except Exception as error:  # noqa: BLE001  (all of them are counted)
            found[row.package].append((row.name, f"{type(error).__name__}: {error}"))
    return found


@pytest.mark.skipif(not INSTALLED, reason="none of the packages is installed here")
def test_as_many_run_as_ever(ran, capsys):
    lines, fallen = [], {}
    for package, results in sorted(ran.items()):
        good = sum(why is None for _, why in results)
        lines.append(f"{package}: {good} of {len(results)} Functions as a graph")
        if good < COUNTS[package]:
            fallen[package] = [(name, why) for name, why in results if why]
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert not fallen


def test_each_package_has_a_count():
    assert {row.package for row in packages.ROWS} == set(COUNTS)
    assert sum(COUNTS.values()) == len(packages.ROWS)


def test_the_page_says_how_many_run():
    page = Path(__file__).parents[2] / "notebooks/reference/torch_support.md"
    table = page.read_text().partition("## Packages")[2].strip().split("\n")[-3:]
    names, counts = (table[0].split(" | "), table[-1].split(" | "))
    said = dict(zip(names, counts, strict=True))
    said = {name.strip(" |\n"): count.strip(" |\n") for name, count in said.items()}
    assert said == {name: f"{n} of {n}" for name, n in COUNTS.items()}
