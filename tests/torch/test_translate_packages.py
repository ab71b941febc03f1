"""Functions of published packages, translated; how many are right may not fall."""

from __future__ import annotations

import collections
import json
import warnings
from pathlib import Path

import pytest

from jaxfn.torch import translate

from . import packages

COUNTS = json.loads((Path(__file__).parent / "translated_counts.json").read_text())
INSTALLED = [row for row in packages.ROWS if row.is_installed()]


def translated():
    """By package, whether each translation is the original's equal, marked or wrong."""
    found = collections.defaultdict(list)
    for row in INSTALLED:
        packages.fresh()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args = row.args()
            for i in row.diff or ():
                args[i].requires_grad_()
            result = translate(row.load(), *args)
        assert result.comparison is not None
        equal = result.comparison.ok
        found[row.package].append((row.name, equal, bool(result.left), str(result)))
    return found


@pytest.mark.skipif(not INSTALLED, reason="none of the packages is installed here")
def test_as_many_are_translated_as_ever_and_none_differs_without_a_mark(capsys):
    lines, fallen, wrong = [], {}, []
    # One test, as two workers would each translate all for its halves.
    for package, results in sorted(translated().items()):
        wrong += [
            (name, why) for name, equal, marked, why in results if not (equal or marked)
        ]
        good = sum(equal for _, equal, _, _ in results)
        lines.append(f"{package}: {good} of {len(results)} Functions translated")
        if good < COUNTS[package]:
            fallen[package] = [
                (name, why) for name, equal, _, why in results if not equal
            ]
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert not wrong
    assert not fallen


def test_each_package_has_a_count():
    assert {row.package for row in packages.ROWS} == set(COUNTS)
