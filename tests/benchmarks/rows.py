"""What is reported: rows, each of one quantity."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.benchmarks.timing import Call, Effort, Spread, Times, interleaved


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        part: of the benchmarks.
        what: is measured.
        ours: which form of jaxfn.
        against: what it is compared with.
        value: a ratio (ours over the other), or a number of `unit`.
        target: what the value must not exceed (`at_least`: fall below).
        within: is a target met that lies between the quartiles, as for equal programs?
        unit: of the value; "" for ratios.
        ours_seconds: median time of ours, where a time is measured.
        other_seconds: median time of the other.
        gap: why there is no value.
        note: in a few words.
    """

    part: str
    what: str
    ours: str = "Function"
    against: str = ""
    value: Spread | None = None
    target: float | None = None
    at_least: bool = False
    within: bool = False
    unit: str = ""
    ours_seconds: float | None = None
    other_seconds: float | None = None
    gap: str = ""
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether the target is met."""
        if self.gap:
            return "gap"
        if self.target is None or self.value is None:
            return ""
        median = self.value.low if self.within else self.value.median
        met = median >= self.target if self.at_least else median <= self.target
        return "met" if met else "missed"

    def titled(self) -> Row:
        """With the part in the title, for lists of several parts."""
        return dataclasses.replace(self, what=f"{self.part}: {self.what}")

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"verdict": self.verdict}


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two calls of a group that are compared.

    Attributes:
        ours: the name of one call, of the longer time if there is a target.
        against: the name of the other.
        target: of the ratio of their times.
        scale: of that ratio: 0.01 compares 1,000 of one with 10 of the other.
        label: for the table, where it is not the name of the other.
    """

    ours: str
    against: str
    target: float | None = None
    scale: float = 1.0
    label: str = ""


def names(pairs: Iterable[Pair]) -> list[str]:
    """The names of all calls of these pairs, each once."""
    return list(dict.fromkeys(n for p in pairs for n in (p.ours, p.against)))


def compare(
    part: str,
    what: str,
    calls: Mapping[str, Call],
    pairs: list[Pair],
    effort: Effort,
    *,
    gaps: Mapping[str, str] | None = None,
) -> Iterator[Row]:
    """Time the calls together; a row for each pair, or why there is none.

    Args:
        part: of the benchmarks.
        what: is measured.
        calls: to time, by name.
        pairs: of names to compare.
        effort: how long to measure.
        gaps: reasons why calls are missing, by name.
    """
    gaps = gaps or {}
    times = interleaved(calls, effort) if calls else Times({})
    for pair in pairs:
        reason = gaps.get(pair.against, "") or gaps.get(pair.ours, "")
        row = Row(part, what, pair.ours, pair.label or pair.against)
        row = dataclasses.replace(row, target=pair.target)
        if reason:
            yield dataclasses.replace(row, gap=reason)
        else:
            yield measured(row, times, pair)


def measured(row: Row, times: Times, pair: Pair) -> Row:
    """The row with what was measured of this pair."""
    return dataclasses.replace(
        row,
        value=times.ratio(pair.ours, pair.against, pair.scale),
        ours_seconds=times.median(pair.ours),
        other_seconds=times.median(pair.against),
    )
