"""How times become ratios, rows and tables."""

import dataclasses
import gc
import itertools

import jax
import pytest

from tests.benchmarks import peers, report
from tests.benchmarks.rows import Pair, Row, compare
from tests.benchmarks.timing import Call, Effort, Spread, Times, interleaved


def effort(rounds=4):
    """An effort whose clock advances by one at each look."""
    clock = itertools.count()
    return Effort(rounds=rounds, seconds=0.0, clock=lambda: float(next(clock)))


def test_all_calls_run_in_every_round_in_alternating_order():
    order = []
    calls = {name: Call(lambda _, name=name: order.append(name)) for name in "abc"}
    times = interleaved(calls, effort(rounds=2))
    assert "".join(order) == "abc" + "abc" + "cba"  # once before they are timed
    assert [len(times.seconds[name]) for name in "abc"] == [2, 2, 2]


def test_prepared_outside_of_the_time():
    events = []

    def clock():
        events.append("clock")
        return float(len(events))

    call = Call(
        run=lambda made: events.append(f"run {made}"),
        prepare=lambda: events.append("prepare") or 7,
        finish=lambda _: events.append("finish"),
    )
    interleaved({"a": call}, Effort(rounds=1, seconds=0.0, clock=clock))
    once = ["prepare", "clock", "run 7", "finish", "clock"]
    assert events == [*once, *once]


def test_collector_is_off_within_and_as_before_after():
    seen = []
    interleaved({"a": Call(lambda _: seen.append(gc.isenabled()))}, effort())
    assert seen
    assert not any(seen)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_ratios_are_of_the_same_round():
    times = Times({"a": [1.0, 20.0, 6.0], "b": [1.0, 10.0, 2.0]})
    assert times.ratio("a", "b") == Spread(2.0, 1.5, 2.5)
    assert times.ratio("a", "b", scale=0.1).median == pytest.approx(0.2)
    assert times.overall([("a", "b"), ("b", "a")]) == Spread(1.0, 1.0, 1.0)
    assert times.median("a") == 6.0


def test_verdicts():
    row = Row("p", "w", value=Spread(1.2, 0.9, 1.4), target=1.25)
    assert row.verdict == "met"
    assert dataclasses.replace(row, target=1.1).verdict == "missed"
    assert dataclasses.replace(row, target=1.0, within=True).verdict == "met"
    assert dataclasses.replace(row, target=0.8, within=True).verdict == "missed"
    assert dataclasses.replace(row, at_least=True).verdict == "missed"
    assert dataclasses.replace(row, target=None).verdict == ""
    assert dataclasses.replace(row, value=None, gap="not installed").verdict == "gap"


def test_missing_peer_is_a_row_that_says_so():
    call = Call(lambda _: jax.numpy.ones(2))
    pairs = [Pair("ours", "theirs"), Pair("ours", "other", 1.0)]
    gaps = {"theirs": "not installed"}
    calls = {"ours": call, "other": call}
    rows = list(compare("p", "w", calls, pairs, effort(), gaps=gaps))
    assert [row.verdict for row in rows] == ["gap", "met"]
    assert "gap: not installed" in report.markdown(rows)


def test_a_peer_that_is_missing_without_a_reason_is_an_error():
    call = Call(lambda _: jax.numpy.ones(2))
    with pytest.raises(KeyError, match="theirs"):
        list(compare("p", "w", {"ours": call}, [Pair("ours", "theirs")], effort()))


def test_what_is_missing():
    assert peers.missing("json") == ""
    assert peers.missing("json", "dumps", "gone") == ""
    assert peers.missing("json", "gone") == "not in this JAX"
    assert peers.missing("no_such_module") == "not installed"
    assert peers.missing("jax.no_such_module") == "not in this JAX"


def test_table():
    timed = Row(
        "eager", "apply", against="bare", value=Spread(1.5, 1.25, 2.0), target=1.4,
        ours_seconds=3e-5, other_seconds=2e-3,
    )  # fmt: skip
    counted = Row("import", "modules", value=Spread.of([53.0]), unit="modules")
    lines = report.markdown([timed, counted]).splitlines()
    assert "## Targets: 0 of 1 met" in lines
    cells = (
        "| eager: apply | Function | bare | 1.50 | 1.25 … 2.00 | ≤ 1.40 | missed "
        "| 30 us, 2 ms |  |"
    )
    assert cells in lines
    assert "| modules | Function |  | 53 modules |  |  |  |  |  |" in lines
    heads = [line for line in lines if line.startswith("| what")]
    assert {head.count("|") for head in heads} == {cells.count("|")}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2, "2 s"), (0.0125, "12.5 ms"), (3.456e-5, "34.6 us"), (2e-8, "20 ns")],
)
def test_duration(seconds, text):
    assert report.duration(seconds) == text
