"""jaxfn does in each row what was recorded of torch, or what is expected instead."""

from __future__ import annotations

import importlib.util

import pytest

from tests.sizes import only

from . import core, frameworks, record
from .catalogue import FAMILIES
from .not_applicable import NOT_APPLICABLE

SECTIONS = core.load()
SECTION_OF = {id: section for section, ids in core.ROW_IDS.items() for id in ids}
CASES = [(row, mode) for row in core.ROWS.values() for mode in row.modes]
# In a normal run a row is seen eager, and every other one in one more mode.
TURNS = {
    row: (None, "jit", None, "vmap")[i % 4] for i, row in enumerate(core.ROWS.values())
}


def is_normal(case):
    row, mode = case
    return mode in (row.modes[0], TURNS[row])


@pytest.mark.parametrize(
    ("row", "mode"),
    only(CASES, is_normal),
    ids=[f"{row.id}-{mode}" for row, mode in CASES],
)
def test_row(row, mode):
    theirs = core.latest(SECTION_OF[row.id])[row.id]
    fw = frameworks.Jaxfn(mode)
    ours = row.seen(fw)
    if row.kind == "same":
        assert row.expected is None
        core.compare(ours, theirs, own_words=row.own_words)
        texts = list(core.errors(ours))
        for words in row.says:
            assert any(words in text for text in texts), f"{words!r} is not in {texts}"
    else:
        assert row.expected is not None
        assert not row.says
        core.compare(ours, core.describe(row.expected(fw)))
        assert core.differ(ours, theirs), f"torch does the same: {theirs}"


@pytest.mark.parametrize("section", SECTIONS)
def test_each_row_has_a_test_or_a_reason(section):
    ids = set(core.ROW_IDS[section])
    assert len(ids) == len(core.ROW_IDS[section])
    tests, reasons = ids & set(core.ROWS), ids & set(NOT_APPLICABLE)
    assert sorted(tests | reasons) == sorted(ids)
    assert not tests & reasons
    assert set(core.latest(section)) == tests
    old = core.recorded(section)
    for id, seen in core.NEWEST["rows"].items():
        assert seen != old["rows"].get(id), f"{id} is recorded twice"
    assert [id for id in old["rows"] if not core.ROWS[id].is_in(old["torch"])] == []


def test_every_section_has_its_rows():
    functions = {case.name for cases in FAMILIES.values() for case in cases}
    assert set(core.ROW_IDS["R"]) <= functions  # whole Functions: in the catalogue
    assert {*SECTIONS, "R"} == set(core.ROW_IDS)


def test_no_row_is_unknown():
    assert set(core.ROWS) | set(NOT_APPLICABLE) <= set(SECTION_OF)


needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed here"
)


@needs_torch
@pytest.mark.parametrize("section", SECTIONS)
def test_the_record_is_what_torch_does(section):
    old, installed = core.recorded(section), record.version()
    if installed not in (old["torch"], core.NEWEST["torch"]):
        pytest.skip(
            f"torch is {installed}, the records {old['torch']} "
            f"and {core.NEWEST['torch']}"
        )
    is_old = installed == old["torch"]
    written = old["rows"] if is_old else core.latest(section)
    for id in [id for id in written if not core.ROWS[id].since]:
        ours, seen = core.ROWS[id].seen(frameworks.torch()), written[id]
        core.compare(ours, seen, own_words=True, at=id)


@needs_torch
@pytest.mark.parametrize("id", [id for id, row in core.ROWS.items() if row.since])
def test_the_record_of_a_new_row(id):
    installed, row = record.version(), core.ROWS[id]
    if not row.is_in(installed):
        pytest.skip(f"{id} is new in torch {row.since}, and torch is {installed}")
    seen = core.latest(SECTION_OF[id])[id]
    core.compare(row.seen(frameworks.torch()), seen, own_words=True, at=id)
